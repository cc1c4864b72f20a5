package host

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
)

// Waiting has the number of messages that wait for a worker.
type Waiting struct {
	Backlog     int // messages that it, or its group, has not finished
	DeadLetters int // dead letters that have not been redriven
}

// Waiting returns the counts for each of these workers, by id. It sends one request for all
// dead letters, and one for each group and each worker without a group; for more than a
// hundred of one stream it lists the stream's consumers.
func (h *Host) Waiting(ctx context.Context, records ...*Record) (map[string]Waiting, error) {
	if err := h.ensure(ctx); err != nil {
		return nil, fmt.Errorf("what waits: %w", err)
	}
	letters, err := h.letters.count(ctx, h.letters.dead+">")
	if err != nil {
		return nil, fmt.Errorf("what waits: %w", err)
	}
	backlogs, err := h.pendingOf(ctx, records)
	if err != nil {
		return nil, err
	}
	waiting := make(map[string]Waiting, len(records))
	for _, rec := range records {
		n := letters[h.letters.subject(rec.Tenant, rec.ID)]
		waiting[rec.ID] = Waiting{Backlog: backlogs[h.durable(rec)], DeadLetters: int(n)}
	}
	return waiting, nil
}

// Backlog is a row of [Host.Backlogs].
type Backlog struct {
	Worker, Group string
	Waiting
}

// Backlogs returns what waits for each worker of this host, also for one that is
// stopped, sorted by id. Each worker belongs to one host, so
// the sum over all hosts counts each message once. The workers of a group have the
// backlog of the group, each.
func (h *Host) Backlogs(ctx context.Context) ([]Backlog, error) {
	var records []*Record
	h.mu.Lock()
	for _, s := range h.slots {
		s.mu.Lock()
		records = append(records, s.records...)
		s.mu.Unlock()
	}
	h.mu.Unlock()
	slices.SortFunc(records, func(a, b *Record) int { return strings.Compare(a.ID, b.ID) })
	rows := make([]Backlog, 0, len(records))
	if len(records) > 0 {
		waiting, err := h.Waiting(ctx, records...)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			rows = append(rows, Backlog{r.ID, r.Group, waiting[r.ID]})
		}
	}
	return rows, nil
}

// listFrom is how many consumers of one stream are listed, and not asked for one by one.
const listFrom = 100

// pendingOf returns how many messages wait for each consumer of records, by its name: messages that no host
// handles yet, and messages that are being handled.
func (h *Host) pendingOf(ctx context.Context, records []*Record) (map[string]int, error) {
	consumers := make(map[string]map[string]*Record) // by stream and name
	for _, rec := range records {
		if consumers[rec.Stream] == nil {
			consumers[rec.Stream] = make(map[string]*Record)
		}
		consumers[rec.Stream][h.durable(rec)] = rec
	}
	found := make(map[string]int)
	for name, wanted := range consumers {
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
