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
	for {
		starting, leaving := 0, 0
		for _, w := range p.workers {
			switch {
			case w.leaving:
				leaving++
			case w.machine.State() == WorkerStarting:
				starting++
			}
		}
		serving := len(p.workers) - leaving
		wanted := p.queue.Len() > starting
		if !wanted && (serving >= p.cfg.MinWorkers || p.draining) {
			return
		}
		if len(p.workers) >= p.cfg.MaxWorkers {
			if wanted && p.cfg.KeyPerWorker && p.queue.Len() > starting+leaving && p.makeRoomLocked() {
				continue
			}
			return
		}
		if p.failures > 0 {
			if wait := time.Until(p.notUntil); wait > 0 {
				p.againLocked(wait)
				return
			}
			if starting > 0 {
				return // after a failure, try one worker at a time
			}
		}
		p.spawnLocked()
	}
}

// againLocked calls ensureLocked when the backoff is over.
func (p *Pool) againLocked(wait time.Duration) {
	if p.again != nil {
		p.again.Stop()
	}
	p.again = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ensureLocked()
	})
}

// resizedLocked updates the state of the capacity.
func (p *Pool) resizedLocked() {
	want := PoolActive
	switch n := len(p.workers); {
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
