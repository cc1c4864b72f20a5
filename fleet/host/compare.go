package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Comparison has two versions of a worker.
type Comparison struct {
	MIMEType      string
	From, To      Version
	Before, After []byte       // their code; both nil when it is the same
	Settings      []Difference // without the code
	Known         bool         // Settings is valid: the records of both versions are still kept
}

// Compare returns the code of two versions of a worker, by their digests, and how their
// settings differ. An empty to is the newest version, and an empty from the one before
// to. The error for a version that the worker has never had, or whose code is removed,
// wraps [ErrNoVersion]. The settings are those with which each version was last stored;
// the bucket keeps the newest 64 changes of a worker.
func (h *Host) Compare(ctx context.Context, id, from, to string) (*Comparison, error) {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	last := len(rec.History) - 1
	if to != "" {
		if last, err = rec.version(to); err != nil {
			return nil, fmt.Errorf("compare: %w", err)
		}
	}
	first := last - 1
	if from != "" {
		if first, err = rec.version(from); err != nil {
			return nil, fmt.Errorf("compare: %w", err)
		}
	}
	if first < 0 {
		return nil, fmt.Errorf("compare: worker %s: %w: there is none before the first", id, ErrNoVersion)
	}
	c := &Comparison{MIMEType: rec.MIMEType, From: rec.History[first], To: rec.History[last]}
	if c.From.Digest != c.To.Digest {
		if c.Before, err = h.readCode(ctx, rec, c.From.Digest); err == nil {
			c.After, err = h.readCode(ctx, rec, c.To.Digest)
		}
		if err != nil {
			return nil, fmt.Errorf("compare: worker %s: %w", id, err)
		}
	}
	was, err := h.settingsOf(ctx, rec)
	if err != nil {
		return nil, fmt.Errorf("compare: worker %s: read its changes: %w", id, err)
	}
	before, after := was[c.From.Generation], was[c.To.Generation]
	if c.Known = before != nil && after != nil; c.Known {
		isCode := func(d Difference) bool { return d.Field == "code" }
		c.Settings = slices.DeleteFunc(differences(before.settings(), after.settings()), isCode)
	}
	return c, nil
}

// settingsOf returns the worker as it was last stored with each version, by generation.
func (h *Host) settingsOf(ctx context.Context, rec *Record) (map[int]*Record, error) {
	entries, err := h.records.kv.History(ctx, rec.ID)
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, err
	}
	was := make(map[int]*Record)
	for _, entry := range entries {
		if entry.Operation() != jetstream.KeyValuePut {
			continue
		}
		r, err := decode(entry)
		if err != nil || r.UID != rec.UID {
			continue // of an earlier worker of this name, or of another program
		}
		was[r.Generation] = r
		if c := r.candidate(); c != nil {
			was[c.Generation] = c
		}
	}
	return was, nil
}
