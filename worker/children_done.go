package worker

import "slices"

// maxDone is how many children that are done a supervisor keeps. It forgets the oldest first.
const maxDone = 1000

// forgets reports whether the supervisor removes c, with its place and spec, when it has ended.
func (s *Supervisor) forgets(c *child) bool { return s.dynamic != nil || c.spec.Restart == Temporary }

// retire records that c has ended for good. It does nothing while c runs or may start again.
func (s *Supervisor) retire(c *child) {
	if s.ending || c.done || c.next != nil || c.leaving != stays || !c.isDown() {
		return
	}
	c.done = true
	c.answer(wantsStart, errGivenUp)
	gone := c
	if !s.forgets(c) {
		s.history = slices.DeleteFunc(s.history, func(old *child) bool {
			isPresent := s.byName[old.name] == old
			return old == c || !old.done || !isPresent
		})
		s.history = append(s.history, c)
		if len(s.history) <= maxDone {
			return
		}
		gone, s.history = s.history[0], s.history[1:]
	}
	s.unwatchHealth(gone)
	s.mu.Lock()
	s.drop(gone)
	s.mu.Unlock()
}
