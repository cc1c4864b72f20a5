package worker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// group has the children that are stopped, held and started together: a single child, or
// all that the strategy names. A child is in one group at a time, the last one that it
// joined. A child without a group waits for nothing.
type group struct {
	members   []*child // in order
	remaining int      // members that have not joined a later group
	phase     groupPhase
	cursor    int
	reason    *BackoffError // why the members wait, and until when; nil when they need not wait
	timer     *time.Timer
}

type groupPhase int

const (
	groupStopping groupPhase = iota // in reverse order, one after the other
	groupWaiting                    // until the backoff is over
	groupStarting                   // in order
	groupOver
)

// newGroup returns a group that stops its members from the last one on, or starts them from the
// first one on. Each member has to join it.
func newGroup(phase groupPhase, members ...*child) *group {
	g := &group{members: members, remaining: len(members), phase: phase}
	if phase == groupStopping {
		g.cursor = len(members) - 1
	}
	return g
}

// join moves c to g, which is new, and returns the group that it left.
func (c *child) join(g *group) (old *group) {
	old = c.group
	if old != nil {
		if old.remaining--; old.remaining == 0 {
			old.over()
		}
	}
	c.group = g
	return old
}

func (g *group) over() {
	g.phase = groupOver
	if g.timer != nil {
		g.timer.Stop()
	}
}

// eachMember calls fn for each member that has not joined a later group.
func (g *group) eachMember(fn func(c *child)) {
	for _, c := range g.members {
		if c.group == g {
			fn(c)
		}
	}
}

// advance takes the steps of g that are possible now. The loop calls it again
// after every message about a member.
func (s *Supervisor) advance(g *group) {
	if g == nil {
		return
	}
	if g.phase == groupStopping && s.stopNext(g) {
		s.allStopped(g)
	}
	if g.phase == groupStarting && s.startNext(g) {
		g.over()
		g.eachMember(func(c *child) { c.group = nil })
	}
}

// allStopped takes the next step once no member of g runs: the end of the supervisor, the
// removal of a child, the backoff, or the starts.
func (s *Supervisor) allStopped(g *group) {
	if g == s.final {
		g.over()
		s.finish()
		return
	}
	if c := g.members[0]; c.group == g && c.leaving != stays { // then it is alone
		s.withdrawn(c)
		return
	}
	g.phase, g.cursor = groupWaiting, 0
	g.eachMember(func(c *child) { c.answer(wantsStop, nil) }) // the next start may come later, or never
	wait := time.Duration(0)
	if g.reason != nil {
		wait = time.Until(g.reason.Due)
		g.eachMember(func(c *child) {
			hasToWait := wait > 0 || len(g.members) > 1 // a single child without a wait does not show as pending
			if c.toStart && hasToWait {
				s.hold(c, g.reason, g.reason.Due)
			}
		})
	}
	if wait <= 0 {
		g.phase = groupStarting
		return
	}
	g.timer = time.AfterFunc(wait, func() {
		s.box.Post(func() {
			if g.phase == groupWaiting {
				g.phase = groupStarting
				s.advance(g)
			}
		})
	})
}

// stopNext stops the last member that runs. When a Dynamic or a supervisor with StopTogether
// ends, it stops all at once. It returns true once no member runs.
func (s *Supervisor) stopNext(g *group) bool {
	stopsTogether := g == s.final && (s.dynamic != nil || s.cfg.StopTogether)
	if stopsTogether && !s.allAskedToStop {
		s.allAskedToStop = true
		s.stopEach(s.share(false))
	}
	for ; g.cursor >= 0; g.cursor-- {
		c := g.members[g.cursor]
		switch {
		case c.group != g:
		case c.instance != nil && c.instance.running:
			s.stopUnlessAsked(c.instance, s.share(!stopsTogether && g.isFollowed()))
			return false
		case c.op != nil: // the factory runs, or a Start that does not return
			s.cancelStart(c.op, s.share(!stopsTogether && g.isFollowed()))
			return false
		case c.instance != nil && !c.instance.settled:
			return false
		}
	}
	return true
}

// isFollowed reports whether a member has to be stopped after the one at the cursor.
func (g *group) isFollowed() bool {
	return slices.ContainsFunc(g.members[:g.cursor], func(c *child) bool {
		return c.group == g && (c.op != nil || c.instance != nil && c.instance.running)
	})
}

// share returns the deadline for the child that is stopped now. It leaves half of
// the remaining time for the others, if there are any.
func (s *Supervisor) share(others bool) time.Time {
	if s.deadline.IsZero() {
		return time.Time{}
	}
	remaining := time.Until(s.deadline)
	if !others {
		return time.Now().Add(remaining - remaining/20) // the rest is for the loop to notice the end
	}
	return time.Now().Add(remaining / 2)
}

// startNext starts the next member that the group has to start. It returns true
// once all are started.
func (s *Supervisor) startNext(g *group) bool {
	for ; g.cursor < len(g.members); g.cursor++ {
		c := g.members[g.cursor]
		switch {
		case c.group != g && g == s.first && s.startsAgain(c):
			return false // the children after it wait until it runs
		case c.group != g:
		case c.op != nil:
			return false
		case !c.toStart || s.holding && !s.admits(c):
		case s.abandoned[c.name] > 0:
			s.hold(c, errAbandonedRuns, time.Time{})
			return false
		case s.suspended:
			s.hold(c, errSuspended, time.Time{})
			return false
		default:
			s.start(c)
			return false
		}
	}
	return true
}

// startsAgain reports whether c, whose first start has failed, is started again. A child whose
// start was abandoned and has not returned does not count, so that it holds up no other: its
// StartTimeout is over.
func (s *Supervisor) startsAgain(c *child) bool {
	return !c.ran && (c.toStart || c.op != nil) && !s.holding && s.abandoned[c.name] == 0
}

