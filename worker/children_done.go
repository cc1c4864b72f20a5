package worker

import "slices"

// A supervisor keeps at most maxDone children that are done. When there are more, it
// forgets the oldest until minDone are left: so one walk through all children removes
// many.
const (
	maxDone = 1000
	minDone = 500
)

// forgets reports whether the supervisor removes c, with its place and spec, when it has ended.
func (s *Supervisor) forgets(c *child) bool { return s.dynamic != nil || c.spec.Restart == Temporary }

// retire records that c has ended for good. It does nothing while c runs or may start again.
func (s *Supervisor) retire(c *child) {
	if s.ending || c.done || c.next != nil || c.leaving != stays || !c.isDown() {
		return
	}
	c.done = true
	c.answer(wantsStart, errGivenUp)
	if s.forgets(c) {
		s.unwatchHealth(c)
		s.mu.Lock()
		s.drop(c)
		s.mu.Unlock()
		return
	}
	if c.listed { // it was done before, and was started again
		s.history = slices.DeleteFunc(s.history, func(old *child) bool { return old == c })
	}
	c.listed = true
	s.history = append(s.history, c)
	if len(s.history) <= maxDone {
		return
	}
	old := s.history[:len(s.history)-minDone]
	forgotten := make(map[*child]bool, len(old))
	for _, c := range old {
		c.listed = false
		if c.done { // otherwise it was started again
			forgotten[c] = true
			s.unwatchHealth(c)
		}
	}
	s.mu.Lock()
	s.children = slices.DeleteFunc(s.children, func(c *child) bool { return forgotten[c] })
	for c := range forgotten {
		if s.byName[c.name] == c { // otherwise the name was used again
			delete(s.byName, c.name)
		}
	}
	s.mu.Unlock()
	s.history = append([]*child(nil), s.history[len(old):]...)
}
