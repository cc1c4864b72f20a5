package procpool

import (
	"fmt"
	"slices"
)

// Evict ends a worker. The strategy, "" for the pool's, chooses among the ready
// ones without a query. When there is none and busy is true, it chooses among all; the query of a
// busy worker ends with an error that is [ErrEvicted], and the worker is asked to
// cancel it and to shut down. The pool starts another
// worker when it needs one. Evict returns the worker's name, or [ErrNoWorker].
func (p *Pool) Evict(strategy Eviction, busy bool) (name string, err error) {
	switch strategy {
	case "":
		strategy = p.cfg.Eviction
	case LRU, Oldest, LeastUsed:
	default:
		return "", fmt.Errorf("evict from %s: the strategy is %q, want %q, %q or %q",
			p.cfg.Name, strategy, LRU, Oldest, LeastUsed)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.evictLocked(strategy, busy)
	if w == nil {
		return "", fmt.Errorf("evict from %s: %w", p.cfg.Name, ErrNoWorker)
	}
	return w.name, nil
}

func (p *Pool) evictLocked(strategy Eviction, busy bool) *proc {
	w := choose(strategy, p.workers, func(w *proc) bool { return !w.alone && w.isFree() && w.idle() })
	if w == nil && busy {
		w = choose(strategy, p.workers, func(w *proc) bool { return !w.alone && !w.leaving && !w.idle() })
	}
	if w == nil {
		return nil
	}
	p.count(&p.stats.Evicted)
	if p.capacity.State() == PoolAtCapacity {
		_ = p.capacity.To(PoolAtCapacity, ErrEvicted)
	}
	for _, a := range w.attempts {
		p.endLocked(a.q, fmt.Errorf("%s: %s: %w", a.q.id, w.name, ErrEvicted))
	}
	w.stopLocked(true, ErrEvicted)
	return w
}

// choose returns the worker that the strategy evicts, of all that may be evicted, nil for
// none.
func choose(strategy Eviction, workers []*proc, may func(*proc) bool) *proc {
	var among []*proc
	for _, w := range workers {
		if may(w) {
			among = append(among, w)
		}
	}
	if len(among) == 0 {
		return nil
	}
	return slices.MinFunc(among, func(a, b *proc) int {
		switch strategy {
		case Oldest:
			return a.n - b.n
		case LeastUsed:
			if a.queries != b.queries {
				return a.queries - b.queries
			}
		case LRU:
		}
		return a.lastActivity.Compare(b.lastActivity)
	})
}
