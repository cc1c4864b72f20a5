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
	rec, err := h.get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	last := len(rec.History) - 1
	if to != "" {
		if last, err = rec.index(to); err != nil {
			return nil, fmt.Errorf("compare: %w", err)
		}
	}
	first := last - 1
	if from != "" {
		if first, err = rec.index(from); err != nil {
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
	a, b := was[c.From.Generation], was[c.To.Generation]
	if c.Known = a != nil && b != nil; c.Known {
		as := Spec{
			Tenant: b.Tenant, MIMEType: b.MIMEType, Topic: b.Topic, Group: b.Group, OutputTopic: b.OutputTopic, Key: b.Key, Limits: b.Limits, Env: b.Env,
			Secrets: b.Secrets, HTTP: b.HTTP, Signature: b.Signature, Rollout: b.Rollout, Rate: b.Rate,
		}
		c.Settings, _ = as.differences(a, b.Digest)
		c.Settings = slices.DeleteFunc(c.Settings, func(d Difference) bool { return d.Field == "code" })
	}
	return c, nil
}

// index returns the place of a version in the history, by its digest: of several
// with the same code, the newest.
func (r *Record) index(digest string) (int, error) {
	v, err := r.version(digest)
	if err != nil {
		return 0, err
	}
	return slices.IndexFunc(r.History, func(x Version) bool { return x.Generation == v.Generation }), nil
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
