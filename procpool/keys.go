package procpool

import (
	"fmt"
	"slices"
	"time"
)

// fits reports whether the worker may serve the query.
func (p *Pool) fits(w *proc, q *Query) bool {
	return !p.cfg.KeyPerWorker || w.given == 0 || (w.keyed == q.keyed && w.key == q.key)
}

// boundLocked returns the worker of the query's key, for which the query has to wait: also one that
// gets no more queries and still has one of the key. It returns nil when there is none.
func (p *Pool) boundLocked(q *Query) *proc {
	if !q.keyed {
		return nil
	}
	if w := p.keys[q.key]; w != nil && (w.usable() || w.retiring && !w.leaving && w.runs(q)) {
		return w
	}
	return nil
}

// pickLocked returns a worker with a place for a new query, nil when it has to wait.
//
//   - Without a key it is the one with the fewest queries, and of these the most recently used
//     one, whose memory is warm; the others may then idle until they are recycled.
//   - A key that has a worker goes to that one.
//   - A new key goes to the worker with the fewest keys.
func (p *Pool) pickLocked(q *Query) (best *proc) {
	for _, w := range p.workers {
		if w.isFree() && p.mayTakeLocked(w, q) && (best == nil || w.isBefore(best, q)) {
			best = w
		}
	}
	return best
}

// isBefore reports whether the worker is chosen before other. Keys count only for a query that has one.
func (w *proc) isBefore(other *proc, q *Query) bool {
	if q.keyed && len(w.keys) != len(other.keys) {
		return len(w.keys) < len(other.keys)
	}
	if len(w.attempts) != len(other.attempts) {
		return len(w.attempts) < len(other.attempts)
	}
	return w.lastActivity.After(other.lastActivity)
}

// mayTakeLocked reports whether a worker may take a query. A new key waits for a worker that
// starts rather than share one.
func (p *Pool) mayTakeLocked(w *proc, q *Query) bool {
	if q.alone {
		return w.alone && w.program == p.program
	}
	if bound := p.boundLocked(q); bound != nil {
		return bound == w && !w.runs(q)
	}
	if w.alone || !p.fits(w, q) {
		return false
	}
	return !q.keyed || len(w.keys) == 0 || !p.freshLocked()
}

// freshLocked reports whether a worker without keys will come: it starts already, or
// the pool may start one.
func (p *Pool) freshLocked() bool {
	if p.failures > 0 || p.deaths > 0 || p.ending {
		return false
	}
	return p.sizeLocked() < p.cfg.MaxWorkers || slices.ContainsFunc(p.workers, (*proc).starting)
}

// starting reports whether the worker will soon be ready for its first query.
func (w *proc) starting() bool {
	return !w.alone && !w.leaving && (w.trial || w.machine.State() == WorkerStarting)
}

// starvedLocked returns why a worker that has become free has to make room: the oldest
// query has waited too long and no worker may serve it. It returns nil otherwise. A
// worker lives for StarveAfter at least, so that the pool does not spend its time on
// starts when several keys compete.
func (p *Pool) starvedLocked(w *proc, now time.Time) error {
	if !p.cfg.KeyPerWorker || p.cfg.StarveAfter == Off || now.Sub(w.readyAt) < p.cfg.StarveAfter {
		return nil
	}
	first := slices.IndexFunc(p.queue, func(q *Query) bool { return !q.alone && p.boundLocked(q) == nil })
	if first < 0 {
		return nil
	}
	q := p.queue[first]
	waits := now.Sub(q.begun)
	mayServe := func(other *proc) bool {
		return !other.alone && (other.leaving || other.starting() || p.fits(other, q))
	}
	if waits < p.cfg.StarveAfter || p.sizeLocked() < p.cfg.MaxWorkers || slices.ContainsFunc(p.workers, mayServe) {
		return nil
	}
	return fmt.Errorf("%w: %s has waited for %v and no worker may serve its key",
		ErrEvicted, q.id, waits.Round(time.Millisecond))
}