// restartByPolicy restarts a child that has ended, or whose start has failed, if its
// policy says so. It reports whether it restarts the child.
func (s *Supervisor) restartByPolicy(c *child, end Status, err error) bool {
	isLast := !c.spec.Restart.after(end, err) // by the child's policy
	again := !s.holding && !isLast
	switch {
	case s.ending || c.leaving != stays:
		return false
	case call.Is(err, ErrTerminate):
		failure := fmt.Errorf("child %s: %w", c.name, err)
		if s.cfg.ContainTerminate {
			// The text alone: errors.Is must not find ErrTerminate.
			failure = fmt.Errorf("%s: %w", failure.Error(), ErrDoNotRestart)
		}
		s.endWith(failure)
		return false
	case c.group != nil && c.group.phase == groupStopping: // the group stops it anyway, and restarts it with the others
		c.toStart = c.toStart && again
		return c.toStart
	case again:
		s.restart(c, err)
	case isLast && c.spec.Significant:
		s.autoShutdown(c)
	}
	return again
}

// restart restarts a child, together with the children that the strategy names.
func (s *Supervisor) restart(c *child, err error) {
	now := time.Now()
	if !s.intensity.allow(now) {
		if err == nil {
			err = errEnded
		}
		s.endWith(fmt.Errorf("%w (%d restarts in %v): child %s: %w",
			ErrRestartIntensity, s.intensity.limit, s.intensity.window, c.name, err))
		return
	}
	if c.delays == nil {
		b := c.spec.Backoff
		if b == (Backoff{}) {
			b = s.cfg.Backoff
		}
		b.MaxRestarts = NoLimit
		c.delays = b.delays()
	}
	var uptime time.Duration // without the time that the start took
	if !c.upSince.IsZero() {
		uptime = now.Sub(c.upSince)
	}
	wait, _ := c.delays.failed(now, uptime)
	s.logRestart(c, err, wait)
	g := newGroup(groupStopping, s.together(c)...)
	g.reason = &BackoffError{Name: c.name, Wait: wait, Due: now.Add(wait), Failures: c.delays.failures, Err: err}
	var leftGroups []*group
	for _, m := range g.members {
		hasRunOnce := m.spec.Restart.once() && m.tried
		m.toStart = m == c || !hasRunOnce // another member that runs only once is stopped, and not started again
		if !m.toStart && m.op == nil {
			m.answer(wantsStart, errGivenUp) // otherwise the start that is under way answers
		}
		if old := m.join(g); old != nil && !slices.Contains(leftGroups, old) {
			leftGroups = append(leftGroups, old)
		}
	}
	s.advance(g)
	for _, old := range leftGroups {
		s.advance(old)
	}
}

// together returns the children that are restarted with c, in order.
func (s *Supervisor) together(c *child) (all []*child) {
	from := 0
	switch s.cfg.Strategy {
	case RestForOne:
		from = slices.Index(s.children, c)
	case OneForAll:
	default:
		return []*child{c}
	}
	for _, m := range s.children[from:] {
		if m == c || m.leaving == stays && m.isUp() {
			all = append(all, m)
		}
	}
	return all
}

func (s *Supervisor) endWith(err error) {
	if !s.ending {
		s.failure = err
		s.stopAll(err, time.Time{})
	}
}

// stopAll stops all children in reverse order, by the given time if it is not
// zero. A second call can only make that time earlier.
func (s *Supervisor) stopAll(cause error, by time.Time) {
	if isBefore(by, s.deadline) {
		s.deadline, s.allAskedToStop = by, false
	}
	if s.ending {
		s.advance(s.final) // what is stopping learns of the deadline
		return
	}
	s.ending, s.cause = true, cause
	g := newGroup(groupStopping, slices.Clone(s.children)...)
	s.final = g
	for _, c := range g.members {
		s.unhold(c)
		c.toStart = false
		c.next, c.before = nil, nil
		c.join(g)
	}
	s.advance(g)
}

// stopNow stops all remaining children at once.
func (s *Supervisor) stopNow(by time.Time) {
	if !s.ended {
		s.stopEach(by)
	}
}

// stopEach stops all children at once.
func (s *Supervisor) stopEach(by time.Time) {
	for _, c := range s.children {
		switch {
		case c.instance != nil && c.instance.running:
			s.stopUnlessAsked(c.instance, by)
		case c.op != nil:
			s.cancelStart(c.op, by)
		}
	}
}

// finish ends the supervisor's life once the last child has ended. The loop goes on while
// an abandoned instance or start runs.
func (s *Supervisor) finish() {
	s.ended = true
	s.endProbes()
	killed := s.abandonedErrs
	for _, c := range s.children {
		s.unwatchHealth(c)
		c.answerAll(ErrSupervisorEnded)
		if c.instance == nil || c.held != nil || c.instance.abandoned || c.spec.StopTimeout == BrutalKill {
			continue
		}
		if c.instance.end != nil && c.instance.end.status == StatusKilled {
			killed = append(killed, c.instance.end.err)
		}
	}
	switch {
	case len(killed) > 0 && s.StopRequested():
		s.Kill(errors.Join(killed...))
	case len(killed) > 0:
		s.failure = errors.Join(append([]error{s.failure}, killed...)...)
		s.abandon(s.failure)
	case len(s.abandoned) > 0 || s.calls > 0:
		s.abandon(s.failure)
	}
}

var (
	errEnded         = errors.New("it ended")
	errAbandonedRuns = errors.New("the instance before was abandoned and has not returned")
)
