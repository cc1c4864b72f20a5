package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Get returns a worker's stored record. The error for an unknown id wraps [ErrNotFound].
func (h *Host) Get(ctx context.Context, id string) (*Record, error) {
	if err := h.ensure(ctx); err != nil {
		return nil, err
	}
	return h.records.get(ctx, id)
}

// List returns every worker, sorted by id. When records cannot be read, it returns the other
// workers together with an error that names those records.
func (h *Host) List(ctx context.Context) ([]*Record, error) {
	if err := h.ensure(ctx); err != nil {
		return nil, err
	}
	entries, err := h.records.entries(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	var all []*Record
	var errs []error
	for _, entry := range entries {
		r, err := decode(entry)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Record) int { return strings.Compare(a.ID, b.ID) })
	return all, errors.Join(errs...)
}

// History returns the newest [MaxHistory] versions of a worker's code, the oldest first.
func (h *Host) History(ctx context.Context, id string) ([]Version, error) {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return rec.History, nil
}
