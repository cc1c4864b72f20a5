package host

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/pleme-io/lifecycle-go/fleet/internal/servertime"
)

// states stores the values of all workers in one stream with one message for each subject:
//
//	$host.state.SLOT.fence       the sequence of this message is the newest fencing token
//	$host.state.w-ID.kv.UID.KEY  a value that the worker stored
//	$host.state.SLOT.tm.…        a timer, see [storedTimer]
//
// The log of the slot has every value first, and [stateCache] brings them here.
type states struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	budget *budget
	prefix string              // "$host.state."
	asking *semaphore.Weighted // caps the slots that ask the server for what they need
	clock  servertime.Clock
	ahead  atomic.Int64 // nanoseconds by which a test makes the clock later
}

// maxAsking bounds how many slots ask the server at the same time when they start or end. When
// 10,000 requests wait, the server drops them all. In a long queue a request waits longer than
// its timeout.
const maxAsking = 128

// headerOp marks a deleted value, as in a key-value bucket. The mark has no TTL: when it is gone, a
// server that is killed brings the value back. See [storedTimer].
const headerOp = "KV-Operation"

// stateWrite is a value that a worker puts or deletes, or a timer that it sets or cancels.
type stateWrite struct {
	Worker  string `json:"worker"`
	UID     string `json:"uid"`
	Key     string `json:"key"`
	Data    []byte `json:"data,omitempty"`
	Deleted bool   `json:"deleted,omitempty"`
	Slot    string `json:"slot,omitempty"` // of a timer: Key is its place, and Data a storedTimer

	gen   uint64
	timer *pendingTimer // that is set
}

func (s *states) fenceSubject(slot string) string { return s.prefix + slot + ".fence" }

// valuesOf returns the prefix of the values of one worker. A later worker of the same id has
// another uid.
func (s *states) valuesOf(w workerUID) string {
	return s.prefix + "w-" + w.id + ".kv." + w.uid + "."
}

// subject returns the subject of a value.
func (s *states) subject(w *stateWrite) string {
	of := workerUID{w.Worker, w.UID}
	if w.Slot != "" {
		return s.timersOf(w.Slot, of) + w.Key
	}
	return s.valuesOf(of) + w.Key
}

// now returns the server's time. While the server does not answer, this process's clock goes
// on from its last answer.
func (s *states) now(ctx context.Context) time.Time {
	_ = s.clock.Look(ctx, 5*time.Second, func(ctx context.Context) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, commitWithin)
		defer cancel()
		stream, err := s.js.Stream(ctx, s.stream.CachedInfo().Config.Name)
		if err != nil {
			return time.Time{}, err
		}
		return stream.CachedInfo().TimeStamp, nil
	})
	return s.clock.Now().Add(time.Duration(s.ahead.Load()))
}

// claim takes the fence of a slot for this host and returns the token. It makes every earlier
// token of the slot void.
func (s *states) claim(ctx context.Context, slot, host string) (uint64, error) {
	ack, err := s.js.Publish(ctx, s.fenceSubject(slot), []byte(host))
	if err != nil {
		return 0, fmt.Errorf("claim the fence of %s: %w", slot, err)
	}
	return ack.Sequence, nil
}

// purge removes the values that a worker stored, and its timers.
func (s *states) purge(ctx context.Context, r *Record) error {
	of, slot := r.workerUID(), r.slot()
	for _, prefix := range []string{s.valuesOf(of), s.timersOf(slot, of), s.cancelledOf(slot, of)} {
		if err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(prefix+">")); err != nil {
			return err
		}
	}
	return nil
}

// readAll returns the messages below a prefix, without deleted values. It calls shrink for each, so
// that it need not hold all their data. It asks the stream's leader, which has every acknowledged
// write.
func (s *states) readAll(
	ctx context.Context, prefix string, shrink func(*jetstream.RawStreamMsg),
) ([]*jetstream.RawStreamMsg, error) {
	info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return nil, err
	}
	read := make(chan *jetstream.RawStreamMsg, len(info.State.Subjects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxAtOnce)
	for subject := range info.State.Subjects {
		group.Go(func() error {
			m, err := last(ctx, s.stream, subject)
			if m != nil && m.Header.Get(headerOp) == "" {
				shrink(m)
				read <- m
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	close(read)
	all := make([]*jetstream.RawStreamMsg, 0, len(read))
	for m := range read {
		all = append(all, m)
	}
	return all, nil
}

// maxAtOnce is how many requests a call has under way at once.
const maxAtOnce = 32
