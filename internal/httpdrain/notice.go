package httpdrain

import "time"

// notice tells one handler that its request or its connection should end. A handler that
// has asked for its channel has a place of its own in the spread, so that the clients of
// streams, polls and websockets do not all come back at once. Server.mu guards it.
type notice struct {
	asked     bool          // a handler looks at it
	given     time.Time     // when it was given, zero for not yet
	scheduled bool          // it has its place in the spread
	ch        chan struct{} // made when a handler asks for it
}

func (n *notice) give() {
	if !n.given.IsZero() {
		return
	}
	n.given = time.Now()
	if n.ch != nil {
		close(n.ch)
	}
}

func (n *notice) channel() <-chan struct{} {
	if n.ch == nil {
		n.ch = make(chan struct{})
		if !n.given.IsZero() {
			close(n.ch)
		}
	}
	return n.ch
}

// rest returns how much of its time a hijacked connection still has: lateNotice from the
// notice on, if its handler looks at that.
func (n *notice) rest() time.Duration {
	if !n.asked || n.given.IsZero() {
		return 0
	}
	return lateNotice - time.Since(n.given)
}

// lateNotice is the time that a hijacked connection has to close, once it is told. A handler
// that asks after the listener has closed is told after the same time.
const lateNotice = time.Second

// timeToAsk is how long a handler may take from its hijack until it asks for its notice.
const timeToAsk = 100 * time.Millisecond

// channelLocked returns the channel of a notice, for a handler that asks for it. A handler that
// asks after the goodbye has no place in the spread. It is told when half of the time that is
// left of the window is over: its request can do some work, and its client comes back when the
// balancer may have noticed the stop. After the window it is told when the listener closes: a
// client that is told earlier comes back to this process.
func (s *Server) channelLocked(n *notice) <-chan struct{} {
	if s.goodbyeSaid && !n.scheduled {
		n.scheduled = true
		s.giveLaterLocked(n)
	}
	return n.channel()
}

func (s *Server) giveLaterLocked(n *notice) {
	var wait time.Duration
	switch {
	case s.closing:
		n.give()
		return
	case !s.closedAt.IsZero():
		wait = lateNotice
	case s.windowOver.Load():
		return // CloseWhenQuiet gives it, or Shutdown
	default:
		wait = max(time.Until(s.expectedEnd)/2, lateNotice)
	}
	time.AfterFunc(wait, func() { s.give(n) })
}

// noticeLocked returns the notice of the request in progress, or of a hijacked connection.
func (c *conn) noticeLocked() *notice {
	if c.notice == nil {
		c.notice = new(notice)
	}
	return c.notice
}

func (s *Server) giveConn(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.noticeLocked().give()
}

func (s *Server) give(n *notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.give()
}
