package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/probe"
)

// ErrUnhealthy ends an instance that failed as many probes in a row as its
// [Spec] allows.
var ErrUnhealthy = errors.New("unhealthy")

// ProbeResult is the result of a probe.
type ProbeResult struct {
	Health Health // HealthHealthy, HealthUnhealthy, or HealthUnknown when the probe cannot tell
	Err    error  // why the worker is unhealthy; a result with an error is always unhealthy
}

// Prober is a worker that can be asked for its health.
type Prober interface {
	// Probe returns the worker's health. It should return before ctx ends. Probes
	// of one worker never run concurrently.
	Probe(ctx context.Context) ProbeResult
}

type probing struct {
	check  *probe.Check
	before *probe.Check // of the previous instance
	found  atomic.Pointer[ProbeResult]
	timer  *time.Timer
	period time.Duration
	failed int // in a row
}

// watchHealth begins to probe an instance that has just started, if it has a probe.
func (s *Supervisor) watchHealth(c *child) {
	look := c.spec.Probe
	if look == nil {
		w := c.current()
		prober, ok := w.Worker.(Prober)
		if !ok {
			return
		}
		look = prober.Probe
	}
	p := &probing{}
	if c.probing != nil {
		p.before = c.probing.check
	}
	s.unwatchHealth(c)
	p.check = probe.New(c.name, c.spec.ProbeTimeout, func(ctx context.Context) error {
		found := look(ctx)
		p.found.Store(&found)
		if found.Health == HealthUnhealthy && found.Err == nil {
			return ErrUnhealthy
		}
		return found.Err
	}, func(result probe.Result) {
		s.box.Post(func() { s.probeEnded(c, p, result.Err) })
	})
	s.mu.Lock()
	c.probing = p
	s.mu.Unlock()
	if p.period = c.spec.ProbePeriod; p.period != NoLimit {
		p.timer = time.AfterFunc(p.period, func() { s.box.Post(func() { s.probeDue(c, p) }) })
	}
}

func (s *Supervisor) unwatchHealth(c *child) {
	p := c.probing
	if p == nil {
		return
	}
	p.check.Close()
	if p.timer != nil {
		p.timer.Stop()
	}
	s.mu.Lock()
	c.probing = nil
	s.mu.Unlock()
}

// probeDue starts the probe of a period.
func (s *Supervisor) probeDue(c *child, p *probing) {
	if c.probing != p || !c.lives() {
		return
	}
	p.timer.Reset(p.period)
	if p.before != nil {
		if _, _, running := p.before.Status(); running {
			return // the previous instance's probe still runs: a child has one probe at a time
		}
		p.before = nil
	}
	if w := c.current(); w.status() == StatusSuspended {
		return // the child cannot answer
	}
	if _, running, ok := p.check.Status(); ok {
		if running >= p.check.Timeout() {
			s.probeEnded(c, p, fmt.Errorf("probe is still running for %v", probe.Round(running)))
		}
		return
	}
	probe.Start(s.probeCtx, p.check)
}

// probeEnded handles the result of a probe.
func (s *Supervisor) probeEnded(c *child, p *probing, err error) {
	if c.probing != p || !c.lives() {
		return
	}
	health := HealthHealthy
	if found := p.found.Load(); err == nil && found != nil && found.Health == HealthUnknown {
		health = HealthUnknown
	}
	if err != nil {
		health = HealthUnhealthy
		p.failed++
	} else {
		p.failed = 0
	}
	w := c.current()
	if b, ok := w.Worker.(interface{ SetHealth(Health) }); ok {
		w.callOptional("SetHealth", func() { b.SetHealth(health) })
	}
	if limit := c.spec.RestartUnhealthy; limit > 0 && p.failed >= limit && c.group == nil && c.op == nil {
		p.failed = 0
		failure := fmt.Errorf("%w after %d probes: %w", ErrUnhealthy, limit, err)
		if c.spec.Restart.after(StatusFailed, failure) { // otherwise it runs on, and has not ended
			s.restartByPolicy(c, StatusFailed, failure)
		}
	}
}

// Inspect probes every running child that has a probe, and their children, and
// then describes the tree. It inspects the supervisors among its children one after
// another, and each waits for its own probes until the longest of their timeouts is over
// or ctx ends.
func (s *Supervisor) Inspect(ctx context.Context) State {
	var checks []*probe.Check
	patience := time.Duration(0)
	for _, c := range s.snapshot() {
		s.mu.Lock()
		w, p := c.instance, c.probing
		s.mu.Unlock()
		if p != nil && c.lives() && w.status() != StatusSuspended {
			checks = append(checks, p.check)
			patience = max(patience, p.check.Timeout())
		}
		if w == nil || !c.lives() {
			continue
		}
		if tree := treeOf(w.Worker); tree != nil {
			_ = tree.Inspect(ctx)
		}
	}
	if len(checks) > 0 {
		probe.Run(ctx, s.probeCtx, patience, checks)
		// The probes have posted their results before this message.
		_ = s.request(ctx, "inspect", func(reply chan<- error) { reply <- nil })
	}
	return s.State()
}
