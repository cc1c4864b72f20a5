package httpdrain

import "time"

// notice tells one handler that its request or its connection should end. A handler that
// has asked for its channel has a place of its own in the spread, so that the clients of
// streams, polls and websockets do not all come back at once. Server.mu guards it.
type notice struct {
	given bool
	ch    chan struct{} // made when a handler asks for it
}

func (n *notice) give() {
	if !n.given && n.ch != nil {
		close(n.ch)
	}
	n.given = true
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

// timeToClose is the time that a hijacked connection has to close, from the end of the window
// on, or from the close of the listener when it was hijacked after the window.
const timeToClose = time.Second

// channelLocked returns the channel of a notice, for a handler that asks for it. A handler that
// asks after the goodbye has no place in the spread. It is told at the end of the window: its
// client then comes back when the balancer may have noticed the stop. After the window it is told
// when the listener closes: a client that is told earlier comes back to this process.
func (s *Server) channelLocked(n *notice) <-chan struct{} {
	if !s.closedAt.IsZero() {
		n.give()
	}
	return n.channel()
}

// noticeLocked returns the notice of the request in progress, or of a hijacked connection.
func (c *conn) noticeLocked() *notice {
	if c.notice == nil {
		c.notice = new(notice)
	}
	return c.notice
}

func (s *Server) give(n *notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.give()
}

func (s *Server) giveConn(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.noticeLocked().give()
}
