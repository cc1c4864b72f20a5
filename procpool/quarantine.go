package procpool

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// errAlone is the cause of the end of the extra worker when no query has to run alone.
var errAlone = errors.New("no query has to run alone any more")

// judgeLocked returns why the pool does not take a query that no worker has, and marks one
// that has to run alone. A query with a key goes to its key's worker.
func (p *Pool) judgeLocked(q *Query, now time.Time) error {
	known := p.knownLocked(q.print, now)
	wait := p.waitAfterDeathsLocked(q.owner(), now)
	name := cmp.Or(q.owner(), q.print)
	_, runsNextAlone := p.nextAlone[name]
	switch {
	case wait > 0 && q.attempts == 0:
		return &RejectedError{Pool: p.cfg.Name, RetryAfter: wait, Err: fmt.Errorf("%w: caller %q", ErrDeaths, q.owner())}
	case known != nil && known.Refused:
		err := &PoisonError{Query: q.id, Fingerprint: known.Fingerprint, Deaths: known.Deaths, Err: errors.New(known.Last)}
		return &RejectedError{Pool: p.cfg.Name, RetryAfter: known.Until.Sub(now), Err: err}
	case q.keyed:
	case known != nil:
		q.alone = true
	case runsNextAlone:
		if p.waitAloneLocked() <= p.cfg.MaxQueue {
			q.alone = true
			delete(p.nextAlone, name)
		}
	}
	return nil
}

// nextAloneLocked gives the extra worker the first query that has to run alone, and
// ends the worker when there is none or when a reload has replaced its program.
func (p *Pool) nextAloneLocked(w *proc) *attempt {
	var next *attempt
	if w.program == p.program {
		next = p.nextLocked(w)
	}
	if next == nil && w.idle() {
		w.stopLocked(true, errAlone)
	}
	return next
}

// ensureAloneLocked starts the extra worker when a query waits for it and there is none.
func (p *Pool) ensureAloneLocked() {
	if len(p.workers) > p.sizeLocked() || p.waitAloneLocked() == 0 || p.backsOffLocked() {
		return
	}
	p.spawnLocked(spawn{alone: true})
}

// diedWithLocked decides about a query of a worker that has ended. only says that the worker had
// no other. See [Poison].
func (p *Pool) diedWithLocked(w *proc, q *Query, why error, only bool) {
	q.on = nil
	if queryModel.IsTerminal(q.State()) {
		return
	}
	stays := q.keyed && !q.anew
	repeat := q.idempotent && !q.streamed && !p.ending && !stays
	err := w.queryError(q, why)
	if why == nil || w.broke != nil { // the pool has ended it
		if !repeat || q.attempts >= maxAttempts {
			p.endLocked(q, err)
			return
		}
		p.count(&p.stats.Retried)
		p.enqueueLocked(q)
		p.rematchLocked()
		return
	}
	now := time.Now()
	if only {
		q.deaths++
		if owner := q.owner(); owner != "" {
			p.blamed[owner] = append(p.deathsLocked(owner, now), now)
		}
	}
	switch {
	case only && !stays:
		known := p.recordDeathLocked(q, w.alone, why, now)
		if w.alone {
			repeat = false
			err = &PoisonError{Query: q.id, Fingerprint: q.print, Deaths: known.Deaths, Err: err}
		}
	case !repeat && !stays:
		// Otherwise a query that may not run again, and that shares its worker, would never run
		// alone: a caller that sends a different one each time could kill workers for ever.
		p.nextAlone[cmp.Or(q.owner(), q.print)] = now
	}
	if repeat {
		p.count(&p.stats.Retried)
		q.alone = true
		p.enqueueLocked(q)
	} else {
		p.endLocked(q, err)
	}
	for _, other := range slices.Clone(p.queue) {
		if err := p.judgeLocked(other, now); err != nil {
			p.dequeueLocked(other)
			p.endLocked(other, err)
		}
	}
}

// clearLocked forgets the deaths of a query that the extra worker has survived. Queries
// like it need not run alone any more.
func (p *Pool) clearLocked(q *Query) {
	if queryModel.IsTerminal(q.State()) {
		return // the worker has confirmed a cancel; that proves nothing
	}
	if known := p.poisoned[q.print]; known != nil && !known.Refused {
		delete(p.poisoned, q.print)
	}
	all := p.deathsLocked(q.owner(), time.Now())
	p.blamed[q.owner()] = all[:max(len(all)-q.deaths, 0)]
	q.deaths = 0
	for _, other := range p.queue {
		if other.alone && other.deaths == 0 && other.print == q.print {
			other.alone = false
		}
	}
	p.rematchLocked()
}

// Poisoned returns the fingerprints that the pool remembers because workers died of
// their queries: first queries that it refuses, then queries that run alone, and of each the
// newest first.
func (p *Pool) Poisoned() []Poisoned {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Poisoned
	for print := range p.poisoned {
		if known := p.knownLocked(print, time.Now()); known != nil {
			out = append(out, *known)
		}
	}
	slices.SortFunc(out, func(a, b Poisoned) int {
		if a.Refused != b.Refused {
			if a.Refused {
				return -1
			}
			return 1
		}
		return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return out
}

// Release makes the pool forget a fingerprint, for example after the program was
// repaired. It returns false for one that the pool does not remember.
func (p *Pool) Release(fingerprint string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.knownLocked(fingerprint, time.Now())
	delete(p.poisoned, fingerprint)
	return known != nil
}
