package procpool

import (
	"bytes"
	"container/list"
	"errors"
	"fmt"
	"time"
)

// errAlone is the cause of the end of an extra worker that has served its query.
var errAlone = errors.New("it was started for one query")

// poisonedLocked returns why the pool does not take a query, and marks one that has to
// run alone.
func (p *Pool) poisonedLocked(q *Query) error {
	if wait := p.memory.spent(q.caller, q.begun); wait > 0 {
		return p.overdrawn(q, wait)
	}
	if q.print == "" || len(p.memory.prints) == 0 {
		return nil
	}
	known := p.memory.about(q.print, q.begun)
	if known != nil && known.Refused {
		return p.refused(q, known)
	}
	q.alone = known != nil
	return nil
}

// overdrawn is the error of a query whose caller has spent its deaths.
func (p *Pool) overdrawn(q *Query, wait time.Duration) error {
	return &RejectedError{Pool: p.cfg.Name, RetryAfter: wait, Err: fmt.Errorf("%w: caller %q", ErrDeaths, q.caller)}
}

// refused is the error of a query whose fingerprint is known.
func (p *Pool) refused(q *Query, known *Poisoned) error {
	return &RejectedError{
		Pool: p.cfg.Name, RetryAfter: time.Until(known.Until),
		Err: &PoisonError{Query: q.id, Fingerprint: known.Fingerprint, Deaths: known.Deaths, Err: errors.New(known.Last)},
	}
}

// nextAloneLocked gives an extra worker the oldest query that has to run alone, and
// ends the worker when there is none.
func (p *Pool) nextAloneLocked(w *proc) *attempt {
	e := p.alone.Front()
	if e == nil {
		w.stopLocked(true, errAlone)
		return nil
	}
	q, _ := e.Value.(*Query)
	p.dequeueLocked(q)
	return p.assignLocked(w, q)
}

// ensureAloneLocked starts an extra worker when a query waits for one and there is
// none.
func (p *Pool) ensureAloneLocked() {
	if p.alone.Len() == 0 || len(p.workers) > p.sizeLocked() || p.backsOffLocked() {
		return
	}
	p.spawnLocked(spawn{alone: true})
}

// diedWithLocked decides about a query of a worker that has ended. of is how
// many the worker had: of several it is not known which was the cause, so those that
// may be repeated are tried alone before anything is held against them. It returns the
// queries that end because of it.
func (p *Pool) diedWithLocked(w *proc, q *Query, why error, of int) []endedBy {
	q.on = nil
	repeat := q.idempotent && !q.streamed && !p.ending && !queryModel.IsTerminal(q.State())
	if why == nil || w.broke != nil || queryModel.IsTerminal(q.State()) { // the pool has ended it
		if !repeat || q.attempts >= maxAttempts {
			return []endedBy{{q, w.queryError(q, why)}}
		}
		p.counts.retried.Add(1)
		p.enqueueLocked(p.queue, q)
		p.rematchLocked()
		return nil
	}
	if of > 1 && repeat {
		p.counts.retried.Add(1)
		q.alone = true
		p.enqueueLocked(p.alone, q)
		return nil
	}
	now := time.Now()
	q.deaths++
	known := p.memory.died(q.print, q.caller, w.alone, why, now)
	p.recalls.Store(true)
	p.memory.charge(q.caller, 1/float64(of), now)
	var out []endedBy
	switch {
	case known.Refused:
		out = append(out, endedBy{q, &PoisonError{Query: q.id, Fingerprint: known.Fingerprint, Deaths: known.Deaths, Err: w.queryError(q, why)}})
	case repeat:
		p.counts.retried.Add(1)
		q.alone = true
		p.enqueueLocked(p.alone, q)
	default:
		out = append(out, endedBy{q, w.queryError(q, why)})
	}
	wait := p.memory.spent(q.caller, now)
	for _, other := range p.waitingLocked() {
		switch {
		case other == q:
		case known.Refused && other.like(q):
			p.dequeueLocked(other)
			out = append(out, endedBy{other, p.refused(other, known)})
		case wait > 0 && other.caller == q.caller && other.attempts == 0:
			p.dequeueLocked(other)
			out = append(out, endedBy{other, p.overdrawn(other, wait)})
		case !other.alone && other.like(q):
			p.dequeueLocked(other)
			other.alone = true
			p.enqueueLocked(p.alone, other)
		}
	}
	return out
}

// clearLocked forgets the deaths of a query that an extra worker has survived. Queries
// like it need no extra worker any more.
func (p *Pool) clearLocked(q *Query) {
	if queryModel.IsTerminal(q.State()) {
		return // the worker has confirmed a cancel; that proves nothing
	}
	p.memory.clear(q.print)
	p.memory.charge(q.caller, -float64(q.deaths), time.Now())
	q.deaths = 0
	for _, other := range p.waitingLocked() {
		if other.alone && other.deaths == 0 && other.like(q) {
			p.dequeueLocked(other)
			other.alone = false
			p.enqueueLocked(p.queue, other)
		}
	}
	p.rematchLocked()
}

// like reports whether two queries have the same fingerprint.
func (q *Query) like(other *Query) bool {
	if q.marked || other.marked {
		return q.marked && other.marked && q.print == other.print
	}
	return bytes.Equal(q.payload, other.payload) && bytes.Equal(q.data, other.data)
}

// waitingLocked returns all queries that wait.
func (p *Pool) waitingLocked() []*Query {
	all := make([]*Query, 0, p.waiting)
	from := func(l *list.List) {
		for e := l.Front(); e != nil; e = e.Next() {
			if q, ok := e.Value.(*Query); ok {
				all = append(all, q)
			}
		}
	}
	from(p.queue)
	from(p.alone)
	for _, w := range p.workers {
		from(&w.waiting)
	}
	return all
}

// Poisoned returns the fingerprints that the pool remembers because workers died of
// their queries: those that it refuses first, then those that run alone.
func (p *Pool) Poisoned() []Poisoned {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.memory.list(time.Now())
}

// Release makes the pool forget a fingerprint, for example after the program was
// repaired. It returns false for one that the pool does not remember.
func (p *Pool) Release(fingerprint string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.memory.about(fingerprint, time.Now())
	delete(p.memory.prints, fingerprint)
	return known != nil
}
