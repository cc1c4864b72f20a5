package procpool

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// limits are the limits of one worker: those of [Recycle], each with its jitter.
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

// worn returns which limit the worker has reached, nil when none. The caller holds
// the pool's lock.
func (w *proc) worn(now time.Time) error {
	l := w.limits
	switch {
	case l.queries > 0 && w.queries >= l.queries:
		return fmt.Errorf("%w: it has served %d queries", ErrRecycled, w.queries)
	case l.age > 0 && now.Sub(w.readyAt) >= l.age:
		return fmt.Errorf("%w: it is %v old", ErrRecycled, now.Sub(w.readyAt).Round(time.Millisecond))
	case l.idle > 0 && w.cur == nil && now.Sub(w.lastActivity) >= l.idle:
		return fmt.Errorf("%w: it was idle for %v", ErrRecycled, now.Sub(w.lastActivity).Round(time.Millisecond))
	}
	if l.rss > 0 {
		if got, ok := memoryOf(w.memoryPID()); ok && got >= l.rss {
			return fmt.Errorf("%w: it has %d bytes of memory", ErrRecycled, got)
		}
	}
	return nil
}

func (w *proc) memoryPID() int {
	if w.pid != 0 {
		return w.pid
	}
	return w.process.PID()
}

// checked returns when the worker last showed that it is alive.
func (w *proc) checked() time.Time {
	if w.checkedAt.After(w.lastActivity) {
		return w.checkedAt
	}
	return w.lastActivity
}

// mayRecycleLocked reports whether one more worker may be recycled now.
func (p *Pool) mayRecycleLocked() bool {
	n := 0
	for _, w := range p.workers {
		if w.recycling {
			n++
		}
	}
	return n < p.cfg.Recycle.AtOnce
}

// recycleLocked ends the worker, once it is not busy.
func (w *proc) recycleLocked(why error) {
	w.recycling = true
	w.p.counts.recycled.Add(1)
	if w.cur != nil {
		w.retire = why
		return
	}
	w.stopLocked(true, why)
}
