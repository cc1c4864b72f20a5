package host

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// attempt is one handling of a delivery by a version of a worker.
type attempt struct {
	*delivery
	member *member
	tries  tries // counts this attempt too
	state  *handle
	cancel context.CancelCauseFunc

	began    atomic.Int64 // when the handler was called, in Unix nanoseconds; 0 while it does not run
	lastBeat time.Time    // when the server last heard of the message; only watch uses it
	answered atomic.Bool  // set by the first that answers the message: the handling goroutine, or watch in its place
}

// handleOne handles one message, or decides that it has to wait.
func (r *runner) handleOne(t *task) {
	d := t.Value
	if d.timer != nil {
		exists, err := r.completeTimer(r.ctx, d)
		if err != nil {
			r.postpone(t, d, err)
			return
		}
		if !exists {
			r.queue.Done(t)
			return
		}
	}
	was := r.earlierTries(d)
	if was.Letter != nil {
		r.storeDeadLetter(t, d, *was.Letter)
		return
	}
	m := r.memberFor(d)
	if m == nil {
		r.withoutMember(t, d)
		return
	}
	if wait := m.takeToken(); wait > 0 {
		r.retryLater(t, d, wait)
		return
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	a := &attempt{
		delivery: d,
		member:   m.versionFor(d, was),
		tries:    was,
		cancel:   cancel,
		lastBeat: time.Now(),
	}
	r.setCurrent(a)
	defer r.setCurrent(nil)
	if size, most := len(d.data), r.host.cfg.MaxMessage; size > most {
		r.giveUp(t, a, a.tries.Failed+1, fmt.Errorf("the message has %d bytes, more than the limit of %d", size, most))
		return
	}
	giveBackPlace, err := r.prepare(ctx, a)
	if err != nil {
		r.retryLater(t, d, r.host.cfg.RetryBase) // its code was not called
		return
	}
	defer giveBackPlace()
	if !r.countDelivery(ctx, t, a) {
		return
	}
	effects, err := r.run(ctx, t, a)
	if !a.answered.CompareAndSwap(false, true) {
		return // watch has answered
	}
	if err != nil {
		r.fail(t, a, err)
		return
	}
	r.judge(a, false)
	r.done(t, d, effects, func() {
		a.member.counts.Succeeded.Add(1)
		_ = d.acker.Load().ack()
	})
}

// earlierTries returns what earlier deliveries of a message have come to.
func (r *runner) earlierTries(d *delivery) tries {
	if d.timer == nil {
		return r.partition.earlierTries(d.seq)
	}
	was := d.timer.Tries
	was.Begun = max(was.Begun, 1)
	return was
}

// memberFor returns the member that handles a delivery, nil if there is none. A timer belongs
// to the worker that has set it.
func (r *runner) memberFor(d *delivery) *member {
	owner := d.header.Get(HeaderTimerWorker)
	isFromTimer := d.timer != nil || d.redriven && owner != ""
	if isFromTimer {
		for _, m := range r.members {
			isSameWorker := d.timer == nil || m.record.UID == d.timer.worker.uid // not a new worker of the old name
			if m.record.ID == owner && isSameWorker {
				m.turn.Store(r.slot.turn.Add(1))
				return m
			}
		}
	}
	if d.timer != nil {
		return nil
	}
	return r.pick(d.topic)
}

// pick returns the member that handles a message on subject: the one that has waited longest
// among those whose topic matches, or nil if there is none.
func (r *runner) pick(subject string) *member {
	var found *member
	for _, m := range r.members {
		if matches(m.record.Topic, subject) && (found == nil || m.turn.Load() < found.turn.Load()) {
			found = m
		}
	}
	if found != nil {
		found.turn.Store(r.slot.turn.Add(1))
	}
	return found
}

// withoutMember keeps a message of a group for later, because no worker for it is loaded. It keeps the
// message in the stream of the dead letters, so that the message does not hold up the group.
func (r *runner) withoutMember(t *task, d *delivery) {
	if err := r.host.hold(r.ctx, r.slot.name, d); err != nil {
		r.postpone(t, d, err)
		return
	}
	r.done(t, d, &step{}, func() { _ = d.acker.Load().ack() })
}

// prepare waits for a place for the handler of a message, unless the runner halts, and makes the
// program ready. It returns a function that gives the place back. A program in this process needs no
// place.
func (r *runner) prepare(ctx context.Context, a *attempt) (giveBackPlace func(), err error) {
	m := a.member
	p, ok := m.program.(engine.Preparer)
	if !ok {
		return func() {}, nil
	}
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	defer context.AfterFunc(r.taking, giveUp)()
	rec := m.record
	leave, err := r.host.budget.tenant(rec.Tenant, r.host.bounds(rec.Tenant)).enter(waiting, m.slow.Load())
	if err != nil {
		return nil, err
	}
	if err := call.Do("engine", func() error { return p.Prepare(ctx) }); err != nil {
		leave()
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		r.slot.codeFailed(rec, fmt.Errorf("load code: %w", m.redactor.err(err)))
		r.halt()
		return nil, err
	}
	began := time.Now()
	return func() {
		m.slow.Store(time.Since(began) > slowAfter)
		leave()
	}, nil
}

// countDelivery writes to the log that a handler is about to be called, when an earlier host may
// have called one for the message. A message that was given back before its handler was called
// does not count. It reports false when the handler must not be called.
func (r *runner) countDelivery(ctx context.Context, t *task, a *attempt) bool {
	if !a.maybeHandled {
		return true
	}
	if begun, failed := a.tries.Begun, a.tries.Failed; begun-failed > r.host.cfg.MaxUnanswered {
		r.giveUp(t, a, failed, fmt.Errorf("begun %d times and answered %d times: "+
			"each other host died before it reported the outcome", begun, failed))
		return false
	}
	a.tries.Begun++
	noted := a.tries
	if err := r.partition.commit(ctx, a.attach(&step{tries: &noted})); err != nil {
		r.retryLater(t, a.delivery, r.host.cfg.RetryBase)
		return false
	}
	a.maybeHandled = false
	return true
}

// postpone makes a message wait, because its data or its worker could not be read.
func (r *runner) postpone(t *task, d *delivery, why error) {
	r.host.log.Warn("hosted worker: message", "slot", r.slot.name, "message", d.id, "error", why)
	r.retryLater(t, d, r.host.cfg.RetryBase)
}

// retryLater makes a message wait for another attempt. It holds up the later messages of its
// key, so that their order is kept. A runner that halts gives the message back. t is nil when
// the runner was abandoned.
func (r *runner) retryLater(t *task, d *delivery, delay time.Duration) {
	switch {
	case t == nil:
		r.giveBack(d, delay)
	case !r.queue.Retry(t, delay):
		r.giveBack(d, 0)
	}
}
