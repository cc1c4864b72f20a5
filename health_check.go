package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/probe"
)

// check is one registered probe: its runner, and the state that its results
// add up to.
type check struct {
	probeConfig
	plane  *plane
	name   string
	runner *probe.Check

	mu      sync.Mutex // guards everything that follows; taken before the runner's
	machine *fsm.Machine[ProbeState]
	state   ProbeState // the machine's
	text    string     // what the last run said, "" when it passed
	bad     int        // runs in a row that have not passed
	good    int        // runs in a row that have
	hungRun uint64     // the run that was last seen overdue
	hung    int        // how often that run has been counted as failed
}

func newCheck(p *plane, name string, pr Probe, cfg probeConfig) *check {
	c := &check{
		probeConfig: cfg,
		plane:       p,
		name:        name,
		machine:     fsm.MustNew("probe", p.kind.String()+"/"+name, probeTable, StateUnknown, p.reg.events),
		state:       StateUnknown,
		text:        notChecked,
	}
	c.runner = p.group.New(name, cfg.timeout, func(ctx context.Context) error {
		if err := pr.Check(ctx); err != nil {
			return newFailure(call.Freeze(name, err))
		}
		return nil
	}, c.record)
	return c
}

const notChecked = "not checked yet"

// maxErrorText bounds what an error contributes to an answer, in bytes.
const maxErrorText = 1024

// failure is what a check returned, frozen, with the text that is shown of it.
type failure struct {
	error
	text    string
	unknown bool
}

func newFailure(err error) *failure {
	return &failure{error: err, text: clip(err.Error(), maxErrorText), unknown: errors.Is(err, ErrUnknown)}
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.error }

// verdict is the state and the text of a run that has not passed. Only what the
// check itself returned can be unknown: a late or a panicking one is down.
func verdict(err error) (ProbeState, string) {
	if f, ok := err.(*failure); ok && f.unknown { //nolint:errorlint // wrapped in a timeout it is down
		return StateUnknown, f.text
	}
	if late := new(probe.TimeoutError); errors.As(err, &late) {
		return StateDown, clip(late.Error(), maxErrorText)
	}
	if p := new(call.PanicError); errors.As(err, &p) {
		return StateDown, clip("panic: "+p.Text(), maxErrorText)
	}
	return StateDown, clip(err.Error(), maxErrorText)
}

// record adds the end of a run. The runner calls it.
func (c *check) record(res probe.Result) (settled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if res.Err == nil {
		c.bad = 0
		c.good = min(c.good+1, c.successes)
		c.textLocked("")
		if c.good >= c.successes {
			c.toLocked(StateUp, nil)
		}
		return c.state == StateUp
	}
	c.good = 0
	if c.hungRun != res.Run {
		c.bad = min(c.bad+1, c.failures)
	} // else it was counted while it hung
	state, text := verdict(res.Err)
	c.textLocked(text)
	if c.bad >= c.failures {
		c.toLocked(state, res.Err)
	}
	return false
}

// overdue counts the run in progress as failed, once for every timeout that it
// has been going on for. It returns for how long that is, or 0 when no run is
// overdue.
func (c *check) overdue() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, running, ok := c.runner.Status()
	if !ok || running < c.timeout {
		return 0
	}
	if run := last.Run + 1; c.hungRun != run {
		c.hungRun, c.hung = run, 0
	}
	if n := int(running / c.timeout); n > c.hung {
		c.bad = min(c.bad+n-c.hung, c.failures)
		c.hung, c.good = n, 0
		if c.bad >= c.failures {
			c.toLocked(StateDown, fmt.Errorf("still running for %v", probe.Round(running)))
		}
	}
	return running
}

// expire makes the state that of a check whose result of the given run is too
// old. It returns false when there is a newer one.
func (c *check) expire(run uint64, why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.runner.Unsettle(run) {
		return false
	}
	c.good = 0
	state := StateUnknown
	if c.plane.kind == livenessPlane {
		state = StateDown // or a check that never ends again would pass for ever
	}
	c.toLocked(state, errors.New(why))
	return true
}

// toLocked changes the state. To the same one is no change.
func (c *check) toLocked(state ProbeState, cause error) {
	if state == c.state {
		return
	}
	c.state = state
	c.plane.changed()              // first: who was told of the change must not get the old answer
	_ = c.machine.To(state, cause) // the table allows every change
}

func (c *check) textLocked(text string) {
	if text != c.text {
		c.text = text
		c.plane.changed()
	}
}

// item is what an answer says about one check.
type item struct {
	name     string
	state    ProbeState
	text     string // "" when its last run passed
	note     string // said in place of "ok" when it is up
	critical bool
	excluded bool
}

// view returns what an answer says about the check. unfinished are the runs that
// the probe has stopped waiting for. volatile is true when the text holds a
// duration.
func (c *check) view(unfinished []probe.Unfinished) (it item, volatile bool) {
	it = item{name: c.name, critical: c.critical}
	hung := c.overdue()
	stale := ""
	if last, _, _ := c.runner.Status(); hung == 0 && last.Run > 0 {
		stale = c.stale(last, unfinished)
		if stale != "" && !c.expire(last.Run, stale) {
			stale = ""
		}
	}
	c.mu.Lock()
	it.state, it.text = c.state, c.text
	c.mu.Unlock()
	switch {
	case hung > 0:
		it.text, volatile = fmt.Sprintf("still running for %v", probe.Round(hung)), true
	case stale != "":
		it.text, volatile = stale, true
	}
	return it, volatile
}

// stale says why the last result is too old, or "".
func (c *check) stale(last probe.Result, unfinished []probe.Unfinished) string {
	if c.maxAge > 0 {
		if age := probe.Now() - last.Ended; age > c.maxAge {
			return fmt.Sprintf("the last result is %v old", probe.Round(age))
		}
		return ""
	}
	for _, u := range unfinished {
		if u.Check == c.runner && u.Run > last.Run {
			return fmt.Sprintf("no result within %v", c.plane.reg.timeout)
		}
	}
	return ""
}

// never is before every reading of the clock, which may be negative: in a
// synctest bubble it is.
const never = time.Duration(math.MinInt64)

// renewal is the age from which on a probe runs the check again: 0 for every
// probe.
func (c *check) renewal() time.Duration { return max(c.ttl, c.interval) }

// due says whether a probe at now has to run the check.
func (c *check) due(now time.Duration) bool {
	if c.renewal() == 0 {
		return true
	}
	last, _, _ := c.runner.Status()
	if last.Run == 0 {
		return true
	}
	if c.interval > 0 && c.plane.reg.active.Load() {
		return false // the scheduler does
	}
	return now >= last.Ended+c.renewal()
}

// freshUntil is how long an answer about the check holds unless a change is
// reported.
func (c *check) freshUntil() time.Duration {
	if c.renewal() == 0 {
		return never
	}
	last, _, _ := c.runner.Status()
	switch {
	case last.Run == 0:
		return never
	case c.interval > 0 && c.plane.reg.active.Load():
		return last.Ended + c.maxAge
	}
	return last.Ended + c.renewal()
}
