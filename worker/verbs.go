package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// The verbs of a [Supervisor] for one of its children, beside Add and Remove.

// StopChild stops a child, or ends its wait for a restart, and keeps its [Spec]. The
// child is not started again before [Supervisor.RestartChild], also not together with
// others. It stays in the State, and its name stays taken. StopChild returns when the
// child has stopped, or was abandoned; the State says how it ended. When ctx ends first,
// it returns ctx's error and the stop goes on. A Temporary child is removed. For a name
// that no child has it returns [ErrNoChild], and before Start an error.
func (s *Supervisor) StopChild(ctx context.Context, name string) error {
	return s.askStarted(ctx, "stop child "+name+" of "+s.Name(), func(reply chan<- error) message {
		return stopChild{name: name, reply: reply}
	})
}

// RestartChild starts a child again: one that StopChild has stopped, that has ended, or
// that waits for a restart. It stops a running child first. The restart does not count as
// one of the Backoff, and a later failure waits for Min again.
//
// RestartChild returns nil once the new instance runs. It returns the error of a start
// that fails; the child's Restart decides whether the supervisor tries again. When ctx
// ends first, it returns ctx's error and the restart goes on. For a name that no child
// has it returns [ErrNoChild], before Start an error, and [ErrSupervisorEnded] when the
// supervisor starts no more children.
func (s *Supervisor) RestartChild(ctx context.Context, name string) error {
	return s.askStarted(ctx, "restart child "+name+" of "+s.Name(), func(reply chan<- error) message {
		return restartChild{name: name, reply: reply}
	})
}

// Replace gives the child of spec's name a new Spec. A running instance goes on. The next
// start uses the new New, StartTimeout and probe. The other fields hold at once: Restart,
// Backoff, StopTimeout, RestartUnhealthy and Significant. To start the child with the new
// Spec now, call [Supervisor.RestartChild] afterwards. For a name that no child has
// Replace returns [ErrNoChild], and [ErrSupervisorEnded] once the supervisor ends.
func (s *Supervisor) Replace(spec Spec) error {
	what := "replace child " + spec.Name + " of " + s.Name()
	if err := s.accepts(spec); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	s.begun.Lock()
	if !s.running && s.Status() == StatusCreated {
		defer s.begun.Unlock()
		i := slices.IndexFunc(s.cfg.Children, func(old Spec) bool { return old.Name == spec.Name })
		if i < 0 {
			return fmt.Errorf("%s: %w", what, ErrNoChild)
		}
		s.cfg.Children = slices.Clone(s.cfg.Children)
		s.cfg.Children[i] = spec
		s.setSpec(s.byName[spec.Name], spec)
		return nil
	}
	s.begun.Unlock()
	return s.ask(context.Background(), what, func(reply chan<- error) message {
		return replaceChild{spec: spec, reply: reply}
	})
}

// ChildSpec returns the Spec of a child, with its defaults filled in. It returns false
// for a name that no child has.
func (s *Supervisor) ChildSpec(name string) (Spec, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byName[name]
	if c == nil {
		return Spec{}, false
	}
	spec := *c.spec
	if s.kin == nil {
		spec.Name, spec.New = c.name, c.make
	}
	return spec, true
}

// Child describes one child as [Supervisor.State] does, without the cost of describing
// all. It returns false for a name that no child has.
func (s *Supervisor) Child(name string) (State, bool) {
	s.mu.Lock()
	c := s.byName[name]
	s.mu.Unlock()
	if c == nil {
		return State{}, false
	}
	return c.state(), true
}

// Counts are numbers of a supervisor's own children, not of those below them.
type Counts struct {
	Specs       int `json:"specs"`       // children that the supervisor has, running or not
	Active      int `json:"active"`      // children with an instance that has not ended
	Supervisors int `json:"supervisors"` // children whose present or last instance is a Supervisor
	Workers     int `json:"workers"`     // the other children
}

// Counts counts the children. It is cheaper than State, which describes each of them.
func (s *Supervisor) Counts() Counts {
	children := s.snapshot()
	n := Counts{Specs: len(children)}
	for _, c := range children {
		w, _ := c.current()
		if w == nil {
			continue
		}
		if treeOf(w.Worker) != nil {
			n.Supervisors++
		}
		if c.lives() {
			n.Active++
		}
	}
	n.Workers = n.Specs - n.Supervisors
	return n
}

// accepts returns an error for a spec that no child may have.
func (s *Supervisor) accepts(spec Spec) error {
	if s.kin != nil {
		return errTemplate
	}
	return errors.Join(spec.Validate(), s.cfg.AutoShutdown.accepts(spec))
}

