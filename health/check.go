package health

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/probe"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// check is one registered probe: its runner, and the state that follows from its
// results.
type check struct {
	config
	plane   *plane
	name    string
	runner  *probe.Check
	machine *fsm.Machine[State] // changed under the lock

	mu      sync.Mutex // guards everything below; taken before the runner's
	text    string     // the error text of the last run, "" when it passed
	bad     int        // runs in a row that have not passed
	good    int        // runs in a row that have passed
	hungRun uint64     // the last run that was overdue
	hung    int        // how often countOverdue has counted that run as failed
}

func newCheck(p *plane, name string, pr Probe, cfg config) *check {
	c := &check{
		config:  cfg,
		plane:   p,
		name:    name,
		machine: p.reg.newMachine(p.kind, name, Unknown),
		text:    notChecked,
	}
	c.runner = probe.New(name, cfg.timeout, pr.Check, c.record)
	return c
}

const notChecked = "not checked yet"

// maxErrorText bounds the text of an error in an answer, in bytes.
const maxErrorText = 1024

// verdict returns the state and the text of a run that has not passed. A check is
// unknown only when it returned that in time; a late or panicking check is down.
func verdict(err error) (State, string) {
	if late, ok := call.As[*probe.TimeoutError](err); ok {
		return Down, text.Clip(late.Error(), maxErrorText)
	}
	if p, ok := call.As[*call.PanicError](err); ok {
		return Down, text.Clip("panic: "+p.Text(), maxErrorText)
	}
	state := Down
	if call.Is(err, ErrUnknown) {
		state = Unknown
	}
	return state, text.Clip(err.Error(), maxErrorText)
}

// record adds the end of a run. The runner calls it.
func (c *check) record(res probe.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if res.Err == nil {
		c.bad = 0
		c.good = min(c.good+1, c.successes)
		c.text = ""
		if c.good >= c.successes {
			c.toLocked(Up, nil)
		}
		return
	}
	c.good = 0
	if isCounted := c.hungRun == res.Run; !isCounted { // countOverdue counts a run that hangs
		c.bad = min(c.bad+1, c.failures)
	}
	state, text := verdict(res.Err)
	c.text = text
	if c.bad >= c.failures {
		c.toLocked(state, res.Err)
	}
}

// countOverdue counts the run in progress as failed, once for each timeout that it has
// lasted. It returns how long the run has lasted, or 0 when no run is overdue.
func (c *check) countOverdue() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, runningFor, isRunning := c.runner.Status()
	if !isRunning || runningFor < c.timeout {
		return 0
	}
	if run := last.Run + 1; c.hungRun != run {
		c.hungRun, c.hung = run, 0
	}
	if n := int(runningFor / c.timeout); n > c.hung {
		c.bad = min(c.bad+n-c.hung, c.failures)
		c.hung, c.good = n, 0
		if c.bad >= c.failures {
			c.toLocked(Down, fmt.Errorf("still running for %v", probe.Round(runningFor)))
		}
	}
	return runningFor
}

// expire sets the state of a check whose last result, from the given run, is too old.
// It returns false when there is a newer result.
func (c *check) expire(run uint64, why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, _, _ := c.runner.Status(); last.Run != run {
		return false
	}
	c.good = 0
	state := Unknown
	if c.plane.kind == livenessPlane {
		state = Down // on liveness unknown passes, but a check that never ends must not
	}
	c.toLocked(state, errors.New(why))
	return true
}

// toLocked changes the state. A change to the same state does nothing.
func (c *check) toLocked(state State, cause error) {
	if state == c.machine.State() {
		return
	}
	_ = c.machine.To(state, cause) // the table allows every change
}

// passes reports whether the check, by its last result, lets its plane pass.
func (c *check) passes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return statePasses(c.plane.kind, c.machine.State())
}

// item is the part of an answer about one check.
type item struct {
	name        string
	state       State
	text        string // "" when its last run passed
	note        string // shown instead of "ok" when the check is up
	causedBy    string // the check that causes its failure, "" for none
	nonCritical bool
	dependsOn   []string
	excluded    bool
}

// view returns the part of an answer about the check.
func (c *check) view() item {
	it := item{name: c.name, nonCritical: c.nonCritical, dependsOn: c.dependsOn}
	overdueFor := c.countOverdue()
	stale := ""
	if overdueFor == 0 {
		stale = c.expireIfStale()
	}
	c.mu.Lock()
	it.state, it.text = c.machine.State(), c.text
	c.mu.Unlock()
	switch {
	case overdueFor > 0:
		it.text = fmt.Sprintf("still running for %v", probe.Round(overdueFor))
	case stale != "":
		it.text = stale
	}
	return it
}

// expireIfStale sets the state of a check whose last result is too old, and returns why it is
// too old, or "".
func (c *check) expireIfStale() (why string) {
	last, _, _ := c.runner.Status()
	age := probe.Now() - last.Ended
	if last.Run == 0 || c.maxAge == 0 || age <= c.maxAge {
		return ""
	}
	why = fmt.Sprintf("the last result is %v old", probe.Round(age))
	if !c.expire(last.Run, why) {
		return ""
	}
	return why
}

// renewal returns the age of a result at which a probe runs the check again. With
// 0 every probe runs it.
func (c *check) renewal() time.Duration { return max(c.ttl, c.interval) }

// due reports whether a probe at now has to run the check.
func (c *check) due(now time.Duration) bool {
	if c.renewal() == 0 {
		return true
	}
	last, _, _ := c.runner.Status()
	if last.Run == 0 {
		return true
	}
	if c.interval > 0 && c.plane.reg.active.Load() {
		return false // the scheduler runs it
	}
	return now >= last.Ended+c.renewal()
}
