package health

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/pleme-io/lifecycle-go/internal/probe"
)

// The planes, as [Status] names them.
const (
	Liveness  = "liveness"
	Readiness = "readiness"
	Startup   = "startup"
)

// planeKind is one of the three questions that Kubernetes asks.
type planeKind int

const (
	livenessPlane planeKind = iota
	readinessPlane
	startupPlane
)

// String returns the plane's name in events, snapshots and errors.
func (k planeKind) String() string { return [...]string{Liveness, Readiness, Startup}[k] }

// path returns the plane's name in answers and, after a slash, in URLs.
func (k planeKind) path() string { return [...]string{"livez", "readyz", "startupz"}[k] }

// plane has the checks that answer one question.
type plane struct {
	reg    *Registry
	kind   planeKind
	checks atomic.Pointer[[]*check] // sorted by name; replaced, never changed
}

func newPlane(r *Registry, kind planeKind) *plane {
	p := &plane{reg: r, kind: kind}
	p.checks.Store(new([]*check))
	return p
}

// search returns the position of the check of that name in checks, which are
// sorted by name. If there is none, it returns the position where the check
// belongs.
func search(checks []*check, name string) (at int, found bool) {
	return slices.BinarySearchFunc(checks, name, func(c *check, name string) int { return strings.Compare(c.name, name) })
}

// find returns the check of that name, or nil.
func find(checks []*check, name string) *check {
	if at, found := search(checks, name); found {
		return checks[at]
	}
	return nil
}

// current returns the answer to a probe of the whole plane. It runs the checks that are
// due and waits for them, at most until ctx is done or the probe timeout has passed.
func (p *plane) current(ctx context.Context) result {
	checks := *p.checks.Load()
	p.run(ctx, checks)
	res := p.collect(checks)
	if res.ok && ctx.Err() == nil { // a probe whose client has gone has not waited for the checks
		p.reg.passed(p.kind)
	}
	return res
}

// run runs the given checks that are due. On a frozen plane none is due.
func (p *plane) run(ctx context.Context, checks []*check) {
	if p.frozen() {
		return
	}
	now := probe.Now()
	var due []*probe.Check
	for _, c := range checks {
		if c.due(now) {
			due = append(due, c.runner)
		}
	}
	if len(due) == 0 {
		return
	}
	probe.Run(ctx, *p.reg.base.Load(), p.reg.timeout, due)
}

// frozen reports whether a probe runs no checks and gets the last results. That
// is so on a startup plane that has passed, and on liveness while the process
// drains.
func (p *plane) frozen() bool {
	cond := p.reg.cond.Load()
	return p.kind == startupPlane && cond.started || p.kind == livenessPlane && cond.draining
}

// result is the answer of a plane, or of a part of it.
type result struct {
	plane   planeKind
	ok      bool
	items   []item   // sorted by name
	unknown []string // names that a probe excludes and the plane does not have, sorted
}

// collect returns the states of the checks.
func (p *plane) collect(checks []*check) result {
	res := result{plane: p.kind, ok: true, items: make([]item, 0, len(checks)+1)}
	cond := p.reg.cond.Load()
	builtin, shown := cond.item(p.kind)
	for _, c := range checks {
		if shown && builtin.name < c.name {
			res.add(builtin)
			shown = false
		}
		res.add(c.view())
	}
	if shown {
		res.add(builtin)
	}
	for i := range res.items { // after each check has been looked at
		p.explain(&res.items[i])
	}
	if cond.overrides(p.kind) {
		res.ok = true
	}
	return res
}

func (r *result) add(it item) {
	r.items = append(r.items, it)
	if !it.nonCritical && !it.passes(r.plane) {
		r.ok = false
	}
}

// passes reports whether the check lets its plane pass.
func (it *item) passes(kind planeKind) bool { return statePasses(kind, it.state) }

// statePasses reports whether a state passes on a plane.
func statePasses(kind planeKind, state State) bool {
	return state == Up || kind == livenessPlane && state == Unknown
}
