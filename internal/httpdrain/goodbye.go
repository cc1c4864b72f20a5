package httpdrain

import "time"

// BeginDrain begins the drain, at T0. From now on the server puts Connection: close into
// HTTP/1.x responses to requests that arrive. After GoAwayAfter, or half of the window if that is
// less, it tells handlers that watch.
//
// The window ends with EndWindow, not by itself: window says when the caller expects that, so
// that the server can spread its notices to handlers. Before Bind there are no clients. A
// second call does nothing.
func (s *Server) BeginDrain(now time.Time, window time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began {
		return
	}
	s.began = true
	s.t0 = now
	s.draining.Store(true)
	window = max(window, 0)
	if s.ln == nil {
		s.sayGoodbyeLocked()
		return
	}
	after := min(s.cfg.GoAwayAfter, window/2)
	noticeSpan := (window - after) * 3 / 4 // the last quarter is for handlers to end
	s.goodbyeTimer = time.AfterFunc(time.Until(now.Add(after)), func() { s.spreadGoodbye(noticeSpan) })
}

// sayGoodbyeLocked closes the channel of Goodbye. It reports whether it was open.
func (s *Server) sayGoodbyeLocked() bool {
	if s.goodbyeSaid {
		return false
	}
	s.goodbyeSaid = true
	close(s.goodbye)
	return true
}

// spreadGoodbye says goodbye. It tells the handlers that watch Draining one after the other,
// evenly over span from now on, so that their clients do not all come back at once.
func (s *Server) spreadGoodbye(span time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.sayGoodbyeLocked() {
		return
	}
	var spread []*notice
	for _, c := range s.tracker.open() {
		if c.isToldInTurnLocked() {
			spread = append(spread, c.noticeLocked())
		}
	}
	for st := range s.streams {
		if st.notice.ch != nil {
			spread = append(spread, &st.notice)
		}
	}
	for i, n := range spread {
		time.AfterFunc(span*time.Duration(i)/time.Duration(len(spread)), func() { s.give(n) })
	}
}

// isToldInTurnLocked reports whether the connection has a place in the spread: a handler has
// hijacked it, is about to hijack it for a websocket, or has asked for the notice.
func (c *conn) isToldInTurnLocked() bool {
	return c.servesNoRequests() || c.request.Load()&requestUpgrade != 0 || c.notice != nil
}

// EndWindow ends the drain window:
//   - HTTP/2 connections: the goodbye begins.
//   - Streams: their contexts are cancelled with ErrWindowOver.
//   - Hijacked connections: told, unless they were, and closed a second later: what a client sends
//     until it has read the goodbye is answered. Those that carry HTTP/2 go on.
//   - Ordinary requests go on.
//
// It may come early, or without BeginDrain, whose work it then does. A second call does nothing.
//
// The comment in stream.go defines a stream.
func (s *Server) EndWindow() {
	s.mu.Lock()
	if s.windowOver.Load() {
		s.mu.Unlock()
		return
	}
	s.began = true
	s.draining.Store(true)
	s.windowOver.Store(true)
	s.windowEnd = time.Now()
	if s.goodbyeTimer != nil {
		s.goodbyeTimer.Stop()
	}
	s.sayGoodbyeLocked()
	s.mu.Unlock()

	endless, conns := s.tellAll()
	s.sayGoodbyeHTTP2()

	for _, st := range endless {
		st.cancel(ErrWindowOver)
	}
	for _, c := range conns {
		if c.servesNoRequests() {
			c.endAfter(timeToClose)
		} else {
			c.cutStream()
		}
	}
}

// tellAll gives every notice. It returns the streams that end with the window, and the open
// connections.
func (s *Server) tellAll() (endless []*stream, conns []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		st.notice.give()
		if st.endless {
			endless = append(endless, st)
		}
	}
	conns = s.tracker.open()
	for _, c := range conns {
		hasHandler := c.servesNoRequests() || c.request.Load() != 0 || c.notice != nil
		if hasHandler {
			c.noticeLocked().give()
		}
	}
	return endless, conns
}
