package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// This file has the methods of a [Supervisor] for one of its children.

// Add adds a child, the last in order, and returns once the supervisor has
// accepted it. After Start, the supervisor also starts the child. The child takes
// the place of one of the same name that is done: it has ended, and is not started
// again. The error is [ErrNameTaken] while any other child has the name, even if
// Remove is stopping that child. It is [ErrSupervisorEnded] when the supervisor starts no more
// children.
func (s *Supervisor) Add(spec Spec) error {
	what := "add " + spec.Name + " to " + s.Name()
	if err := s.accepts(spec); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.request(context.Background(), what, func(reply chan<- error) {
		old := s.byName[spec.Name]
		switch {
		case s.ending || s.holding:
			reply <- ErrSupervisorEnded
			return
		case old != nil && (!old.done || old.next != nil):
			reply <- ErrNameTaken
			return
		}
		c := s.newChild(spec)
		s.mu.Lock()
		if old != nil {
			s.drop(old)
		}
		s.place(c)
		s.mu.Unlock()
		reply <- nil
		if s.running {
			s.enter(c)
		}
	})
}

// enter starts a child that was added.
func (s *Supervisor) enter(c *child) {
	s.untried++
	c.toStart = true
	s.single(c, groupStarting)
}

// Remove stops a child, or ends its wait for a restart, and removes it from the
// supervisor. It returns when the child is removed. When ctx ends first, it
// returns ctx's error and the removal goes on. For a name that no child has it
// returns [ErrNoChild].
func (s *Supervisor) Remove(ctx context.Context, name string) error {
	return s.request(ctx, "remove "+name+" from "+s.Name(), func(reply chan<- error) { s.remove(name, reply) })
}

func (s *Supervisor) remove(name string, reply chan<- error) {
	c := s.byName[name]
	switch {
	case s.ended:
		reply <- ErrSupervisorEnded
		return
	case c == nil:
		reply <- ErrNoChild
		return
	case !s.running:
		s.mu.Lock()
		s.drop(c)
		s.mu.Unlock()
		reply <- nil
		return
	}
	s.endNext(c, errGivenUp)
	c.callers = append(c.callers, caller{wantsRemoval, reply})
	if s.ending || c.leaving == removed {
		return // the stop in progress answers
	}
	c.leaving = removed
	s.withdraw(c)
}

// drop removes a child from the order. The caller holds mu.
func (s *Supervisor) drop(c *child) {
	if s.byName[c.name] == c {
		delete(s.byName, c.name)
	}
	s.beside = slices.DeleteFunc(s.beside, func(other *child) bool { return other == c })
	if s.dynamic != nil { // its children have no order
		last := len(s.children) - 1
		s.children[c.index] = s.children[last]
		s.children[c.index].index = c.index
		s.children[last] = nil
		s.children = s.children[:last]
		return
	}
	if i := slices.Index(s.children, c); i >= 0 {
		s.children = slices.Delete(s.children, i, i+1)
	}
}

// StopChild stops a child, or ends its wait for a restart, and keeps its [Spec]. The
// child is not started again before [Supervisor.RestartChild], also not together with
// others. It stays in the State, and its name stays taken. StopChild returns when the
// child has stopped, or was abandoned; the State says how it ended. When ctx ends first,
// it returns ctx's error and the stop goes on. A Temporary child is removed. For a name
// that no child has it returns [ErrNoChild], and before Start an error.
func (s *Supervisor) StopChild(ctx context.Context, name string) error {
	return s.requestStarted(ctx, "stop child "+name+" of "+s.Name(), func(reply chan<- error) {
		c := s.byName[name]
		switch {
		case s.ended:
			reply <- ErrSupervisorEnded
			return
		case c == nil:
			reply <- ErrNoChild
			return
		case s.forgets(c):
			s.remove(name, reply)
			return
		}
		s.endNext(c, errGivenUp)
		c.callers = append(c.callers, caller{wantsStop, reply})
		if s.ending || c.leaving != stays && c.group != nil {
			return // the stop in progress answers
		}
		c.leaving, c.done = parked, false
		s.withdraw(c)
	})
}

// withdraw moves c to a group of its own that stops c and does not start it again.
func (s *Supervisor) withdraw(c *child) {
	s.unhold(c)
	c.toStart = false
	c.answer(wantsStart, errGivenUp)
	s.single(c, groupStopping)
}

// single moves c to a group of its own, and takes the steps that are possible now.
func (s *Supervisor) single(c *child, phase groupPhase) {
	g := newGroup(phase, c)
	old := c.join(g)
	s.advance(g)
	s.advance(old)
}

