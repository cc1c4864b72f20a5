package procpool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// checkEvery returns how often the pool checks its workers.
func (p *Pool) checkEvery() time.Duration {
	every := p.cfg.Recycle.Every
	if p.cfg.HealthInterval != Off {
		every = min(every, p.cfg.HealthInterval/2, p.cfg.HealthTimeout/2)
	}
	if p.cfg.SlowAfter > 0 {
		every = min(every, p.cfg.SlowAfter/2)
	}
	return max(every, time.Millisecond)
}

// check checks each worker's health, age and memory.
func (p *Pool) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.forgetLocked(now)
	for _, w := range slices.Clone(p.workers) {
		if w.leaving || w.readyAt.IsZero() {
			continue
		}
		w.ensureReadingLocked()
		for _, a := range w.attempts {
			if p.slow(a, now) {
				w.logSlowLocked(a, now, "and still runs")
			}
		}
		p.checkLocked(w, now)
		if why, idle := w.worn(now); why != nil && w.due == nil && !w.alone && p.mayRecycleLocked() {
			w.recycleLocked(why, idle)
		}
	}
	p.ensureLocked()
}

// checkLocked sends a health check to a ready worker, and ends one that has not
// answered the last in time.
func (p *Pool) checkLocked(w *proc, now time.Time) {
	if p.cfg.HealthInterval == Off {
		return
	}
	isFree := w.idle() && w.machine.State() == WorkerReady
	switch {
	case !w.asked.IsZero():
		// It may have had a query since, and many workers do not answer while they
		// work. Then the time begins when it is ready again.
		waits := now.Sub(w.asked)
		if w.lastActivity.After(w.asked) {
			waits = now.Sub(w.lastActivity)
		}
		if isFree && waits > p.cfg.HealthTimeout {
			w.broke = fmt.Errorf("%w within %v", errHealth, p.cfg.HealthTimeout)
			w.stopLocked(false, w.broke)
		}
	case isFree && now.Sub(w.lastActivity) >= p.cfg.HealthInterval && now.Sub(w.checkedAt) >= p.cfg.HealthInterval:
		p.askHealthLocked(w, now)
	}
}

// askHealthLocked sends a health check in the background.
func (p *Pool) askHealthLocked(w *proc, now time.Time) {
	w.asked, w.checkedAt = now, now
	p.alive.Go(func() {
		w.wmu.Lock()
		defer w.wmu.Unlock()
		w.armWrite()
		if err := w.writer.HealthCheck(); err != nil && !errors.Is(err, wire.ErrPoisoned) {
			w.fail(fmt.Errorf("send a health check: %w", err))
		}
	})
}
