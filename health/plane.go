package health

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

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

// plane has the checks that answer one question, and the answer made from them.
//
// The plane keeps its rendered answer and uses it again while no check has
// reported a change (version) and no result has to be renewed (kept.fresh).
type plane struct {
	reg  *Registry
	kind planeKind

	checks  atomic.Pointer[[]*check]       // sorted by name; replaced, never changed
	always  atomic.Pointer[[]*probe.Check] // the runners, when every probe runs every check; otherwise empty
	version atomic.Uint64                  // counts changes that make the kept answer stale
	kept    atomic.Pointer[kept]
}

func newPlane(r *Registry, kind planeKind) *plane {
	p := &plane{reg: r, kind: kind}
	p.setChecks(nil)
	return p
}

// setChecks replaces the list. For a plane on which every probe runs every check
// it also keeps the list of their runners.
func (p *plane) setChecks(checks []*check) {
	always := make([]*probe.Check, 0, len(checks))
	for _, c := range checks {
		if c.renewal() == 0 {
			always = append(always, c.runner)
		}
	}
	if len(always) < len(checks) {
		always = nil
	}
	p.checks.Store(&checks)
	p.always.Store(&always)
	p.changed()
}

// changed makes the kept answer stale.
func (p *plane) changed() { p.version.Add(1) }

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

// current returns the answer to a plain probe of the plane. It runs the checks
// that are due and waits for them, at most until ctx is done or the probe timeout
// has passed.
func (p *plane) current(ctx context.Context) *kept {
	version := p.version.Load()
	a := p.kept.Load()
	if a != nil && a.version == version && a.isFresh() {
		return a
	}
	if p.frozen() {
		return p.render(nil, true)
	}
	always := *p.always.Load()
	if len(always) == 0 {
		return p.render(p.run(ctx, *p.checks.Load()), false)
	}
	unfinished := probe.Run(ctx, *p.reg.base.Load(), p.reg.timeout, always)
	if unfinished == nil && a != nil && a.version == version && p.version.Load() == version {
		return a // every check has run and none has reported a change
	}
	return p.render(unfinished, false)
}

// run runs the given checks that are due, and returns the runs that it did not wait
// for to the end.
func (p *plane) run(ctx context.Context, checks []*check) []probe.Unfinished {
	now := probe.Now()
	var due []*probe.Check
	for _, c := range checks {
		if c.due(now) {
			due = append(due, c.runner)
		}
	}
	if len(due) == 0 {
		return nil
	}
	return probe.Run(ctx, *p.reg.base.Load(), p.reg.timeout, due)
}

// frozen reports whether a probe runs no checks and gets the last results. That
// is so on a startup plane that has passed, and on liveness while the process
// drains.
func (p *plane) frozen() bool {
	cond := p.reg.cond.Load()
	return p.kind == startupPlane && cond.started || p.kind == livenessPlane && cond.draining
}

// render makes the answer from the present states of the checks, and keeps it.
func (p *plane) render(unfinished []probe.Unfinished, frozen bool) *kept {
	version := p.version.Load() // read it first: a change after this line makes the answer stale
	checks := *p.checks.Load()
	res := p.result(checks, unfinished)
	fresh := time.Duration(math.MaxInt64)
	if !frozen {
		for _, c := range checks {
			fresh = min(fresh, c.freshUntil())
		}
	}
	if res.ok {
		p.reg.passed(p.kind)
	}
	a := p.kept.Load()
	if a == nil || a.version != version || res.volatile {
		a = &kept{Answer: *res.answer(), version: version, ok: res.ok}
		a.fresh.Store(int64(never))
		if res.volatile {
			return a
		}
	}
	a.fresh.Store(int64(fresh))
	p.kept.Store(a)
	return a
}

// result is the answer of a plane, or of a part of it.
type result struct {
	plane    planeKind
	ok       bool
	volatile bool
	items    []item   // sorted by name
	unknown  []string // names that a probe excludes and the plane does not have, sorted
}

// result collects the states of the checks.
func (p *plane) result(checks []*check, unfinished []probe.Unfinished) result {
	res := result{plane: p.kind, ok: true, items: make([]item, 0, len(checks)+1)}
	cond := p.reg.cond.Load()
	builtin, shown := cond.item(p.kind)
	for _, c := range checks {
		if shown && builtin.name < c.name {
			res.add(builtin)
			shown = false
		}
		it, volatile := c.view(unfinished)
		res.volatile = res.volatile || volatile
		res.add(it)
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
func (it *item) passes(kind planeKind) bool { return passes(kind, it.state) }

// passes reports whether a state passes on a plane.
func passes(kind planeKind, state State) bool {
	return state == Up || kind == livenessPlane && state == Unknown
}
