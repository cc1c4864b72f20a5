package httpdrain

import "time"

// notice tells one handler that its request or its connection should end. A handler that
// has asked for its channel has a place of its own in the spread, so that the clients of
// streams, polls and websockets do not all come back at once. Server.mu guards it.
type notice struct {
	given     bool
	scheduled bool          // it has its place in the spread
	ch        chan struct{} // made when a handler asks for it
}

func (n *notice) give() {
	if n.given {
		return
	}
	n.given = true
	if n.ch != nil {
		close(n.ch)
	}
}

func (n *notice) channel() <-chan struct{} {
	if n.ch == nil {
		n.ch = make(chan struct{})
		if n.given {
			close(n.ch)
		}
	}
	return n.ch
}

// lateNotice is the time after which what arrives after the window is told, and then the
// time that a hijacked connection has to close.
const lateNotice = time.Second

// askedLocked returns the channel of a notice. One that is asked for after the goodbye has no
// place in the spread. It is given when half of the time that is left of the window is over,
// or a second later when none is left, so that what has just come can do some work, and its
// client asks again when the balancer may have noticed.
func (s *Server) askedLocked(n *notice) <-chan struct{} {
	if s.said && !n.scheduled {
		n.scheduled = true
		s.giveLaterLocked(n)
	}
	return n.channel()
}

func (s *Server) giveLaterLocked(n *notice) {
	if s.closing {
		n.give()
		return
	}
	wait := time.Until(s.expectedEnd) / 2
	if wait <= 0 || s.windowOver.Load() {
		wait = lateNotice
	}
	time.AfterFunc(wait, func() { s.give(n) })
}

func (s *Server) give(n *notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.give()
}
