package worker

// HoldRestarts lets running children finish, and starts no more. An App calls it
// when it begins to drain. A [Dynamic] still starts children that [Dynamic.Add] adds.
func (s *Supervisor) HoldRestarts() { s.box.Post(holdRestarts{}) }

func (s *Supervisor) holdRestarts() {
	s.holding = true
	for _, c := range s.children {
		if s.admits(c) {
			continue
		}
		s.unhold(c)
		c.want = false
		if c.op == nil {
			c.answer(awaitsStart, ErrSupervisorEnded)
		}
		if !c.lives() {
			continue
		}
		w, _ := c.current()
		if h, ok := w.Worker.(interface{ HoldRestarts() }); ok {
			w.tell("HoldRestarts", h.HoldRestarts)
		}
	}
}

// admits reports whether c starts while an App drains: a new child of a Dynamic does.
func (s *Supervisor) admits(c *child) bool { return s.kin != nil && !c.tried }
