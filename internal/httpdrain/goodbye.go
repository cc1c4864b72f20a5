package httpdrain

import (
	"context"
	"time"
)

// BeginDrain begins the drain, at T0. From now on the server puts Connection: close into HTTP/1.x
// responses to requests that arrive. After GoAwayAfter it tells all other clients
// and handlers. The window ends with EndWindow, not by itself: window says when
// the caller expects that, so that the server can spread its messages to hijacked
// connections. Before Bind there are no clients; those that come later are told on
// arrival. A second call does nothing.
func (s *Server) BeginDrain(now time.Time, window time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began {
		return
	}
	s.began = true
	s.draining.Store(true)
	if s.ln == nil {
		s.sayGoodbyeLocked() // without a goroutine: EndWindow, which would end it, may never come
		return
	}
	window = max(window, 0)
	after := min(s.cfg.GoAwayAfter, window/2)
	ctx, stop := context.WithCancel(context.Background())
	s.stopSpeak, s.spoken = stop, make(chan struct{})
	go func() {
		defer close(s.spoken)
		s.speak(ctx, now.Add(after), (window-after)*3/4)
	}()
}

// speak says goodbye at start, and to hijacked connections spread evenly over
// span from there, so that their clients do not come back all at once.
func (s *Server) speak(ctx context.Context, start time.Time, span time.Duration) {
	timer := time.NewTimer(time.Until(start))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	spread := s.sayGoodbye()
	for i, c := range spread {
		timer.Reset(time.Until(start.Add(span * time.Duration(i) / time.Duration(len(spread)))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return // EndWindow tells the others
		}
		s.mu.Lock()
		c.goodbye.tell()
		s.mu.Unlock()
	}
}

// sayGoodbye tells all clients and handlers but those of the connections that it
// returns. The caller tells these one by one.
func (s *Server) sayGoodbye() (spread []*conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sayGoodbyeLocked()
}

func (s *Server) sayGoodbyeLocked() (spread []*conn) {
	if s.said {
		return nil
	}
	s.said = true
	close(s.goodbye)
	for _, c := range s.tracker.open() {
		if c.apart() || c.request.Load()&requestUpgrade != 0 || c.goodbye.ch != nil {
			c.goodbye.scheduled = true
			spread = append(spread, c)
		}
	}
	s.sayGoodbyeHTTP2()
	return spread
}

// EndWindow ends the drain window. It cancels the contexts of streams with
// ErrWindowOver. It tells hijacked connections, if that has not happened yet, and
// closes them, except those that carry HTTP/2: these go on like other connections, and
// the contexts of their requests are not cancelled. Ordinary requests go on. EndWindow may come early, and without
// BeginDrain: it then does BeginDrain's work too. A second call does nothing.
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
	stop, spoken := s.stopSpeak, s.spoken
	s.mu.Unlock()

	if stop != nil {
		stop()
		<-spoken
	}
	s.sayGoodbye()

	s.mu.Lock()
	streams := make([]*stream, 0, len(s.streams))
	for st := range s.streams {
		streams = append(streams, st)
	}
	conns := s.tracker.open()
	for _, c := range conns {
		c.goodbye.tell()
	}
	s.mu.Unlock()
	s.sayGoodbyeHTTP2() // to connections that came after the first goodbye too

	for _, st := range streams {
		st.cancel(ErrWindowOver)
	}
	for _, c := range conns {
		if c.apart() {
			c.cancelContext(ErrWindowOver)
			_ = c.Close() // the handler reports what it was doing
		} else {
			c.cutStream()
		}
	}
}
