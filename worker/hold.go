package worker

// HoldRestarts lets running children finish, and starts no more. An App calls it
// when it begins to drain.
func (s *Supervisor) HoldRestarts() { s.box.post(holdRestarts{}) }

func (s *Supervisor) holdRestarts() {
	s.holding = true
	for _, c := range s.children {
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
