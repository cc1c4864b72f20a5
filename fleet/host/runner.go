package host

import (
	"context"
	"errors"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// runner takes messages from a slot's consumer and gives them to programs, one at a time: in
// order within a key, and in turn among keys. One goroutine feeds its queue, another one
// handles the messages. Its members never change: for others the slot starts a new runner.
type runner struct {
	slot      *slot
	host      *Host
	consumer  jetstream.Consumer
	partition *partition
	members   []*member
	queue     *lanes.Queue[*delivery]
	pull      *pull.Puller
	refilling sync.Mutex // held by refill
	order     arrivals   // only feed uses it
	reached   uint64     // sequence of the newest message that was delivered before this runner began

	ctx    context.Context // of the handlers; ends when the runner is abandoned
	cancel context.CancelCauseFunc
	taking context.Context // ends when the runner takes no more messages

	stopTaking context.CancelFunc // ends taking

	watchdog *time.Timer // calls watch while a message is being handled
	watching sync.Mutex  // guards current; held while watch looks at it
	current  *attempt    // nil when no message is being handled

	mu     sync.Mutex           // guards inHand
	inHand map[uint64]*delivery // messages that are not answered, by sequence

	handler    call.Call // the goroutine that handles
	halting    atomic.Bool
	fed        chan struct{} // closed when feed has ended
	feedErr    error         // read it once fed is closed
	ended      chan struct{}
	err        error         // why it ended; read it once ended is closed
	abandoned  chan struct{} // closed when its handler did not return in time
	finishOnce sync.Once
}

// start claims the slot and returns a runner that handles the messages of the slot's
// consumer, from the first one that was not answered.
func (s *slot) start(ctx context.Context, members []*member) (*runner, error) {
	if err := s.host.states.asking.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.host.states.asking.Release(1)
	records := make([]*Record, 0, len(members))
	for _, m := range members {
		records = append(records, m.record)
	}
	consumer, stream, err := s.host.consumer(ctx, records[0], topics(records), true)
	if err != nil {
		return nil, err
	}
	r := &runner{
		slot:      s,
		host:      s.host,
		consumer:  consumer,
		members:   members,
		queue:     lanes.New[*delivery](),
		reached:   consumer.CachedInfo().Delivered.Stream,
		inHand:    make(map[uint64]*delivery),
		fed:       make(chan struct{}),
		ended:     make(chan struct{}),
		abandoned: make(chan struct{}),
	}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.taking, r.stopTaking = context.WithCancel(r.ctx)
	source := sourceOf(records[0].Stream, stream.CachedInfo().Created)
	memory := s.host.budget.open()
	r.partition, err = s.host.claim(ctx, s.name, source, records, memory, func(error) { r.halt() })
	if err != nil {
		memory.close()
		r.cancel(nil)
		return nil, err
	}
	if err := r.openConsumer(ctx); err != nil {
		r.cancel(nil)
		r.partition.stop(ctx)
		return nil, err
	}
	r.watchdog = stoppedTimer(r.watch)
	r.partition.timers.startClock(stoppedTimer(r.takeTimers))
	s.partition.Store(r.partition)
	s.host.running.Add(2)
	call.Go("feed of slot "+s.name, r.feed, func(err error) {
		r.feedErr = err
		close(r.fed)
		r.halt()
		s.host.running.Done()
	})
	r.handler.Start(r.ctx, "slot", s.name, r.handleAll, r.end)
	return r, nil
}

// stoppedTimer returns a timer that calls fn once it is Reset.
func stoppedTimer(fn func()) *time.Timer { return time.AfterFunc(math.MaxInt64, fn) }

// sourceOf names a stream. One that is made again under its old name has other messages.
func sourceOf(stream string, created time.Time) string {
	return stream + "@" + strconv.FormatInt(created.UnixNano(), 36)
}

// handleAll handles messages until the queue is closed.
func (r *runner) handleAll() error {
	for {
		if memory := r.partition.memory; memory.await(r.taking, memory.hasRoom) != nil {
			return nil //nolint:nilerr // the runner halts
		}
		t, err := r.queue.Next(r.taking)
		if err != nil {
			return nil //nolint:nilerr // the runner halts
		}
		r.handleOne(t)
		if r.isAbandoned() {
			return nil
		}
		r.refill()
	}
}

// end runs when the handling goroutine has returned: in time, or after the runner was
// abandoned.
func (r *runner) end(err error) {
	inTime := false
	r.finishOnce.Do(func() {
		inTime = true
		r.finish(err)
	})
	if !inTime {
		// The slot does not use these programs any more.
		for _, m := range withCanaries(r.members) {
			r.host.closeProgram(m.record.ID, m.program)
		}
	}
	r.cancel(nil)
	r.host.running.Done()
}

// finish gives back the messages that wait, writes what was handled, and gives up the slot.
func (r *runner) finish(err error) {
	r.halt()
	r.stopTimers()
	ctx, cancel := context.WithTimeout(context.Background(), 2*commitWithin)
	defer cancel()
	r.partition.stop(ctx)
	<-r.fed
	r.err = errors.Join(err, r.feedErr)
	close(r.ended)
}

// halt makes the runner take no more messages, and gives back the waiting ones.
func (r *runner) halt() {
	r.halting.Store(true)
	r.stopTaking()
	for _, d := range r.queue.Close() {
		r.giveBack(d, 0)
	}
}

// isAbandoned reports whether the runner was abandoned, because its handler did not return in
// time.
func (r *runner) isAbandoned() bool { return isClosed(r.abandoned) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// stop ends the runner after the message that it handles. When ctx ends first, stop cancels
// the handler, and abandons it if it does not return within a second.
func (r *runner) stop(ctx context.Context) {
	r.halt()
	select {
	case <-r.ended:
		return
	case <-ctx.Done():
	}
	r.cancel(ErrDetached)
	select {
	case <-r.ended:
		return
	case <-r.abandoned:
	case <-time.After(time.Second):
		r.abandon()
	}
	<-r.ended
}

// abandon stops waiting for a handler that does not return.
func (r *runner) abandon() {
	r.cancel(ErrDetached)
	r.finishOnce.Do(func() {
		close(r.abandoned)
		r.host.log.Warn("hosted worker: its handler does not return and is abandoned",
			"slot", r.slot.name, "error", r.handler.Abandon())
		r.finish(nil)
	})
}
