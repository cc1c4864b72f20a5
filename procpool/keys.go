package procpool

import (
	"fmt"
	"hash/maphash"
	"slices"
	"time"
)

// fits reports whether the worker may serve the query.
func (p *Pool) fits(w *proc, q *Query) bool {
	return !p.cfg.KeyPerWorker || !w.used || (w.keyed == q.keyed && w.key == q.key)
}

// pickLocked returns a ready worker for the query, nil when it has to wait.
//
//   - Without a key it is the most recently used one without a query, whose memory is
//     warm; the others may then idle until they are recycled. When each has queries,
//     it is the one that has the fewest.
//   - A key that has a worker goes to that one.
//   - A new key goes to the worker with the fewest keys. It waits for a worker that
//     starts rather than share one.
//   - A preferred key goes to the worker that a hash of key and worker ranks highest
//     (rendezvous hashing). So the same key finds the same worker as long as that is
//     free, and the pool need not remember the key.
func (p *Pool) pickLocked(q *Query) *proc {
	if q.preferred {
		return p.preferredLocked(q)
	}
	if q.keyed {
		if w := p.keys[q.key]; w != nil && w.usable() {
			if slices.Contains(p.ready, w) && !w.runs(q) {
				return w
			}
			return nil
		}
	}
	var best *proc
	for _, w := range slices.Backward(p.ready) {
		if p.fits(w, q) && (best == nil || w.less(best, q)) {
			if best = w; !q.keyed && w.idle() {
				break
			}
		}
	}
	if best != nil && q.keyed && len(best.keys) > 0 && p.freshLocked() {
		return nil
	}
	return best
}

// less reports whether the worker has fewer keys than other, or as many and fewer
// queries. Keys count only for a query that has one.
func (w *proc) less(other *proc, q *Query) bool {
	if q.keyed && len(w.keys) != len(other.keys) {
		return len(w.keys) < len(other.keys)
	}
	return len(w.attempts) < len(other.attempts)
}

// freshLocked reports whether a worker without keys will come: it starts already, or
// the pool may start one.
func (p *Pool) freshLocked() bool {
	if p.failures > 0 || p.deaths > 0 || p.ending {
		return false
	}
	return p.sizeLocked() < p.cfg.MaxWorkers || slices.ContainsFunc(p.workers, (*proc).starting)
}

// preferredLocked returns the ready worker that ranks highest for the query's key.
func (p *Pool) preferredLocked(q *Query) (best *proc) {
	highest := uint64(0)
	for _, w := range p.ready {
		if rank := maphash.Comparable(p.seed, place{q.key, w.n}); best == nil || rank > highest {
			best, highest = w, rank
		}
	}
	return best
}

// place is one key at one worker.
type place struct {
	key    string
	worker int
}

// mayTakeLocked reports whether a ready worker may take a query that waits for any
// worker.
func (p *Pool) mayTakeLocked(w *proc, q *Query) bool {
	if !p.fits(w, q) {
		return false
	}
	if !q.sticky() {
		return true
	}
	if bound := p.keys[q.key]; bound != nil && bound.usable() {
		return bound == w && !w.runs(q) // it got the key while the query waited
	}
	return len(w.keys) == 0 || !slices.ContainsFunc(p.workers, (*proc).starting)
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
	e := p.queue.Front()
	if !p.cfg.KeyPerWorker || p.cfg.StarveAfter == Off || e == nil || now.Sub(w.readyAt) < p.cfg.StarveAfter {
		return nil
	}
	q, _ := e.Value.(*Query)
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
