package lifecycle

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/probe"
)

// ProbeStatus is what is known about one check, as plain data.
type ProbeStatus struct {
	Plane    string     `json:"plane"` // "liveness", "readiness" or "startup"
	Name     string     `json:"name"`
	State    ProbeState `json:"state"`
	Since    time.Time  `json:"since"` // when it entered that state
	Critical bool       `json:"critical"`
	// Error is what the last run said, "" when it passed. A check that is up
	// has one while it is below its failure threshold.
	Error string `json:"error,omitempty"`
	// Checked is when the last run ended, the zero time when none has.
	Checked time.Time `json:"checked,omitzero"`
	// Latency is how long the last run took.
	Latency time.Duration `json:"latency"`
	// Runs is how many runs have ended.
	Runs uint64 `json:"runs"`
	// Running is how long the run in progress has been going on, 0 when there
	// is none.
	Running time.Duration `json:"running,omitempty"`
}

// Snapshot returns what is known about every check, sorted by plane and name,
// and runs none. On the readiness plane the built-in condition "lifecycle" is
// among them when somebody manages it.
func (r *Registry) Snapshot() []ProbeStatus {
	var all []ProbeStatus
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
	slices.SortStableFunc(all, func(a, b ProbeStatus) int {
		return cmp.Or(strings.Compare(a.Plane, b.Plane), strings.Compare(a.Name, b.Name))
	})
	return all
}

func (c *check) status() ProbeStatus {
	it, _ := c.view(nil)
	last, running, _ := c.runner.Status()
	_, since := c.machine.Since()
	st := ProbeStatus{
		Plane: c.plane.kind.String(), Name: c.name,
		State: it.state, Since: since, Critical: c.critical, Error: it.text,
		Latency: last.Took, Runs: last.Run, Running: running,
	}
	if last.Run > 0 {
		st.Checked = probe.At(last.Ended)
	}
	return st
}

func (r *Registry) conditionStatus() (st ProbeStatus, shown bool) {
	it, shown := r.cond.Load().item(readinessPlane)
	_, since := r.lifecycle.Since()
	return ProbeStatus{
		Plane: readinessPlane.String(), Name: it.name,
		State: it.state, Since: since, Critical: true, Error: it.text,
	}, shown
}
