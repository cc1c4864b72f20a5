package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
)

// This file has what a host needs for ten thousand workers.

// maxAsking caps the slots that ask the server at once when they start or end. The
// server drops all requests that wait when there are 10,000, and each request of a long
// queue waits longer than it may take.
const maxAsking = 128

// restAfter returns when the slots may be assigned again after an assignment. It keeps
// the assignments of a host with many slots, each of which looks at all of them, below a
// fifth of a processor.
func restAfter(began, ended time.Time) time.Time {
	return ended.Add(min(4*ended.Sub(began), 100*time.Millisecond))
}

// manyConsumers is the max_consumers of a stream for whose workers the server's own
// limit is too low.
const manyConsumers = 100_000

// addConsumer creates a consumer. A stream without a max_consumers may have as many as
// the server allows by default, 1,000. When it has them, addConsumer gives it a
// max_consumers. It does not change one that the stream has.
func (h *Host) addConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) error {
	const limit = jetstream.JSErrCodeMaximumConsumersLimit
	_, err := h.js.CreateConsumer(ctx, stream, cfg)
	if !natserr.Is(err, limit) {
		return err
	}
	if full := h.admitMore(ctx, stream); full != nil {
		return errors.Join(err, full)
	}
	if _, err = h.js.CreateConsumer(ctx, stream, cfg); natserr.Is(err, limit) {
		err = fmt.Errorf("%w: raise the account's limit of consumers", err)
	}
	return err
}

// admitMore makes room for more consumers on a stream. The error says who has to.
func (h *Host) admitMore(ctx context.Context, name string) error {
	h.ensuring.Lock() // one change of a stream at a time
	defer h.ensuring.Unlock()
	stream, err := h.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	cfg := info.Config
	switch has := cfg.MaxConsumers; {
	case has > info.State.Consumers:
		return nil // another call was faster
	case has > 0:
		return fmt.Errorf("the stream's max_consumers is %d: raise it", has)
	}
	cfg.MaxConsumers = manyConsumers
	if _, err := h.js.UpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("this host may not set the stream's max_consumers: set it to the number of workers or more, and the account's limit too: %w", err)
	}
	h.log.Info("hosted workers: their stream had as many consumers as the server allows by default, and has a max_consumers now", "stream", name, "max_consumers", manyConsumers)
	return nil
}

// listFrom is how many consumers of one stream are listed, and not asked for one by one.
const listFrom = 100

// pendingOf returns how many messages wait for each slot of records: of those that no host
// handles yet, and of those that are being handled.
func (h *Host) pendingOf(ctx context.Context, records []*Record) (map[string]int, error) {
	slots := make(map[string]map[string]*Record) // by stream and name
	for _, rec := range records {
		if slots[rec.Stream] == nil {
			slots[rec.Stream] = make(map[string]*Record)
		}
		slots[rec.Stream][rec.slot()] = rec
	}
	found := make(map[string]int)
	for name, wanted := range slots {
		if len(wanted) >= listFrom {
			if stream, err := h.js.Stream(ctx, name); err == nil {
				// An error, and a consumer whose leader does not answer in time, leave some
				// out. These are asked for below.
				for info := range stream.ListConsumers(ctx).Info() {
					if wanted[info.Name] != nil {
						found[info.Name] = int(info.NumPending) + info.NumAckPending
						delete(wanted, info.Name)
					}
				}
			}
		}
		for slot, rec := range wanted {
			c, err := h.js.Consumer(ctx, name, slot)
			switch {
			case err == nil:
				info := c.CachedInfo()
				found[slot] = int(info.NumPending) + info.NumAckPending
			case natserr.Is(err, jetstream.JSErrCodeConsumerNotFound, jetstream.JSErrCodeStreamNotFound):
			default:
				return nil, fmt.Errorf("what waits for %s: %w", rec.ID, err)
			}
		}
	}
	return found, nil
}

// Hosts keep the history of a deleted worker for keepDeleted, and look every sweepEvery
// for what is older.
const (
	keepDeleted = 24 * time.Hour
	sweepEvery  = time.Hour
)

// maxRevisions is how many revisions of a record the bucket keeps.
const maxRevisions = 64

// sweep removes the records and the history of workers that were deleted longer than age
// ago. Otherwise each worker that ever was would make every list and every start slower.
func (h *Host) sweep(ctx context.Context, age time.Duration) error {
	stream, err := h.js.Stream(ctx, "KV_"+h.records.kv.Bucket())
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	prefix := strings.TrimSuffix(stream.CachedInfo().Config.Subjects[0], ">")
	watch, err := h.records.kv.WatchAll(ctx, jetstream.MetaOnly())
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	defer func() { _ = watch.Stop() }()
	var gone []jetstream.KeyValueEntry
	for reading := true; reading; {
		select {
		case entry, ok := <-watch.Updates():
			switch {
			case !ok:
				return errors.New("sweep: the connection was closed")
			case entry == nil:
				reading = false
			case entry.Operation() != jetstream.KeyValuePut && time.Since(entry.Created()) >= age:
				gone = append(gone, entry)
			}
		case <-ctx.Done():
			return fmt.Errorf("sweep: %w", ctx.Err())
		}
	}
	if len(gone) == 0 {
		return nil
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	for _, entry := range gone {
		subject := prefix + entry.Key()
		if info.State.Subjects[subject] >= uint64(maxRevisions) {
			continue // a server that is killed could bring back a record that was replaced before
		}
		// A worker that was created again has a later record, which stays.
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(entry.Revision()+1)); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return nil
}

// sweeps sweeps a minute after the start, and then every sweepEvery, until ctx ends.
func (h *Host) sweeps(ctx context.Context) error {
	next := time.NewTimer(time.Minute)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			next.Reset(sweepEvery)
		}
		if !h.ready.Load() {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, 10*time.Minute)
		if err := h.sweep(attempt, keepDeleted); err != nil && ctx.Err() == nil {
			h.log.Warn("hosted workers: remove what is left of deleted ones", "err", err)
		}
		cancel()
	}
}
