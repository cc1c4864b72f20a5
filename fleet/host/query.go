package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Get returns a worker's stored record. The error for an unknown id wraps
// [ErrNotFound].
func (h *Host) Get(ctx context.Context, id string) (*Record, error) { return h.get(ctx, id) }

// List returns every worker, sorted by id. When records cannot be read, it returns
// the other workers together with an error that names those records.
func (h *Host) List(ctx context.Context) ([]*Record, error) {
	if err := h.ensure(ctx); err != nil {
		return nil, err
	}
	watch, err := h.records.kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	defer func() { _ = watch.Stop() }()
	var all []*Record
	var errs []error
	for {
		select {
		case entry, ok := <-watch.Updates():
			if !ok {
				return nil, errors.New("list workers: the connection was closed")
			}
			if entry == nil {
				slices.SortFunc(all, func(a, b *Record) int { return strings.Compare(a.ID, b.ID) })
				return all, errors.Join(errs...)
			}
			r, err := decode(entry)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, r)
		case <-ctx.Done():
			return nil, fmt.Errorf("list workers: %w", ctx.Err())
		}
	}
}

// History returns the newest [MaxHistory] versions of a worker's code, the oldest
// first.
func (h *Host) History(ctx context.Context, id string) ([]Version, error) {
	rec, err := h.get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return rec.History, nil
}

// Waiting has the number of messages that wait for a worker.
type Waiting struct {
	Backlog     int // messages that it, or its group, has not finished
	DeadLetters int // dead letters that have not been redriven
}

// Waiting returns the counts for each of these workers, by id. The letters of an earlier
// worker of the id that was of another tenant do not count: no method finds them. One that a
// host stores after such a worker has ended, while the next one runs, may count. Waiting sends
// one request for all dead letters, one for each worker that it sees with dead letters for the
// first time, and one for each group and each worker without a group; for more than a hundred
// of one stream it lists the stream's consumers.
func (h *Host) Waiting(ctx context.Context, records ...*Record) (map[string]Waiting, error) {
	if err := h.ensure(ctx); err != nil {
		return nil, fmt.Errorf("what waits: %w", err)
	}
	letters, err := h.letters.count(ctx)
	if err != nil {
		return nil, fmt.Errorf("what waits: %w", err)
	}
	backlogs, err := h.pendingOf(ctx, records)
	if err != nil {
		return nil, err
	}
	waiting := make(map[string]Waiting, len(records))
	for _, rec := range records {
		n := letters[rec.ID]
		if n > 0 {
			hidden, err := h.letters.hiddenOf(ctx, rec)
			if err != nil {
				return nil, fmt.Errorf("what waits: worker %s: %w", rec.ID, err)
			}
			n = max(0, n-hidden)
		}
		waiting[rec.ID] = Waiting{Backlog: backlogs[rec.slot()], DeadLetters: n}
	}
	return waiting, nil
}

// backlogs keeps what waits for the workers of this host.
type backlogs struct {
	mu   sync.Mutex // guards everything below; held during the requests
	at   time.Time
	rows []Backlog
}

// backlogAge is how old the answer of [Host.Backlogs] may be.
const backlogAge = 2 * time.Second

// Backlog is a row of [Host.Backlogs].
type Backlog struct {
	Worker, Group string
	Waiting
}

// Backlogs returns what waits for each worker of this host, also for one that is
// stopped, sorted by id and at most two seconds old. Each worker belongs to one host, so
// the sum over all hosts counts each message once. The workers of a group have the
// backlog of the group, each.
func (h *Host) Backlogs(ctx context.Context) ([]Backlog, error) {
	b := &h.backlogs
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows != nil && time.Since(b.at) < backlogAge {
		return b.rows, nil
	}
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
	b.rows, b.at = rows, time.Now()
	return rows, nil
}

// DeadLetters returns up to limit of a worker's dead letters, the oldest first, with their
// whole messages. It begins at sequence from; 0 begins at the first. Dead letters outlive
// their worker. While another tenant has a worker of the same id, no method of a Host finds
// them. [Host.EachDeadLetter] holds one message at a time.
func (h *Host) DeadLetters(ctx context.Context, id string, from uint64, limit int) ([]*DeadLetter, error) {
	if limit <= 0 {
		return nil, nil
	}
	var found []*DeadLetter
	err := h.EachDeadLetter(ctx, id, from, func(d *DeadLetter) (bool, error) {
		found = append(found, d)
		return len(found) < limit, nil
	})
	return found, err
}

// EachDeadLetter calls each with the dead letters of a worker, the oldest first, until each
// returns false or an error, which EachDeadLetter returns. It begins at sequence from; 0
// begins at the first. A part of a letter's Data keeps the whole message in memory: clone
// what outlives the call.
func (h *Host) EachDeadLetter(ctx context.Context, id string, from uint64, each func(*DeadLetter) (bool, error)) error {
	theirs, err := h.lettersOf(ctx, id)
	if err != nil {
		return fmt.Errorf("dead letters: %w", err)
	}
	return h.letters.each(ctx, h.letters.dead+id, max(from, 1), func(d *DeadLetter) (bool, error) {
		if !theirs(d) {
			return true, nil
		}
		h.letters.whole(ctx, d)
		return each(d)
	})
}
