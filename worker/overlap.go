package worker

import (
	"fmt"
	"slices"
)

// This file replaces a child by overlap: a second child of the same name starts beside it, and
// takes its name when it runs. Both are children like all others until then, so that the end of
// the supervisor, a suspension and the strategies need no rule for them.

// overlaps reports whether a restart of c by its name is by overlap.
func (s *Supervisor) overlaps(c *child) bool {
	i := c.instance
	if i == nil || !i.running || c.leaving != stays || s.dynamic != nil {
		return false
	}
	w, ok := i.Worker.(interface{ overlaps() bool })
	if !ok || !w.overlaps() {
		return false
	}
	isStopped := c.group != nil && c.group.phase != groupStarting
	status := i.status()
	return !isStopped && (status == StatusRunning || status == StatusSuspended)
}

// startBeside starts the child that replaces c, unless it starts already.
func (s *Supervisor) startBeside(c *child, reply chan<- error) {
	if c.next != nil {
		c.next.callers = append(c.next.callers, caller{wantsStart, reply})
		return
	}
	next := &child{
		s:        s,
		name:     c.name,
		factory:  c.factory,
		spec:     c.spec,
		exit:     c.exit,
		restarts: c.restarts,
		toStart:  true,
		tried:    true, // it is a restart
		before:   c,
		callers:  []caller{{wantsStart, reply}},
	}
	c.next = next
	s.mu.Lock()
	s.children = slices.Insert(s.children, slices.Index(s.children, c)+1, next)
	s.beside = append(s.beside, next)
	s.mu.Unlock()
	s.single(next, groupStarting)
}

// takeOver gives a child that runs the name of the one that it replaces, and removes that one.
func (s *Supervisor) takeOver(next *child) {
	c := next.before
	c.next, next.before = nil, nil
	s.mu.Lock()
	s.byName[next.name] = next
	s.beside[slices.Index(s.beside, next)] = c
	s.mu.Unlock()
	c.leaving = removed
	s.withdraw(c)
}

// endNext stops and removes the child that was to replace c, if there is one.
func (s *Supervisor) endNext(c *child, err error) {
	next := c.next
	if next == nil {
		return
	}
	c.next, next.before = nil, nil
	next.answer(wantsStart, fmt.Errorf("the new instance is given up, and the one before goes on: %w", err))
	failed := &ending{status: StatusFailed, err: err}
	s.logFailure(next, "the new instance of a child failed, and the one before goes on", failed)
	next.leaving = removed
	s.withdraw(next)
	s.retire(c) // it may have ended meanwhile
}

// describe returns the State of a child, with those beside it among its Children.
func (c *child) describe(beside []*child) State {
	state := c.state()
	for _, other := range beside {
		if other.name == c.name {
			replacement := other.state()
			replacement.Restarts = 0 // they are the child's
			state.Children = append(state.Children, replacement)
		}
	}
	return state
}
