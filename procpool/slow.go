package procpool

import (
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// slow reports whether an attempt takes too long and that was not logged.
func (p *Pool) slow(a *attempt, now time.Time) bool {
	return p.cfg.SlowAfter > 0 && a != nil && !a.slow && now.Sub(a.begun) >= p.cfg.SlowAfter
}

// logSlowLocked logs a query that takes long, with the worker's stacks when it runs
// and the worker can show them.
func (w *proc) logSlowLocked(a *attempt, now time.Time, state string) {
	a.slow = true
	p, q := w.p, a.q
	p.count(&p.stats.Slow)
	elapsed := now.Sub(a.begun)
	report := func(stacks string) {
		call.Go(w.name, func() error {
			log := p.log.With("query", q.id, "worker", w.name, "elapsed", elapsed)
			if q.caller != "" {
				log = log.With("caller", q.caller)
			}
			if stacks != "" {
				log = log.With("stacks", stacks)
			}
			log.Warn("procpool: a query is slow " + state)
			return nil
		}, func(error) {})
	}
	if !w.has(a) || !w.askStacksLocked(report) {
		report("")
	}
}