// askStarted is ask for a supervisor that must have been started.
func (s *Supervisor) askStarted(ctx context.Context, what string, request func(reply chan<- error) message) error {
	if err := s.mustRun(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.ask(ctx, what, request)
}

// mustRun returns an error for a supervisor that was not started.
func (s *Supervisor) mustRun() error {
	s.begun.Lock()
	defer s.begun.Unlock()
	if !s.running {
		return fmt.Errorf("the supervisor does not run: it is %s", s.Status())
	}
	return nil
}

// await waits for the answer of the loop, until ctx ends or the supervisor is gone.
func (s *Supervisor) await(ctx context.Context, reply <-chan error) error {
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.Gone():
	}
	select {
	case err := <-reply:
		return err
	default:
		return ErrSupervisorEnded
	}
}

// caller is a caller who waits for a child. The channel has room for one answer.
type caller struct {
	wants wish
	reply chan<- error
}

// wish is what a caller waits for.
type wish int

const (
	awaitsRemoval wish = iota // the child is removed
	awaitsStop                // the child has stopped
	awaitsStart               // a start of the child has succeeded or failed
)

// errGivenUp answers a caller who waits for the start of a child that is not started.
var errGivenUp = errors.New("the child was stopped before it started")

// waits reports whether a caller has that wish.
func (c *child) waits(w wish) bool {
	return slices.ContainsFunc(c.callers, func(caller caller) bool { return caller.wants == w })
}

// leaves reports whether a caller removes or stops the child. Then no failure starts it
// again.
func (c *child) leaves() bool { return c.parked || c.waits(awaitsRemoval) }

// answer answers the callers who have that wish.
func (c *child) answer(w wish, err error) {
	if len(c.callers) == 0 {
		return
	}
	c.callers = slices.DeleteFunc(c.callers, func(caller caller) bool {
		if caller.wants == w {
			caller.reply <- err
		}
		return caller.wants == w
	})
}

// answerStart answers the callers who wait for a start, unless c is stopped first.
func (c *child) answerStart(err error) {
	if c.group == nil || c.group.phase != groupStopping || !c.want {
		c.answer(awaitsStart, err)
	}
}

// answerAll answers the callers of a child that is removed, or whose supervisor ends. Those
// who wait for a start get err.
func (c *child) answerAll(err error) {
	c.answer(awaitsRemoval, nil)
	c.answer(awaitsStop, nil)
	c.answer(awaitsStart, err)
}

// withdraw moves c to g, a group of its own that stops c and does not start it again.
func (s *Supervisor) withdraw(c *child, g *group) {
	s.unhold(c)
	c.want = false
	c.answer(awaitsStart, errGivenUp)
	s.single(c, g)
}

func (s *Supervisor) stopChild(m stopChild) {
	c := s.byName[m.name]
	switch {
	case s.ended:
		m.reply <- ErrSupervisorEnded
		return
	case c == nil:
		m.reply <- ErrNoChild
		return
	case s.forgets(c):
		s.remove(removeChild{name: m.name, reply: m.reply})
		return
	}
	c.callers = append(c.callers, caller{awaitsStop, m.reply})
	if s.ending || c.leaves() && c.group != nil {
		return // the stop in progress answers
	}
	c.parked, c.done = true, false
	s.withdraw(c, &group{phase: groupStopping, parks: true})
}

// parked answers the callers of StopChild.
func (s *Supervisor) parked(c *child) {
	c.group.over()
	c.group = nil
	s.unhold(c)
	s.unwatchHealth(c)
	s.try(c)
	c.answer(awaitsStop, nil)
}

func (s *Supervisor) restartChild(m restartChild) {
	c := s.byName[m.name]
	switch {
	case c == nil || c.waits(awaitsRemoval):
		m.reply <- ErrNoChild
		return
	case s.ending || s.holding:
		m.reply <- ErrSupervisorEnded
		return
	case s.kin != nil && c.tried && c.make == nil:
		m.reply <- fmt.Errorf("it is %s, and its argument was not kept", c.spec.Restart)
		return
	}
	c.callers = append(c.callers, caller{awaitsStart, m.reply})
	if !c.tried && !c.parked {
		return // its first start is to come
	}
	c.parked, c.done, c.want, c.delays = false, false, true, nil
	s.single(c, &group{phase: groupStopping, again: true})
}

// single moves c to g, as its only member, and takes the steps that are possible now.
func (s *Supervisor) single(c *child, g *group) {
	g.members = g.one[:]
	g.one[0] = c
	old := c.join(g)
	s.advance(g)
	s.advance(old)
}

func (s *Supervisor) replaceChild(m replaceChild) {
	switch c := s.byName[m.spec.Name]; {
	case s.ending:
		m.reply <- ErrSupervisorEnded
	case c == nil || c.waits(awaitsRemoval):
		m.reply <- ErrNoChild
	default:
		c.delays = nil
		s.setSpec(c, m.spec)
		m.reply <- nil
	}
}

// setSpec gives c a new spec.
func (s *Supervisor) setSpec(c *child, spec Spec) {
	spec.withDefaults()
	s.mu.Lock()
	c.make, c.spec = spec.New, s.intern(spec)
	s.mu.Unlock()
}
