package procpool

import (
	"errors"
	"slices"
	"time"
)

// endLocked ends a query with an error: as rejected when the error says so. A query that a worker
// has had cannot be rejected any more and ends in error.
func (p *Pool) endLocked(q *Query, err error) {
	_, rejected := err.(*RejectedError) //nolint:errorlint // the error is this package's own
	if rejected && q.finish(QueryRejected, nil, err) {
		return
	}
	if q.finish(QueryError, nil, err) && errors.Is(err, ErrSessionLost) {
		delete(p.lost, q.key) // the caller learns it now; one that has cancelled the query does not
	}
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
	p.countEnd(w.causeLocked(why))
	attempts := slices.Clone(w.attempts)
	for _, a := range attempts {
		w.drop(a)
	}
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
		p.count(&p.stats.Crashed)
		switch {
		case w.readyAt.IsZero() || w.trial:
			if p.reloading.failedLocked(p, w, why) {
				break
			}
			p.failures++
			p.backOffLocked(p.failures, why)
		case len(attempts) == 0:
			if w.proven {
				p.deaths = 0 // only workers that end as soon as they are ready count
			}
			p.deaths++
			p.backOffLocked(p.deaths, why)
		}
	}
	if r := p.reloading; r != nil && errors.Is(w.due, ErrReloaded) && w.program != r.to {
		r.result.Workers++
	}
	for _, a := range attempts {
		p.diedWithLocked(w, a.q, why, len(attempts) == 1)
	}
	p.resizedLocked()
	p.rematchLocked() // queries of new keys may have waited for it
	p.endUnservableLocked()
	p.mu.Unlock()
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
	if q.keyed {
		err = &SessionLostError{Query: q.id, Key: q.key, Err: err}
	}
	return err
}

// backOffLocked makes the pool wait before it starts another worker.
func (p *Pool) backOffLocked(failures int, why error) {
	p.lastFail = why
	p.noStartBefore = time.Now().Add(p.cfg.Backoff.After(failures))
}

// endUnservableLocked ends the waiting queries that no worker can take while the breaker is open.
// A query that waits for the worker of its key stays: the worker takes it, or gives it back when it
// ends.
func (p *Pool) endUnservableLocked() {
	for _, alone := range []bool{false, true} {
		err := p.brokenLocked(alone)
		if err == nil {
			continue
		}
		for _, q := range slices.Clone(p.queue) {
			if q.alone == alone && p.boundLocked(q) == nil {
				p.dequeueLocked(q)
				p.endLocked(q, err)
			}
		}
	}
}

// rematchLocked gives queries that are back in the queue to workers that have a place.
func (p *Pool) rematchLocked() {
	for _, w := range slices.Clone(p.workers) {
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
