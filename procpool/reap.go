package procpool

import (
	"errors"
	"slices"
	"time"
)

// endedBy is a query and the error that it ends with, once the pool's lock is free.
type endedBy struct {
	q   *Query
	err error
}

// end ends the query as rejected when the error says so. A query that a worker has had
// cannot be rejected any more and ends in error.
func (e endedBy) end() {
	_, rejected := e.err.(*RejectedError) //nolint:errorlint // the error is this package's own
	if rejected && e.q.finish(QueryRejected, nil, e.err) {
		return
	}
	e.q.finish(QueryError, nil, e.err)
}

// reap removes a worker whose process group has ended. why is nil when the pool
// asked it to end.
func (w *proc) reap(why error) {
	p := w.p
	for _, lines := range w.outputs {
		lines.Flush()
	}
	p.mu.Lock()
	w.leaving = true
	p.counts.ended(w.causeLocked(why))
	attempts := slices.Clone(w.attempts)
	for _, a := range attempts {
		w.drop(a)
	}
	p.unreadyLocked(w)
	p.workers = slices.DeleteFunc(p.workers, func(other *proc) bool { return other == w })
	if w.link.State() == ConnConnecting {
		_ = w.link.To(ConnDisconnected, why)
	}
	cause := why
	if cause == nil && !w.gently && !errors.Is(w.cause, ErrEvicted) {
		cause = w.cause
	}
	w.unbindLocked()
	_ = w.machine.To(WorkerDead, cause)
	if why != nil {
		p.counts.crashed.Add(1)
		switch {
		case w.readyAt.IsZero() || w.trial:
			if p.reloading.failedLocked(p, w, why) {
				break
			}
			p.failures++
			p.backOffLocked(p.failures, why)
			p.rematchLocked() // new keys may have waited for it
		case len(attempts) == 0:
			if w.proven {
				p.deaths = 0 // only workers that end as soon as they are ready count
			}
			p.deaths++
			p.backOffLocked(p.deaths, why)
		}
	}
	if old := w.replaces; old != nil {
		old.successor, w.replaces = nil, nil
	}
	if r := p.reloading; r != nil && errors.Is(w.due, ErrReloaded) && w.program != r.to {
		r.result.Workers++
	}
	var ended []endedBy
	for _, a := range attempts {
		ended = append(ended, p.diedWithLocked(w, a.q, why, len(attempts) == 1)...)
	}
	p.resizedLocked()
	p.ensureLocked()
	ended = append(ended, p.unservableLocked()...)
	p.mu.Unlock()
	for _, e := range ended {
		e.end()
	}
	if why != nil {
		p.log.Warn("procpool: a worker has ended", "worker", w.name, "error", why)
	}
}

// queryError returns the error of a query whose worker has ended.
func (w *proc) queryError(q *Query, why error) error {
	var err error
	var protocol *ProtocolError
	var crash *CrashError
	switch {
	case errors.As(why, &protocol):
		err = &ProtocolError{Query: q.id, Worker: w.name, Err: protocol.Err}
	case errors.As(why, &crash):
		c := *crash
		c.Query = q.id
		err = &c
	case why == nil:
		err = w.crash(q.id, w.cause)
	default:
		err = w.crash(q.id, why)
	}
	if q.sticky() {
		err = &SessionLostError{Query: q.id, Key: q.key, Err: err}
	}
	return err
}

// backOffLocked makes the pool wait before it starts another worker.
func (p *Pool) backOffLocked(failures int, why error) {
	p.lastFail = why
	p.noStartBefore = time.Now().Add(p.cfg.Backoff.After(failures))
}

// unservableLocked removes the waiting queries from the queues that no worker can take while
// the breaker is open, and returns them with their errors. A query in a worker's own list stays: the
// worker takes it, or gives it back when it ends.
func (p *Pool) unservableLocked() (ends []endedBy) {
	any, alone := p.brokenLocked(false), p.brokenLocked(true)
	for _, q := range p.waitingLocked() {
		var err error
		switch q.in {
		case p.queue:
			err = any
		case p.alone:
			err = alone
		}
		if err != nil {
			p.dequeueLocked(q)
			ends = append(ends, endedBy{q, err})
		}
	}
	return ends
}

// rematchLocked gives queries that are back in the queue to ready workers.
func (p *Pool) rematchLocked() {
	for _, w := range slices.Clone(p.ready) {
		p.fillLocked(w)
	}
	p.ensureLocked()
}

// sendLater sends an attempt, nil for none, for a caller that holds the lock.
func (p *Pool) sendLater(w *proc, a *attempt) {
	if a == nil {
		return
	}
	p.alive.Go(func() { w.send(a) })
}
