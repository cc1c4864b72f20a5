package procpool

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"time"
)

// errAlone is the cause of the end of the extra worker when no query has to run alone.
var errAlone = errors.New("no query has to run alone any more")

// owner is the caller that the query's deaths count against, or else its session.
func (q *Query) owner() string {
	if q.caller == "" && q.sticky() {
		return q.key
	}
	return q.caller
}

// judgeLocked returns why the pool does not take a query that no worker has, and marks one
// that has to run alone.
func (p *Pool) judgeLocked(q *Query, now time.Time) error {
	known := p.memory.about(q.print, now)
	wait := p.memory.waitAfterDeaths(q.owner(), now)
	name := cmp.Or(q.owner(), q.print)
	_, runsNextAlone := p.memory.nextAlone[name]
	switch {
	case wait > 0 && q.attempts == 0:
		return &RejectedError{Pool: p.cfg.Name, RetryAfter: wait, Err: fmt.Errorf("%w: caller %q", ErrDeaths, q.owner())}
	case known != nil && known.Refused:
		err := &PoisonError{Query: q.id, Fingerprint: known.Fingerprint, Deaths: known.Deaths, Err: errors.New(known.Last)}
		return &RejectedError{Pool: p.cfg.Name, RetryAfter: known.Until.Sub(now), Err: err}
	case q.sticky(): // it goes to its key's worker
	case known != nil:
		q.alone = true
	case runsNextAlone && p.alone.Len() <= p.cfg.MaxQueue:
		q.alone = true
		delete(p.memory.nextAlone, name)
	}
	return nil
}

// nextAloneLocked gives the extra worker the oldest query that has to run alone, and
// ends the worker when there is none or when a reload has replaced its program.
func (p *Pool) nextAloneLocked(w *proc) *attempt {
	var next *Query
	for _, l := range []*list.List{p.alone, &w.waiting} {
		if e := l.Front(); e != nil {
			if q, _ := e.Value.(*Query); next == nil || q.before(next) {
				next = q
			}
		}
	}
	if next == nil || w.program != p.program {
		w.stopLocked(true, errAlone)
		return nil
	}
	p.dequeueLocked(next)
	return p.assignLocked(w, next)
}

// ensureAloneLocked starts the extra worker when a query waits for it and there is none.
func (p *Pool) ensureAloneLocked() {
	if p.alone.Len() == 0 || len(p.workers) > p.sizeLocked() || p.backsOffLocked() {
		return
	}
	p.spawnLocked(spawn{alone: true})
}

// diedWithLocked decides about a query of a worker that has ended. only says that the
// worker had no other. It returns the queries that end because of it. See [Poison].
func (p *Pool) diedWithLocked(w *proc, q *Query, why error, only bool) []endedBy {
	q.on = nil
	if queryModel.IsTerminal(q.State()) {
		return nil
	}
	stays := q.sticky() && !q.anew
	repeat := q.idempotent && !q.streamed && !p.ending && !stays
	ends := []endedBy{{q, w.queryError(q, why)}}
	if why == nil || w.broke != nil { // the pool has ended it
		if !repeat || q.attempts >= maxAttempts {
			return ends
		}
		p.counts.retried.Add(1)
		p.enqueueLocked(p.queue, q)
		p.rematchLocked()
		return nil
	}
	now := time.Now()
	if only {
		q.deaths++
		p.memory.countDeath(q.owner(), now)
	}
	switch {
	case only && !stays:
		known := p.memory.recordDeath(q.print, q.caller, w.alone, why, now)
		if w.alone {
			repeat = false
			ends[0].err = &PoisonError{Query: q.id, Fingerprint: q.print, Deaths: known.Deaths, Err: ends[0].err}
		}
	case !repeat && !stays:
		p.memory.runNextAlone(cmp.Or(q.owner(), q.print), now)
	}
	if repeat {
		ends = nil
		p.counts.retried.Add(1)
		q.alone = true
		p.enqueueLocked(p.alone, q)
	}
	for _, other := range p.waitingLocked() {
		was := other.alone
		if err := p.judgeLocked(other, now); err != nil && other != q {
			p.dequeueLocked(other)
			ends = append(ends, endedBy{other, err})
		} else if other.alone && !was {
			p.dequeueLocked(other)
			p.enqueueLocked(p.alone, other)
		}
	}
	return ends
}

// clearLocked forgets the deaths of a query that the extra worker has survived. Queries
// like it need not run alone any more.
func (p *Pool) clearLocked(q *Query) {
	if queryModel.IsTerminal(q.State()) {
		return // the worker has confirmed a cancel; that proves nothing
	}
	if known := p.memory.prints[q.print]; known != nil && !known.Refused {
		delete(p.memory.prints, q.print)
	}
	p.memory.takeBackDeaths(q.owner(), q.deaths, time.Now())
	q.deaths = 0
	for _, other := range p.waitingLocked() {
		if other.in == p.alone && other.deaths == 0 && other.print == q.print {
			p.dequeueLocked(other)
			other.alone = false
			p.enqueueLocked(p.queue, other)
		}
	}
	p.rematchLocked()
}

// Poisoned returns the fingerprints that the pool remembers because workers died of
// their queries: first queries that it refuses, then queries that run alone.
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
