package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// runner takes messages from a consumer and hands them to programs, one at a
// time.
type runner struct {
	slot     *slot
	host     *Host
	consumer jetstream.Consumer
	fence    uint64
	members  atomic.Pointer[[]*member]
	sem      chan struct{} // held while a message is handled: members change only without it
	prefetch int

	ctx    context.Context // of the handlers; ends when the runner is abandoned
	cancel context.CancelCauseFunc

	began   atomic.Int64 // when the handler that runs was called, in nanoseconds; 0 when none does
	limit   atomic.Int64 // and its time limit
	message atomic.Pointer[delivery]

	life      call.Call // the goroutine that consumes
	halting   atomic.Bool
	iterator  atomic.Pointer[iterator]
	ended     chan struct{}
	err       error         // why, once ended is closed
	abandoned chan struct{} // closed when its handler did not return
	leave     sync.Once
}

type iterator struct{ jetstream.MessagesContext }

// delivery is a message that is being handled.
type delivery struct {
	msg    jetstream.Msg
	meta   *jetstream.MsgMetadata
	id     string
	header nats.Header
	data   []byte
	body   string // where the two were, when the message itself does not have them
	member *member
	tries  tries        // with this delivery
	beat   atomic.Int64 // when the server last heard of it, in nanoseconds
	state  *handle
	cancel context.CancelCauseFunc
	failed atomic.Bool // the watch has answered it
}

// end is called when the goroutine has returned: in time, or long after the
// runner was abandoned.
func (r *runner) end(err error) {
	inTime := false
	r.leave.Do(func() {
		inTime = true
		r.err = err
		close(r.ended)
	})
	if !inTime {
		// The slot has loaded other programs: only this runner still had these.
		for _, m := range *r.members.Load() {
			r.host.closeProgram(m.record.ID, m.program)
		}
	}
	r.cancel(nil)
	r.host.running.Done()
}

// isAbandoned reports whether the handler did not return in time.
func (r *runner) isAbandoned() bool {
	select {
	case <-r.abandoned:
		return true
	default:
		return false
	}
}

// swap changes the members between two messages. It reports false when the
// runner is over or abandoned.
func (r *runner) swap(next []*member) bool {
	select {
	case r.sem <- struct{}{}:
		r.members.Store(&next)
		<-r.sem
		return true
	case <-r.ended:
	case <-r.abandoned:
	}
	return false
}

// stop ends the runner after the message that it handles, or with ctx.
func (r *runner) stop(ctx context.Context) {
	r.halting.Store(true)
	if it := r.iterator.Load(); it != nil {
		it.Drain()
	}
	select {
	case <-r.ended:
		return
	case <-r.abandoned:
		return
	case <-ctx.Done():
	}
	r.cancel(ErrDetached)
	select {
	case <-r.ended:
	case <-r.abandoned:
	case <-time.After(time.Second):
		r.abandon()
	}
}

// abandon stops waiting for a handler that does not return.
func (r *runner) abandon() {
	r.cancel(ErrDetached)
	r.leave.Do(func() {
		close(r.abandoned)
		close(r.ended)
		if it := r.iterator.Load(); it != nil {
			it.Drain()
			r.host.running.Go(func() { r.handBack(it) })
		}
		r.host.log.Warn("hosted worker: its handler does not return and is abandoned", "slot", r.slot.name, "err", r.life.Abandon())
	})
}

// handBack gives back the messages that wait for an abandoned handler. After
// AckWait the server has done so itself.
func (r *runner) handBack(it jetstream.MessagesContext) {
	ctx, cancel := context.WithTimeout(context.Background(), r.host.cfg.AckWait)
	defer cancel()
	for {
		m, err := it.Next(jetstream.NextContext(ctx))
		if err != nil {
			it.Stop()
			return
		}
		_ = m.Nak()
	}
}

// noWord is how often a server that has no message says so. After twice as long
// without it the messages are asked for again: a server that has restarted may
// know nothing of what was asked for.
const noWord = 5 * time.Second

// consume handles messages until it is told to stop.
func (r *runner) consume() error {
	for !r.halting.Load() {
		it, err := r.consumer.Messages(jetstream.PullMaxMessages(r.prefetch), jetstream.PullExpiry(30*time.Second), jetstream.PullHeartbeat(noWord))
		if err != nil {
			return err
		}
		r.iterator.Store(&iterator{it})
		if r.halting.Load() {
			it.Drain()
		}
		err = r.drainInto(it)
		it.Stop()
		if err != nil || r.isAbandoned() {
			return err
		}
	}
	return nil
}

// drainInto handles what it has. nil means that the runner halts, or that it
// wants to prefetch less or more.
func (r *runner) drainInto(it jetstream.MessagesContext) error {
	slower := false
	quick := 0 // messages in a row
	for {
		m, err := it.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("consumer %s: %w", r.slot.name, err)
		}
		if r.halting.Load() || slower {
			_ = m.Nak() // not handled, and no attempt
			continue
		}
		began := time.Now()
		r.sem <- struct{}{}
		r.one(m)
		<-r.sem
		if r.isAbandoned() {
			return nil
		}
		// What waits here must have its turn well before the server asks for it.
		if took := time.Since(began); took*time.Duration(r.prefetch) > r.host.cfg.AckWait/2 && r.prefetch > 1 {
			r.prefetch = max(1, int(r.host.cfg.AckWait/4/took))
			slower = true
			it.Drain()
		} else if quick++; r.prefetch < r.host.cfg.Prefetch && quick > 8*r.prefetch && took*time.Duration(8*r.prefetch) < r.host.cfg.AckWait/4 {
			r.prefetch = min(r.host.cfg.Prefetch, 4*r.prefetch)
			it.Drain() // what waits is handled, and then more is asked for at a time
		}
	}
}

// watch keeps the server and the time limit satisfied while handlers run.
func (r *runner) watch() {
	period := min(max(r.host.cfg.AckWait/6, 10*time.Millisecond), 250*time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.look(time.Now())
		case <-r.ended:
			return
		}
	}
}

// patience is what a handler gets to return in once its context has ended.
const patience = 2 * time.Second

func (r *runner) look(now time.Time) {
	began := r.began.Load()
	d := r.message.Load()
	if began == 0 || d == nil {
		return
	}
	cfg := &r.host.cfg
	since := time.Duration(now.UnixNano() - d.beat.Load())
	switch {
	case since > cfg.AckWait*3/4 || !r.host.members.held():
		// The message may be another host's by now: this handler is over.
		d.cancel(ErrDetached)
		if since > cfg.AckWait+patience {
			d.failed.Store(true)
			r.abandon()
		}
		return
	case since > cfg.AckWait/4:
		r.heartbeat(d)
	}
	ran := time.Duration(now.UnixNano() - began)
	limit := time.Duration(r.limit.Load())
	if ran > limit {
		d.cancel((engine.Limits{Time: limit}).TimeLimit())
	}
	if ran > limit+patience {
		// It ignores its context. The message is answered for it, and it gets
		// nothing more: its state is never written.
		if d.failed.CompareAndSwap(false, true) {
			r.fail(d, d.tries.Failed+1, fmt.Errorf("%w, and its handler does not return and is abandoned", (engine.Limits{Time: limit}).TimeLimit()))
			r.abandon()
		}
	}
}

// heartbeat tells the server that the message is being handled, and counts only
// once the server has it.
func (r *runner) heartbeat(d *delivery) {
	sent := time.Now()
	if d.msg.InProgress() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.host.cfg.AckWait/4)
	defer cancel()
	if r.host.nc.FlushWithContext(ctx) == nil {
		d.beat.Store(sent.UnixNano())
	}
}