// withdrawn handles the end of a child that was removed or stopped by its name.
func (s *Supervisor) withdrawn(c *child) {
	c.group.over()
	c.group = nil
	s.unhold(c)
	s.unwatchHealth(c)
	s.markTried(c)
	if c.leaving == parked {
		c.answer(wantsStop, nil)
		return
	}
	s.mu.Lock()
	s.drop(c)
	if after := s.byName[c.name]; after != nil && after.restarts > c.restarts { // it has replaced c
		after.exit = c.exit
	}
	s.mu.Unlock()
	c.answerAll(ErrNoChild)
}

// RestartChild starts a child again: one that StopChild has stopped, that has ended, or
// that waits for a restart. It stops a running child first. The restart does not count as
// one of the Backoff, and a later failure waits for Min again.
//
// A running [Process] with [WithListeners] is replaced by overlap: the new instance starts beside
// it, and the supervisor stops the old one once the new one is Running. So a process with
// [WithReady] is stopped when the next one is ready. When the new instance fails, or is not
// Running within the StartTimeout, the supervisor stops that one, and the old one runs on as if
// nothing had been. While there are two, the one that serves is the child, and the State has the
// other one among its Children. Calls at the same time are one restart. A [Dynamic] stops the
// old instance first.
//
// RestartChild returns nil once the new instance runs. It returns the error of a start
// that fails; the child's Restart decides whether the supervisor tries again. When ctx
// ends first, it returns ctx's error and the restart goes on. For a name that no child
// has it returns [ErrNoChild], before Start an error, and [ErrSupervisorEnded] when the
// supervisor starts no more children.
func (s *Supervisor) RestartChild(ctx context.Context, name string) error {
	return s.requestStarted(ctx, "restart child "+name+" of "+s.Name(), func(reply chan<- error) {
		c := s.byName[name]
		switch {
		case c == nil || c.leaving == removed:
			reply <- ErrNoChild
			return
		case s.ending || s.holding:
			reply <- ErrSupervisorEnded
			return
		case c.tried && c.factory == nil:
			reply <- fmt.Errorf("it is %s, and its argument was not kept", c.spec.Restart)
			return
		}
		if c.next != nil || s.overlaps(c) {
			s.startBeside(c, reply)
			return
		}
		c.callers = append(c.callers, caller{wantsStart, reply})
		if !c.tried && c.leaving == stays {
			return // its first start is to come
		}
		c.leaving, c.done, c.toStart, c.delays = stays, false, true, nil
		s.single(c, groupStopping)
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
	spec.withDefaults()
	return s.request(context.Background(), what, func(reply chan<- error) {
		c := s.byName[spec.Name]
		switch {
		case s.ending:
			reply <- ErrSupervisorEnded
		case c == nil || c.leaving == removed:
			reply <- ErrNoChild
		default:
			c.delays = nil
			s.mu.Lock()
			c.factory, c.spec = spec.New, &spec
			s.mu.Unlock()
			reply <- nil
		}
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
	return c.fullSpec(), true
}

// fullSpec returns the child's Spec. A child of a Dynamic has the Template. The caller
// holds mu, or there is no loop yet.
func (c *child) fullSpec() Spec {
	spec := *c.spec
	if c.s.dynamic == nil {
		spec.Name, spec.New = c.name, c.factory
	}
	return spec
}

// Child describes one child as [Supervisor.State] does, without the cost of describing
// all. It returns false for a name that no child has.
func (s *Supervisor) Child(name string) (State, bool) {
	s.mu.Lock()
	c, beside := s.byName[name], slices.Clone(s.beside)
	s.mu.Unlock()
	if c == nil {
		return State{}, false
	}
	return c.describe(beside), true
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
	children, _ := s.listed()
	n := Counts{Specs: len(children)}
	for _, c := range children {
		w := c.current()
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
	if s.dynamic != nil {
		return errTemplate
	}
	return errors.Join(spec.Validate(), s.cfg.AutoShutdown.accepts(spec))
}

// requestStarted is request for a supervisor that must have been started.
func (s *Supervisor) requestStarted(ctx context.Context, what string, handle func(reply chan<- error)) error {
	s.startMu.Lock()
	running := s.running
	s.startMu.Unlock()
	if !running {
		return fmt.Errorf("%s: the supervisor does not run: it is %s", what, s.Status())
	}
	return s.request(ctx, what, handle)
}

// errGivenUp answers a caller who waits for the start of a child that is not started.
var errGivenUp = errors.New("the child was stopped before it started")
