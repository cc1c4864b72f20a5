package host

import (
	"context"
	"fmt"
	"time"
)

// unresponsive is how long a handler may take to return once its context has ended.
const unresponsive = 2 * time.Second

// setCurrent begins the watch over an attempt, or ends it for nil. It waits while watch looks at
// the attempt before.
func (r *runner) setCurrent(a *attempt) {
	r.watching.Lock()
	defer r.watching.Unlock()
	if r.current = a; a == nil {
		r.watchdog.Stop()
		return
	}
	r.watchdog.Reset(r.watchPeriod())
}

// watchPeriod returns the time between two looks at a message.
func (r *runner) watchPeriod() time.Duration {
	return min(max(r.host.cfg.AckWait/6, 10*time.Millisecond), 250*time.Millisecond)
}

// watch looks at the message that is being handled: it sends heartbeats to the server and
// enforces the time limit.
func (r *runner) watch() {
	r.watching.Lock()
	defer r.watching.Unlock()
	if a := r.current; a != nil && !isClosed(r.ended) && !r.isAbandoned() {
		r.look(a, time.Now())
		r.watchdog.Reset(r.watchPeriod())
	}
}

func (r *runner) look(a *attempt, now time.Time) {
	ackWait := r.host.cfg.AckWait
	silent := now.Sub(a.lastBeat)
	anotherMayHaveIt := silent > ackWait*3/4 || !r.host.members.held()
	switch {
	case anotherMayHaveIt:
		a.cancel(ErrDetached)
		if silent > ackWait+unresponsive && a.answered.CompareAndSwap(false, true) {
			r.abandon()
		}
		return
	case silent > ackWait/4:
		r.heartbeat(a)
	}
	began := a.began.Load()
	if began == 0 {
		return // it waits for its turn, or for its program
	}
	limits := a.member.limits
	ran := time.Duration(now.UnixNano() - began)
	if ran > limits.Time {
		a.cancel(limits.TimeLimit())
	}
	if ran > limits.Time+unresponsive && a.answered.CompareAndSwap(false, true) {
		// The handler ignores its context. Answer the message in its place, and give it no
		// further message. Its state is never written.
		r.fail(nil, a, fmt.Errorf("%w, and its handler does not return and is abandoned", limits.TimeLimit()))
		r.abandon()
	}
}

// heartbeat tells the server that the message is being handled. It counts only once the
// server has got it.
func (r *runner) heartbeat(a *attempt) {
	sent := time.Now()
	if a.acker.Load().inProgress() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.host.cfg.AckWait/4)
	defer cancel()
	if r.host.nc.FlushWithContext(ctx) == nil {
		a.lastBeat = sent
	}
}
