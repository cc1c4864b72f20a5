package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/probe"
)

// Start runs the periodic checks in the background, the first time at once, until
// [Registry.Close] or until ctx is done. After ctx is done, probes run them, like
// cached checks. From Start on, the contexts of all checks have ctx's values, but
// do not end with ctx. A second call does nothing. After Close it returns
// [ErrClosed].
func (r *Registry) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	if r.stop != nil {
		return nil
	}
	base := call.WithValuesOf(*r.base.Load(), ctx)
	r.base.Store(&base)
	ctx, r.stop = context.WithCancel(ctx)
	r.stopped = make(chan struct{})
	r.active.Store(true)
	go func() {
		defer close(r.stopped)
		defer r.active.Store(false)
		r.schedule(ctx)
	}()
	return nil
}

// Close ends the background runs, cancels the contexts of all checks and waits
// until no check is running. When ctx is done first, it returns an error that
// names the checks that are still running. No check begins to run after Close.
// The handler continues to answer with the last results until they are too old.
// Close may be called more than once, and without Start.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	stop, stopped := r.stop, r.stopped
	r.mu.Unlock()
	if stop != nil {
		stop()
		<-stopped // at once: the scheduler itself runs no foreign code
	}
	var all []*check
	for _, p := range r.planes {
		all = append(all, *p.checks.Load()...)
	}
	for _, c := range all {
		c.runner.Close()
	}
	r.cancel(ErrClosed)
	var errs []error
	for _, c := range all {
		if !c.runner.Wait(ctx) {
			errs = append(errs, fmt.Errorf("close health registry: %s check %q has not returned: %w", c.plane.kind, c.name, context.Cause(ctx)))
		}
	}
	return errors.Join(errs...)
}

// schedule starts the runs of the periodic checks until ctx is done. One goroutine
// schedules all checks; each run has its own.
func (r *Registry) schedule(ctx context.Context) {
	for {
		pause := r.runPeriodic()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-r.wake:
		}
	}
}

// idle is how long the scheduler sleeps when it has nothing to run. A registration
// wakes it.
const idle = time.Hour

// runPeriodic begins the runs that are due, counts overdue runs as failed, and
// returns how long the scheduler may sleep.
func (r *Registry) runPeriodic() time.Duration {
	var due []*probe.Check
	sleep := idle
	now := probe.Now()
	for _, p := range r.planes {
		if p.kind == startupPlane && r.cond.Load().started {
			continue
		}
		for _, c := range *p.checks.Load() {
			if c.interval == 0 {
				continue
			}
			last, runningFor, isRunning := c.runner.Status()
			switch next := last.Ended + c.interval; {
			case isRunning:
				c.countOverdue()
				// The end of the run does not wake the scheduler. The check
				// cannot be due again before an interval has passed.
				sleep = min(sleep, c.interval, c.timeout-runningFor%c.timeout)
			case last.Run == 0 || next <= now:
				due = append(due, c.runner)
				sleep = min(sleep, c.interval, c.timeout)
			default:
				sleep = min(sleep, next-now)
			}
		}
	}
	probe.Start(*r.base.Load(), due...)
	return sleep
}
