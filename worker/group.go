package worker

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// group is a number of children that are stopped, held and started together: a
// single child, or those that the strategy names. A child is in one group at a
// time, the last one that it joined. A child without a group waits for nothing.
type group struct {
	members []*child // in order
	left    int      // members that have not joined a later group
	phase   groupPhase
	cursor  int
	due     time.Time
	failed  string        // the child whose failure made the group
	err     error         // of that child
	wait    time.Duration // until due, from that failure on
	row     int           // failures of that child in a row
	timer   *time.Timer
	removes bool // its only child is removed once it has stopped
	parks   bool // its only child is not started again
	again   bool // its only child is started again, whatever its policy is
	final   bool // the supervisor ends once all have stopped
	asked   bool // all members were asked to stop at once
	one     [1]*child
}

type groupPhase int

const (
	groupStopping groupPhase = iota // in reverse order, one after the other
	groupWaiting                    // until the backoff is over
	groupStarting                   // in order
	groupOver
)

// join moves c to g, and returns the group that it left.
func (c *child) join(g *group) (old *group) {
	old = c.group
	if old != nil && old != g {
		if old.left--; old.left == 0 {
			old.over()
		}
	}
	c.group = g
	g.left++
	g.cursor = len(g.members) - 1
	if g.phase == groupStarting {
		g.cursor = 0
	}
	return old
}

// reason says why the members wait.
func (g *group) reason() error {
	return &BackoffError{Name: g.failed, Wait: g.wait, Due: g.due, Failures: g.row, Err: g.err}
}

func (g *group) over() {
	g.phase = groupOver
	if g.timer != nil {
		g.timer.Stop()
	}
}

// advance takes the steps of g that are possible now. The loop calls it again
// after every message about a member.
func (s *Supervisor) advance(g *group) {
	if g == nil {
		return
	}
	switch g.phase {
	case groupStopping:
		if !s.stopNext(g) || g.phase != groupStopping {
			return
		}
		switch {
		case g.final:
			g.over()
			s.finish()
			return
		case g.removes:
			s.removed(g.members[0])
			return
		case g.parks:
			s.parked(g.members[0])
			return
		}
		g.phase, g.cursor = groupWaiting, 0
		for _, c := range g.members {
			if c.group == g {
				c.answer(awaitsStop, nil) // the start may have to wait, or not come
			}
		}
		wait := time.Until(g.due)
		if wait > 0 || len(g.members) > 1 { // do not show a single child as pending when it need not wait
			for _, c := range g.members {
				if c.group == g && c.want {
					s.hold(c, g.reason(), g.due)
				}
			}
		}
		if wait > 0 {
			g.timer = time.AfterFunc(wait, func() { s.box.Post(backoffOver{g: g}) })
			return
		}
		g.phase = groupStarting
		fallthrough
	case groupStarting:
		if !s.startNext(g) {
			return
		}
		g.over()
		for _, c := range g.members {
			if c.group == g {
				c.group = nil
			}
		}
	}
}

func (s *Supervisor) backoffOver(g *group) {
	if g.phase == groupWaiting {
		g.phase = groupStarting
		s.advance(g)
	}
}

// stopNext stops the last member that runs, and all that run in a Dynamic. It returns
// true once no member runs.
func (s *Supervisor) stopNext(g *group) bool {
	if (s.kin != nil || s.cfg.StopTogether) && g.final && !g.asked {
		g.asked = true
		s.stopEach(s.share(0))
	}
	for ; g.cursor >= 0; g.cursor-- {
		c := g.members[g.cursor]
		switch {
		case c.group != g:
		case c.lives():
			if c.stopping == 0 && !c.asked {
				w, _ := c.current()
				s.stop(c, w, s.share(g.cursor))
			}
			return false
		case c.stopping > 0 && !c.abandoned || c.asked:
			return false
		case c.op != nil: // the factory runs, or a Start that does not return
			s.cutShort(c, s.share(g.cursor))
			return false
		default:
			s.decide(c) // it ended by itself and its group restarts it, so do not count another failure
		}
	}
	return true
}

