package health

import (
	"context"
	"errors"
	"time"
)

// Owner sets the state of the process as a whole, in addition to the checks:
// starting, suspended, draining. Answers and events show that state as the
// built-in condition "lifecycle". The condition has no threshold and no cache, it
// changes before the method returns, and no probe can exclude it.
//
// [NewOwned] makes an Owner together with its registry, so only the code that
// made the registry can set the condition. All methods may be called
// concurrently.
type Owner struct{ r *Registry }

// NewOwned is [NewRegistry] for a program that opens and closes readiness itself,
// as a lifecycle.App does.
func NewOwned(opts ...RegistryOption) (*Registry, *Owner) {
	r := NewRegistry(opts...)
	return r, &Owner{r}
}

// SetGate makes readiness fail with reason while state is down or unknown, and
// startup too until that plane has passed once. A registry begins with the gate
// up.
func (o *Owner) SetGate(state State, reason string) {
	if state == Up {
		reason = ""
	}
	o.r.change(func(c *condition) { c.managed, c.state, c.reason = true, state, reason })
}

// SetDraining records that the process drains. From then on liveness passes and
// runs no checks, and readiness fails if readinessDown is true. A second call may
// change readinessDown. The draining never ends.
func (o *Owner) SetDraining(readinessDown bool) {
	o.r.change(func(c *condition) { c.draining, c.readinessDown = true, readinessDown })
}

// Suspend makes readiness fail with "suspended: " and the reason, or "suspended"
// for an empty one, until [Owner.Resume]. A second call replaces the reason.
func (o *Owner) Suspend(reason string) {
	now := time.Now()
	o.r.change(func(c *condition) {
		c.suspendReason = reason
		if c.suspended.IsZero() {
			c.suspended = now
		}
	})
}

// Resume ends what [Owner.Suspend] began. Without a Suspend it does nothing.
func (o *Owner) Resume() {
	o.r.change(func(c *condition) { c.suspended, c.suspendReason = time.Time{}, "" })
}

// Suspended returns the reason of the last [Owner.Suspend], and the time of the
// first one after the last [Owner.Resume]. The time is zero when readiness is not
// suspended.
func (o *Owner) Suspended() (reason string, since time.Time) {
	c := o.r.cond.Load()
	return c.suspendReason, c.suspended
}

// conditionName is the name of the built-in condition in answers and events.
const conditionName = "lifecycle"

// condition is the state that the owner of a registry has set.
type condition struct {
	managed bool // the owner has set the gate: answers show the condition also when it is up
	state   State
	reason  string

	draining      bool      // liveness passes
	readinessDown bool      // and readiness fails
	suspended     time.Time // since when an operator has suspended readiness
	suspendReason string
	started       bool // the startup plane has passed once
}

// readiness returns the condition's state on the readiness plane, and why.
func (c *condition) readiness() (State, string) {
	switch {
	case c.draining && c.readinessDown:
		return Down, "draining"
	case !c.suspended.IsZero() && c.suspendReason != "":
		return Down, "suspended: " + c.suspendReason
	case !c.suspended.IsZero():
		return Down, "suspended"
	}
	return c.state, c.reason
}

// item returns the part of the plane's answer about the condition. shown is false
// when the answer leaves it out.
func (c *condition) item(kind planeKind) (it item, shown bool) {
	it = item{name: conditionName, state: Up}
	switch kind {
	case livenessPlane:
		if c.draining {
			it.note = "draining"
		}
		return it, c.draining
	case readinessPlane:
		it.state, it.text = c.readiness()
	case startupPlane:
		if !c.started {
			it.state, it.text = c.state, c.reason
		}
	}
	return it, c.managed || it.state != Up
}

// overrides reports whether the plane passes without regard to its checks:
// startup once it has passed, and liveness while the process drains, because a
// restart would cut the drain short.
func (c *condition) overrides(kind planeKind) bool {
	return kind == livenessPlane && c.draining || kind == startupPlane && c.started
}

// change replaces the condition and publishes the new state of readiness, both before it
// returns.
func (r *Registry) change(edit func(*condition)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := *r.cond.Load()
	edit(&next)
	if next == *r.cond.Load() {
		return
	}
	r.cond.Store(&next)
	if state, why := next.readiness(); state != r.lifecycle.State() {
		var cause error
		if why != "" {
			cause = errors.New(why)
		}
		_ = r.lifecycle.To(state, cause) // the table allows every change
	}
}

// passed ends the startup plane when that has passed, and closes the channel of FirstReady when
// readiness has.
func (r *Registry) passed(kind planeKind) {
	switch kind {
	case startupPlane:
		if !r.cond.Load().started {
			r.change(func(c *condition) { c.started = c.started || c.state == Up })
		}
	case readinessPlane:
		r.readyOnce.Do(func() { close(r.firstReady) })
	}
}

// Ready reports whether readiness passes now. It runs the checks that are due and
// waits for them, until ctx is done or the probe timeout has passed.
func (r *Registry) Ready(ctx context.Context) bool {
	return r.planes[readinessPlane].current(ctx).ok
}

// Alive reports whether liveness passes now. It runs checks and waits as
// [Registry.Ready] does.
func (r *Registry) Alive(ctx context.Context) bool {
	return r.planes[livenessPlane].current(ctx).ok
}

// FirstReady returns a channel that is closed when a probe or [Registry.Ready]
// first finds that readiness passes.
func (r *Registry) FirstReady() <-chan struct{} { return r.firstReady }
