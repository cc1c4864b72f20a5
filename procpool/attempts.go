package procpool

import "slices"

// A worker may offer to have several queries at a time. While it has free
// places it is ready, and busy means that it is full. The methods below need the
// pool's lock.

// full reports whether the worker has as many queries as it takes.
func (w *proc) full() bool { return len(w.attempts) >= w.places }

// isFree reports whether the worker may get a query now.
func (w *proc) isFree() bool { return w.usable() && !w.trial && !w.full() }

// idle reports whether the worker has no query.
func (w *proc) idle() bool { return len(w.attempts) == 0 }

// has reports whether the worker has the attempt.
func (w *proc) has(a *attempt) bool { return a != nil && slices.Contains(w.attempts, a) }

// find returns the worker's attempt with an id, nil for none.
func (w *proc) find(id string) *attempt {
	for _, a := range w.attempts {
		if a.id == id {
			return a
		}
	}
	return nil
}

// drop takes an attempt from the worker.
func (w *proc) drop(a *attempt) {
	w.attempts = slices.DeleteFunc(w.attempts, func(other *attempt) bool { return other == a })
	if a.confirm != nil {
		a.confirm.Stop()
		a.confirm = nil
	}
}

// runs reports whether the worker has a query of the query's key. Its queries run one after
// the other.
func (w *proc) runs(q *Query) bool {
	return q.keyed && slices.ContainsFunc(w.attempts, func(a *attempt) bool {
		return a.q.keyed && a.q.key == q.key
	})
}

// mayWaitToWrite reports whether the write of a query may have to wait for the worker, or
// for the queries of others: its caller must not wait for that beyond its deadline.
func (w *proc) mayWaitToWrite(q *Query) bool {
	if q.size() > smallWrite || !w.wmu.TryLock() {
		return true
	}
	defer w.wmu.Unlock()
	return w.behind
}

// fillLocked gives a worker queries until it is full or none waits that it may take.
func (p *Pool) fillLocked(w *proc) {
	for a := p.nextLocked(w); a != nil; a = p.nextLocked(w) {
		p.sendLater(w, a)
		w.ensureReadingLocked()
	}
}