// cutShort makes a start end without a running instance. When the start does not
// end, startOverdue abandons it.
func (s *Supervisor) cutShort(c *child, by time.Time) {
	s.mu.Lock()
	c.op.late = true
	s.mu.Unlock()
	s.cutWait(c.op)
	if c.op.timer == nil || c.op.ending && by.IsZero() {
		return
	}
	c.op.ending = true
	limit, bounded := c.spec.stopLimit(nil)
	if !bounded {
		limit = defaultStopTimeout
	}
	if !by.IsZero() {
		limit = min(limit, time.Until(by))
	}
	c.op.timer.Reset(limit)
}

// share returns the deadline for the child that is stopped now. It leaves half of
// the remaining time for the others.
func (s *Supervisor) share(others int) time.Time {
	if s.deadline.IsZero() {
		return time.Time{}
	}
	left := time.Until(s.deadline)
	if others == 0 {
		return time.Now().Add(left - left/20)
	}
	return time.Now().Add(left / 2)
}

// startNext starts the next member that the group has to start. It returns true
// once all are started.
func (s *Supervisor) startNext(g *group) bool {
	started := 0
	for ; g.cursor < len(g.members); g.cursor++ {
		c := g.members[g.cursor]
		switch {
		case c.group != g && g == s.first && s.comes(c):
			return false
		case c.group != g:
		case c.op != nil:
			return false
		case !c.want || s.holding && !s.admits(c):
		case s.abandonedOf[c.name] > 0:
			s.holdBecause(c, "the instance before was abandoned and has not returned")
			return false
		case s.suspended:
			s.holdBecause(c, errSuspended.Error())
			return false
		case started == maxStarts:
			s.box.Post(goOn{g: g})
			return false
		default:
			if !s.start(c) {
				return false
			}
			started++
		}
	}
	return true
}

// maxStarts is how many children that start at once the loop starts before it looks
// at other messages.
const maxStarts = 256

// comes reports whether c, whose first start has failed, is started again. A child
// with an abandoned start that has not returned holds up no other: its StartTimeout
// is over.
func (s *Supervisor) comes(c *child) bool {
	return !c.ran && (c.want || c.op != nil) && !s.holding && s.abandonedOf[c.name] == 0
}

func (s *Supervisor) holdBecause(c *child, reason string) {
	if _, held := c.current(); held == nil || held.Status() != StatusPending || held.State().Reason != reason {
		s.hold(c, errors.New(reason), time.Time{})
	}
}

// consider restarts a child that has ended, or whose start has failed, if its
// policy says so. It reports whether it restarts the child.
func (s *Supervisor) consider(c *child, end Status, err error) bool {
	last := !c.spec.Restart.after(end, err)
	again := !s.holding && !last
	switch {
	case s.ending || c.leaves():
		return false
	case errors.Is(err, ErrTerminate):
		failure := fmt.Errorf("child %s: %w", c.name, err)
		if s.cfg.ContainTerminate {
			failure = fmt.Errorf("%s: %w", failure.Error(), ErrDoNotRestart) // the text alone: errors.Is must not find ErrTerminate
		}
		s.failWith(failure)
		return false
	case c.group != nil && c.group.phase == groupStopping: // the group stops it anyway, and restarts it with the others
		c.want = c.want && (again || c.group.again)
		return c.want
	case again:
		s.fail(c, err)
	case last && c.spec.Significant:
		s.autoShutdown(c)
	}
	return again
}

