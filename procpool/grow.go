package procpool

import (
	"time"
)

// ensureLocked starts the workers that MinWorkers and the waiting queries need. At
// capacity it evicts one for a query that no worker may serve.
func (p *Pool) ensureLocked() {
	if p.ending {
		return
	}
	p.stepReloadLocked()
	p.ensureAloneLocked()
	p.ensureSuccessorsLocked()
	for {
		waiting := p.waitForAnyLocked()
		starting, leaving := 0, 0
		all := p.sizeLocked()
		for _, w := range p.workers {
			switch {
			case w.alone:
			case w.leaving:
				leaving++
			case w.starting():
				starting++
			}
		}
		serving := all - leaving
		wanted := waiting > starting*max(p.mostPlaces, 1)
		if !wanted && (serving >= p.cfg.MinWorkers || p.draining.Load()) {
			return
		}
		if all >= p.cfg.MaxWorkers {
			if wanted && p.cfg.KeyPerWorker && waiting > starting+leaving && p.evictLocked(p.cfg.Eviction, false) != nil {
				continue
			}
			return
		}
		if p.backsOffLocked() || p.failures > 0 && starting > 0 {
			return // after a failed start, try one worker at a time
		}
		p.spawnLocked(spawn{})
	}
}

// sizeLocked returns the number of workers that count towards MaxWorkers.
func (p *Pool) sizeLocked() (n int) {
	for _, w := range p.workers {
		if !w.alone {
			n++
		}
	}
	return n
}

// backsOffLocked reports whether the pool starts no worker now. It tries again by
// itself.
func (p *Pool) backsOffLocked() bool {
	wait := time.Until(p.noStartBefore)
	if p.failures == 0 && p.deaths == 0 || wait <= 0 {
		return false
	}
	if p.retryTimer != nil {
		p.retryTimer.Stop()
	}
	p.retryTimer = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ensureLocked()
	})
	return true
}

// resizedLocked updates the state of the capacity.
func (p *Pool) resizedLocked() {
	want := PoolActive
	switch n := p.sizeLocked(); {
	case n == 0:
		want = PoolIdle
	case n >= p.cfg.MaxWorkers:
		want = PoolAtCapacity
	}
	for now := p.capacity.State(); now != want; now = p.capacity.State() {
		if p.capacity.To(want, nil) != nil {
			_ = p.capacity.To(PoolActive, nil) // a pool of one passes through active
		}
	}
}
