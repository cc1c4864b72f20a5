package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// Hosts keep the history of a deleted worker for keepDeleted, and look every sweepEvery for
// what is older.
const (
	keepDeleted = 24 * time.Hour
	sweepEvery  = time.Hour
)

// sweep removes the records and the history of workers that were deleted longer than age ago.
// Otherwise each worker that ever was would make every list and every start slower.
func (h *Host) sweep(ctx context.Context, age time.Duration) error {
	entries, err := h.records.entries(ctx, jetstream.MetaOnly())
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	for _, entry := range entries {
		if entry.Operation() == jetstream.KeyValuePut || time.Since(entry.Created()) < age {
			continue
		}
		err := h.records.manager.Forget(ctx, Kind, entry.Key())
		if err != nil && !errors.Is(err, workflow.ErrEntityExists) { // it was created again
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return nil
}

// sweepRegularly calls sweep a minute after the start, and then every sweepEvery, until ctx ends. It
// leaves out a turn at which the host is not ready.
func (h *Host) sweepRegularly(ctx context.Context) error {
	for wait := time.Minute; ; wait = sweepEvery {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		if !h.ready.Load() {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, 10*time.Minute)
		if err := h.sweep(attempt, keepDeleted); err != nil && ctx.Err() == nil {
			h.log.Warn("hosted workers: remove what is left of deleted ones", "error", err)
		}
		cancel()
	}
}
