package lifecycle

import (
	"context"
	"errors"
)

// conditionName is the name of the built-in condition in answers and events.
const conditionName = "lifecycle"

// condition is what the owner of a registry says about the process as a whole,
// beside the checks. It has no hysteresis and no cache, and no probe can
// exclude it.
type condition struct {
	managed bool // somebody has set the gate: show it also when it is up
	state   ProbeState
	reason  string

	draining      bool // T0 has come: liveness passes whatever its checks say
	readinessDown bool // and readiness fails
	suspended     bool // readiness fails because an operator wants that
	suspendReason string
	started       bool // the startup plane has passed once
}

// readiness is the condition's state on the readiness plane, and why.
func (c *condition) readiness() (ProbeState, string) {
	switch {
	case c.draining && c.readinessDown:
		return StateDown, "draining"
	case c.suspended:
		return StateDown, c.suspendReason
	}
	return c.state, c.reason
}

// item is what an answer of the plane says about the condition; shown is false
// when it is not in the answer.
func (c *condition) item(kind planeKind) (it item, shown bool) {
	it = item{name: conditionName, state: StateUp, critical: true}
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
	return it, c.managed || it.state != StateUp
}

// overrides says whether the plane passes whatever its checks say: startup once
// it has passed, and liveness while the process is on its way out anyway, where
// a restart would only cut the drain short.
func (c *condition) overrides(kind planeKind) bool {
	return kind == livenessPlane && c.draining || kind == startupPlane && c.started
}

// change replaces the condition, publishes what that means for readiness, and
// makes every answer look at it. It takes effect before change returns.
func (r *Registry) change(edit func(*condition)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := *r.cond.Load()
	edit(&next)
	if next == *r.cond.Load() {
		return
	}
	r.cond.Store(&next)
	for _, p := range r.planes {
		p.changed()
	}
	if state, why := next.readiness(); state != r.lifecycle.State() {
		var cause error
		if why != "" {
			cause = errors.New(why)
		}
		_ = r.lifecycle.To(state, cause) // the table allows every change
	}
}

// setGate makes readiness, and startup until it has passed once, fail with
// reason while state is down or unknown. A registry begins with the gate up.
func (r *Registry) setGate(state ProbeState, reason string) {
	if state == StateUp {
		reason = ""
	}
	r.change(func(c *condition) { c.managed, c.state, c.reason = true, state, reason })
}

// setDraining says that T0 has come. From then on liveness passes whatever its
// checks say and runs none, and readiness fails when readinessDown. A second
// call changes readinessDown.
func (r *Registry) setDraining(readinessDown bool) {
	r.change(func(c *condition) { c.draining, c.readinessDown = true, readinessDown })
}

// setSuspended makes readiness fail with reason, until it is called with
// false.
func (r *Registry) setSuspended(suspended bool, reason string) {
	switch {
	case !suspended:
		reason = ""
	case reason == "":
		reason = "suspended"
	default:
		reason = "suspended: " + reason
	}
	r.change(func(c *condition) { c.suspended, c.suspendReason = suspended, reason })
}

// passed is called with every plane that was found to pass.
func (r *Registry) passed(kind planeKind) {
	switch kind {
	case startupPlane:
		if !r.cond.Load().started {
			r.change(func(c *condition) { c.started = c.started || c.state == StateUp })
		}
	case readinessPlane:
		r.readyOnce.Do(func() { close(r.firstReady) })
	}
}

// ready says whether readiness passes now. It runs the checks that are due and
// waits for them, until ctx is done or the probe timeout has passed at most.
func (r *Registry) ready(ctx context.Context) bool {
	return r.planes[readinessPlane].current(ctx).ok
}

// alive says whether liveness passes now, as ready does for readiness.
func (r *Registry) alive(ctx context.Context) bool {
	return r.planes[livenessPlane].current(ctx).ok
}
