package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/probe"
)

// Status describes one check, as plain data.
type Status struct {
	Plane    string    `json:"plane"` // Liveness, Readiness or Startup
	Name     string    `json:"name"`
	State    State     `json:"state"`
	Since    time.Time `json:"since"` // when the check entered the state
	Critical bool      `json:"critical"`
	// DependsOn are the checks without which this one cannot pass.
	DependsOn []string `json:"dependsOn,omitempty"`
	// CausedBy is the check at the root of the failure, "" when this check passes
	// or is the root itself.
	CausedBy string `json:"causedBy,omitempty"`
	// Error is the error text of the last run, "" when it passed. A check may be
	// up and have an error while it is below its failure threshold.
	Error string `json:"error,omitempty"`
	// Slow says that the last run failed because it took too long, or that the run in
	// progress takes longer than its timeout.
	Slow bool `json:"slow,omitempty"`
	// Checked is when the last run ended, the zero time before the first end.
	Checked time.Time `json:"checked,omitzero"`
	// Latency is how long the last run took.
	Latency time.Duration `json:"latency"`
	// Runs is how many runs have ended.
	Runs uint64 `json:"runs"`
	// Running is how long the run in progress has lasted, 0 without one.
	Running time.Duration `json:"running,omitempty"`
}

// Snapshot describes every check, sorted by plane and name. It runs no check. On
// the readiness plane it includes the built-in condition "lifecycle" once the
// owner has set it.
func (r *Registry) Snapshot() []Status {
	var all []Status
	for _, p := range r.planes {
		if p.kind == readinessPlane {
			if st, shown := r.conditionStatus(); shown {
				all = append(all, st)
			}
		}
		for _, c := range *p.checks.Load() {
			all = append(all, c.status())
		}
	}
	slices.SortStableFunc(all, func(a, b Status) int {
		return cmp.Or(strings.Compare(a.Plane, b.Plane), strings.Compare(a.Name, b.Name))
	})
	return all
}

// NotReady returns nil when the readiness plane passes, and otherwise an error with a line
// for each critical check that fails it, as "db: connection refused", or "orders: caused
// by db" for a check that depends on another. It runs no check: it reads the last result
// of each and returns at once.
func (r *Registry) NotReady() error {
	var errs []error
	for _, c := range r.Snapshot() {
		switch {
		case c.Plane != Readiness || !c.Critical || c.State == Up:
		case c.CausedBy != "":
			errs = append(errs, fmt.Errorf("%s: caused by %s", c.Name, c.CausedBy))
		default:
			errs = append(errs, fmt.Errorf("%s: %s", c.Name, c.Error))
		}
	}
	return errors.Join(errs...)
}

func (c *check) status() Status {
	it := c.view()
	c.plane.explain(&it)
	last, running, _ := c.runner.Status()
	st := Status{
		Plane: c.plane.kind.String(), Name: c.name,
		State: it.state, Critical: !c.nonCritical,
		DependsOn: slices.Clone(c.dependsOn), CausedBy: it.causedBy, Error: it.text,
		Slow:    isLate(last.Err) || running >= c.timeout,
		Latency: last.Took, Runs: last.Run, Running: running,
	}
	_, st.Since = c.machine.Since()
	if last.Run > 0 {
		st.Checked = probe.At(last.Ended)
	}
	return st
}

// isLate reports whether a run failed because it, or something that it waited for, took too long.
func isLate(err error) bool {
	_, timedOut := call.As[*probe.TimeoutError](err)
	return timedOut || call.Is(err, context.DeadlineExceeded) || call.Is(err, os.ErrDeadlineExceeded)
}

func (r *Registry) conditionStatus() (st Status, shown bool) {
	it, shown := r.cond.Load().item(readinessPlane)
	_, since := r.lifecycle.Since()
	return Status{
		Plane: readinessPlane.String(), Name: it.name,
		State: it.state, Since: since, Critical: true, Error: it.text,
	}, shown
}
