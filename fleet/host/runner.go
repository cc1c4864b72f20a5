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
	sem      chan struct{} // of size 1; held to handle a message and to change members
	prefetch int

	ctx    context.Context // of the handlers; ends when the runner is abandoned
	cancel context.CancelCauseFunc

	began   atomic.Int64 // when the running handler was called, in Unix nanoseconds; 0 when none runs
	limit   atomic.Int64 // the time limit of the running handler, in nanoseconds
	message atomic.Pointer[delivery]

	life      call.Call // the goroutine that consumes
	halting   atomic.Bool
	iterator  atomic.Pointer[iterator]
	ended     chan struct{}
	err       error         // why it ended; read it once ended is closed
	abandoned chan struct{} // closed when its handler did not return in time
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
	body   string // the HeaderBody, when header and data were not in the message itself
	member *member
	tries  tries        // counts this delivery too
	beat   atomic.Int64 // when the server last heard of it, in Unix nanoseconds
	state  *handle
	cancel context.CancelCauseFunc
	failed atomic.Bool // the watch has answered it, or left it to another host
}

// end runs when the consuming goroutine has returned: in time, or after the runner
// was abandoned.
func (r *runner) end(err error) {
	inTime := false
	r.leave.Do(func() {
		inTime = true
		r.err = err
		close(r.ended)
	})
	if !inTime {
		// The slot has loaded new programs; only this runner still used these.
		for _, m := range *r.members.Load() {
			r.host.closeProgram(m.record.ID, m.program)
		}
	}
	r.cancel(nil)
	r.host.running.Done()
}

// isAbandoned reports whether the runner was abandoned, because its handler did not
// return in time.
func (r *runner) isAbandoned() bool {
	select {
	case <-r.abandoned:
		return true
	default:
		return false
	}
}

// swap changes the members between two messages. It returns false when the runner has
// ended or was abandoned.
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

// stop ends the runner after the message that it handles. When ctx ends first, stop
// cancels the handler, and abandons it if it does not return within a second.
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

// handBack gives back the messages that wait for an abandoned handler. It ends after
// AckWait, when the server delivers them again by itself.
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

// noWord is the interval of the heartbeats that the server sends while it has no
// message. After two intervals without a heartbeat the runner asks for messages
// again, because a restarted server may have lost the request.
const noWord = 5 * time.Second

// consume handles messages until the runner halts, is abandoned, or fails.
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

// drainInto handles the messages of the iterator it. It returns nil when the
// runner halts or was abandoned, or when the prefetch has to change.
func (r *runner) drainInto(it jetstream.MessagesContext) error {
	slower := false
	quick := 0 // quick messages in a row
	for {
		m, err := it.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("consumer %s: %w", r.slot.name, err)
		}
		if r.halting.Load() || slower {
			_ = m.Nak() // not handled; this delivery does not count
			continue
		}
		began := time.Now()
		r.sem <- struct{}{}
		r.one(m)
		<-r.sem
		if r.isAbandoned() {
			return nil
		}
		// Each waiting message must get its turn well before its AckWait ends.
		if took := time.Since(began); took*time.Duration(r.prefetch) > r.host.cfg.AckWait/2 && r.prefetch > 1 {
			r.prefetch = max(1, int(r.host.cfg.AckWait/4/took))
			slower = true
			it.Drain()
		} else if quick++; r.prefetch < r.host.cfg.Prefetch && quick > 8*r.prefetch && took*time.Duration(8*r.prefetch) < r.host.cfg.AckWait/4 {
			r.prefetch = min(r.host.cfg.Prefetch, 4*r.prefetch)
			it.Drain() // handle the waiting messages, then ask for more at a time
		}
	}
}

// watch sends heartbeats to the server and enforces the time limit while handlers
// run.
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

// patience is how long a handler may take to return once its context has ended.
const patience = 2 * time.Second

func (r *runner) look(now time.Time) {
	began := r.began.Load()
	d := r.message.Load()
	if d == nil {
		return
	}
	cfg := &r.host.cfg
	since := time.Duration(now.UnixNano() - d.beat.Load())
	switch {
	case since > cfg.AckWait*3/4 || !r.host.members.held():
		// Another host may have the message by now: end this handler.
		d.cancel(ErrDetached)
		if since > cfg.AckWait+patience {
			d.failed.Store(true)
			r.abandon()
		}
		return
	case since > cfg.AckWait/4:
		r.heartbeat(d)
	}
	if began == 0 {
		return // it waits for its turn, or for its program
	}
	ran := time.Duration(now.UnixNano() - began)
	limit := time.Duration(r.limit.Load())
	if ran > limit {
		d.cancel((engine.Limits{Time: limit}).TimeLimit())
	}
	if ran > limit+patience {
		// The handler ignores its context. Answer the message in its place and give
		// it no other. Its state is never written.
		if d.failed.CompareAndSwap(false, true) {
			r.fail(d, d.tries.Failed+1, fmt.Errorf("%w, and its handler does not return and is abandoned", (engine.Limits{Time: limit}).TimeLimit()))
			r.abandon()
		}
	}
}

// heartbeat tells the server that the message is being handled. It updates d.beat
// only once the server has got the heartbeat.
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
