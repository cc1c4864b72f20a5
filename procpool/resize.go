package procpool

import (
	"errors"
	"fmt"
	"slices"
)

// ErrResized is the cause in the event of a worker that [Pool.Resize] has ended.
var ErrResized = errors.New("the pool is smaller")

// Resize changes MinWorkers and MaxWorkers while the pool runs. A larger pool starts
// workers at once, for queries that wait and for least. In a smaller one the workers
// that are too many end, ready ones first, and busy ones when they have answered. No
// query fails because of it. Resize returns an error when the numbers are not valid.
func (p *Pool) Resize(least, most int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	cfg := p.cfg
	cfg.MinWorkers, cfg.MaxWorkers = least, most
	if most < 1 {
		return fmt.Errorf("resize %s: MaxWorkers is %d, want 1 or more", p.cfg.Name, most)
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	p.cfg.MinWorkers, p.cfg.MaxWorkers = least, most
	excess := p.sizeLocked() - most
	leaving := func(w *proc) bool { return !w.alone && (w.leaving || w.retire != nil) }
	for _, w := range p.workers {
		if leaving(w) || w.replaces != nil && !leaving(w.replaces) { // a successor ends the other one once it is ready
			excess--
		}
	}
	for ; excess > 0; excess-- {
		w := choose(p.cfg.Eviction, slices.DeleteFunc(slices.Clone(p.ready), func(w *proc) bool { return !w.idle() }))
		if w == nil {
			w = choose(p.cfg.Eviction, slices.DeleteFunc(slices.Clone(p.workers), func(w *proc) bool { return w.alone || leaving(w) }))
		}
		if w == nil {
			break
		}
		w.retireLocked(ErrResized)
	}
	p.resizedLocked()
	p.ensureLocked()
	return nil
}