// fail restarts a child that has failed, and those that the strategy names.
func (s *Supervisor) fail(c *child, err error) {
	now := time.Now()
	if !s.intensity.allow(now) {
		if err == nil {
			err = errEnded
		}
		s.failWith(fmt.Errorf("%w (%d restarts in %v): child %s: %w", ErrRestartIntensity, s.intensity.limit, s.intensity.window, c.name, err))
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
	wait, _ := c.delays.failed(now, now.Sub(c.began))
	s.logRestart(c, err, wait)
	if wait < time.Microsecond && s.alone(c) {
		s.start(c)
		return
	}
	g := &group{phase: groupStopping, due: now.Add(wait), failed: c.name, err: err, wait: wait, row: c.delays.failures}
	switch from := 0; s.cfg.Strategy {
	case RestForOne:
		from = slices.Index(s.children, c)
		fallthrough
	case OneForAll:
		for _, m := range s.children[from:] {
			if m == c || !m.leaves() && (m.lives() || m.op != nil || m.want || m.unheard()) {
				g.members = append(g.members, m)
			}
		}
	default:
		g.members = g.one[:]
		g.one[0] = c
	}
	var left []*group
	for _, m := range g.members {
		if m != c && m.spec.Restart.once() && m.tried {
			m.want = false // stop it with the others, but do not start it again
			if m.op == nil {
				m.answer(awaitsStart, errGivenUp) // otherwise the start that is under way answers
			}
		} else {
			m.want = true
		}
		if old := m.join(g); old != nil && !slices.Contains(left, old) {
			left = append(left, old)
		}
	}
	s.advance(g)
	for _, old := range left {
		s.advance(old)
	}
}

// alone reports whether c, which has ended, can be started at once and without others.
func (s *Supervisor) alone(c *child) bool {
	together := s.cfg.Strategy == OneForAll || s.cfg.Strategy == RestForOne
	return !together && c.group == nil && c.op == nil && c.stopping == 0 && !c.asked && c.decided &&
		!s.suspended && !s.holding && len(s.abandoned) == 0
}

// removed takes a child out of the supervisor and answers the callers of Remove.
func (s *Supervisor) removed(c *child) {
	if c.group != nil {
		c.group.over()
	}
	c.group = nil
	s.unhold(c)
	s.unwatchHealth(c)
	if !c.tried {
		s.try(c)
	}
	s.mu.Lock()
	s.drop(c)
	s.mu.Unlock()
	c.answerAll(ErrNoChild)
}

// failWith ends the supervisor with err.
func (s *Supervisor) failWith(err error) {
	if !s.ending {
		s.failure = err
		s.stopAll(err, time.Time{})
	}
}

// stopAll stops all children in reverse order, by the given time if it is not
// zero. A second call can only make that time earlier.
func (s *Supervisor) stopAll(cause error, by time.Time) {
	if !by.IsZero() && (s.deadline.IsZero() || by.Before(s.deadline)) {
		s.deadline = by
		if s.hurryAt != nil {
			s.hurryAt.Stop()
		}
		left := time.Until(by)
		s.hurryAt = time.AfterFunc(left-left/10, func() { s.box.Post(stopNow{by: by}) })
	}
	if s.ending {
		return
	}
	s.ending, s.cause = true, cause
	g := &group{members: slices.Clone(s.children), phase: groupStopping, final: true}
	for _, c := range g.members {
		s.unhold(c)
		c.want = false
		c.join(g)
	}
	g.cursor = len(g.members) - 1
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
		case c.lives():
			w, _ := c.current()
			s.stop(c, w, by)
		case c.op != nil:
			s.cutShort(c, by)
		}
	}
}

// finish ends the supervisor once the last child has ended.
func (s *Supervisor) finish() {
	if s.hurryAt != nil {
		s.hurryAt.Stop()
	}
	if s.overdue != nil {
		s.overdue.Stop()
	}
	s.ended = true
	s.logOthers()
	s.endProbes()
	for _, c := range s.children {
		s.unwatchHealth(c)
		c.answerAll(ErrSupervisorEnded)
	}
	s.conclude()
}

// conclude ends the supervisor's life. The loop goes on while an abandoned
// instance or start runs.
func (s *Supervisor) conclude() {
	var killed []error
	for _, c := range s.children {
		if c.w == nil || c.held != nil || !c.w.ended() {
			continue
		}
		if end := c.w.ending(c.name); end.status == StatusKilled && c.spec.StopTimeout != BrutalKill {
			killed = append(killed, end.err)
		}
	}
	killed = append(killed, s.abandonedErrs...)
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

var errEnded = errors.New("it ended")
