package procpool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// limits are the limits of one worker: the limits of [Recycle], each with its jitter.
type limits struct {
	queries int
	age     time.Duration
	idle    time.Duration
	rss     int64
}

func (r Recycle) draw() limits {
	less := func(limit float64) float64 {
		if r.Jitter == Off {
			return limit
		}
		return limit * (1 - r.Jitter*rand.Float64())
	}
	l := limits{
		age:  time.Duration(less(float64(r.MaxAge))),
		idle: time.Duration(less(float64(r.MaxIdle))),
		rss:  int64(less(float64(r.MaxRSS))),
	}
	if r.MaxQueries > 0 {
		l.queries = max(int(less(float64(r.MaxQueries))+0.5), 1)
	}
	return l
}

// worn returns which limit the worker has reached, nil when none, and whether the
// worker is idle because of that. The caller holds the pool's lock.
func (w *proc) worn(now time.Time) (why error, idle bool) { //nolint:revive // the result is an error
	l := w.limits
	switch {
	case l.queries > 0 && w.queries >= l.queries:
		return fmt.Errorf("%w: it has served %d queries", ErrRecycled, w.queries), false
	case l.age > 0 && now.Sub(w.readyAt) >= l.age:
		return fmt.Errorf("%w: it is %v old", ErrRecycled, now.Sub(w.readyAt).Round(time.Millisecond)), false
	case l.idle > 0 && w.idle() && now.Sub(w.lastActivity) >= l.idle:
		return fmt.Errorf("%w: it was idle for %v", ErrRecycled, now.Sub(w.lastActivity).Round(time.Millisecond)), true
	}
	if l.rss > 0 {
		if got, ok := memoryOf(w.pid); ok && got >= l.rss {
			return fmt.Errorf("%w: it has %d bytes of memory", ErrRecycled, got), false
		}
	}
	return nil, false
}

// mayRecycleLocked reports whether one more worker may be recycled now.
func (p *Pool) mayRecycleLocked() bool {
	n := 0
	for _, w := range p.workers {
		if errors.Is(w.due, ErrRecycled) {
			n++
		}
	}
	return n < p.cfg.Recycle.AtOnce
}

// recycleLocked ends the worker, once it is not busy: after its successor is ready
// when it needs one.
func (w *proc) recycleLocked(why error, idle bool) {
	p := w.p
	w.due = why
	p.count(&p.stats.Recycled)
	needed := p.sizeLocked() <= p.cfg.MinWorkers || w.queries > 0 && !idle
	if needed && p.cfg.Surge != Off && !p.draining.Load() {
		p.ensureLocked()
		return
	}
	w.retireLocked(why)
}

// retireLocked ends the worker once it is not busy.
func (w *proc) retireLocked(why error) {
	if w.retiring = true; !errors.Is(w.due, ErrReloaded) {
		w.due = why
	}
	if w.idle() {
		w.stopLocked(true, why)
	}
}

// ensureSuccessorsLocked starts the successors of workers that are due. A reload makes the
// workers due that it has to replace.
func (p *Pool) ensureSuccessorsLocked() {
	r := p.reloading
	for _, w := range slices.Clone(p.workers) {
		isReloaded := r.replaces(w)
		if w.due == nil && !isReloaded || !p.isToBeReplaced(w) {
			continue
		}
		if !p.mayReplaceLocked() {
			return
		}
		next := spawn{replaces: w}
		if r != nil {
			next.program = r.to
		}
		if isReloaded {
			w.due = ErrReloaded
		}
		p.spawnLocked(next)
	}
}

// isToBeReplaced reports whether a worker that is due still needs a successor.
func (p *Pool) isToBeReplaced(w *proc) bool {
	hasSuccessor := func(other *proc) bool { return other.replaces == w }
	return !w.leaving && !w.retiring && !slices.ContainsFunc(p.workers, hasSuccessor)
}

// mayReplaceLocked reports whether the pool may start a successor now.
func (p *Pool) mayReplaceLocked() bool {
	r := p.reloading
	if r == nil {
		return !p.draining.Load() && p.sizeLocked() < p.cfg.MaxWorkers+p.cfg.Surge && !p.backsOffLocked()
	}
	if p.sizeLocked() >= p.cfg.MaxWorkers+max(p.cfg.Surge, 1) {
		return false
	}
	if !r.decided() {
		return !slices.ContainsFunc(p.workers, r.makes) // one worker tries the new program, without a backoff
	}
	return !p.backsOffLocked()
}

// succeededLocked ends a worker whose successor is ready.
func (w *proc) succeededLocked() {
	if w.due != nil && w.usable() {
		w.retireLocked(w.due)
	} else if w.machine.State() == WorkerStarting {
		w.stopLocked(true, w.due)
	}
}
