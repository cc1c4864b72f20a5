package worker

import "context"

// ProbeResult is what a probe found.
type ProbeResult struct {
	Health Health // HealthHealthy or HealthUnhealthy
	Err    error  // why it is unhealthy
}

// Prober is a worker that knows whether it is any good.
type Prober interface {
	// Probe looks, within ctx. It may be called while the worker runs, never
	// twice at once.
	Probe(ctx context.Context) ProbeResult
}

type probing struct{}

func (s *Supervisor) watchHealth(c *child)   {}
func (s *Supervisor) unwatchHealth(c *child) {}
