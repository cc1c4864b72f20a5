package httpdrain

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ExitCut is the exit status that the error of a Shutdown asks for when it has cut
// requests: EX_TEMPFAIL of sysexits.h, because their clients may try again.
const ExitCut = 75

// cutError is the error of a Shutdown that has cut requests.
type cutError struct{ error }

func (e *cutError) Unwrap() error { return errors.Unwrap(e.error) }

// ExitCode returns [ExitCut].
func (*cutError) ExitCode() int { return ExitCut }

// CloseWhenQuiet waits until nothing was accepted for AcceptQuiet, counted
// from the window's end (now, without EndWindow) or from the last connection, and for half
// of the time since T0, then closes the listener. It waits at most until AcceptMax after the
// window's end, and closes at once when ctx is done. The server goes on serving open
// connections, and connections that the kernel had accepted. CloseWhenQuiet tells the
// handlers that came after the window. Serve does not return. The error says why the
// listener could not be closed.
func (s *Server) CloseWhenQuiet(ctx context.Context) error {
	err := s.closeWhenQuiet(ctx)
	s.listenerCloses()
	return err
}

// listenerCloses tells what has come after the window, and bounds the time of its hijacked
// connections.
func (s *Server) listenerCloses() {
	s.mu.Lock()
	if s.closedAt.IsZero() {
		s.closedAt = time.Now()
	}
	s.mu.Unlock()
	_, conns := s.tellAll()
	for _, c := range conns {
		if c.servesNoRequests() {
			c.endAfter(timeToClose)
		}
	}
}

// lingerEnd returns when the server stops serving open connections: Linger after the window,
// and not before half of Linger after closedAt.
func (c Config) lingerEnd(windowEnd, closedAt time.Time) time.Time {
	end := windowEnd.Add(c.Linger)
	if closedAt.IsZero() {
		return end
	}
	return later(end, closedAt.Add(c.Linger/2))
}

// LingerOpen waits while connections are open: until Linger after the
// window's end and half of Linger after the end of CloseWhenQuiet, or until ctx is done.
// Before it returns, it closes a listener that CloseWhenQuiet has left open.
func (s *Server) LingerOpen(ctx context.Context) {
	s.mu.Lock()
	ln := s.ln
	end := s.cfg.lingerEnd(s.windowEndLocked(), s.closedAt)
	s.mu.Unlock()
	linger, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	insist := time.AfterFunc(time.Until(end.Add(-s.cfg.Linger/2)), s.insistHTTP2)
	defer insist.Stop()
	if ln == nil || !ln.wasLeftOpen() {
		s.tracker.waitNone(linger)
		return
	}
	atFirst := s.tracker.open()
	s.tracker.waitNone(linger)
	for _, c := range atFirst {
		if !c.used.Load() { // its client has sent nothing during all of Linger
			_ = c.Close()
		}
	}
	s.makeRoom(ctx, ln)
}

// makeRoom lets in the connections that wait behind a limit, such as the limit of a
// netutil.LimitListener, and closes the listener when none is left. It closes idle
// connections, which Shutdown would do next, and waits for the other ones: each makes
// room for one more. It gives up after half of the time that ctx has left: requests
// may need longer, and clients may never cease to connect. The listener is empty when
// three looks in a row have found no connection.
func (s *Server) makeRoom(ctx context.Context, ln *listener) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	look := time.NewTicker(backlogLook)
	defer look.Stop()
	for empty, accepted := 0, uint64(0); empty < 3 && ctx.Err() == nil; empty++ {
		served := 0
		for _, c := range s.tracker.open() {
			switch {
			case c.servesNoRequests():
			case c.idle():
				_ = c.Close()
			default:
				served++
			}
		}
		if now := s.tracker.accepted.Load(); served > 0 || now != accepted {
			empty, accepted = 0, now
		}
		select {
		case <-look.C:
		case <-ctx.Done():
		}
	}
	_ = ln.retire(ctx) // Close returns the error
}

// Shutdown ends the window, if EndWindow has not, closes the listener and idle
// connections and waits for requests in flight until ctx is done. Then it
// closes everything that is left, hijacked connections too. cut is the number
// of requests that were in flight then. Their handlers may still run: their
// contexts are cancelled and their connections are closed.
//
// The error says how many requests were cut and why (the cause of ctx), or
// that the listener could not be closed. Shutdown may be called again, and after
// Close, when nothing is left to do.
func (s *Server) Shutdown(ctx context.Context) (cut int, err error) {
	ln := s.begin()
	if ln == nil {
		return 0, nil
	}
	for _, c := range s.tracker.open() {
		// net/http waits five seconds for a connection that has never sent
		// anything: a health check of a load balancer, a browser's spare one.
		if !c.used.Load() {
			_ = c.Close()
		}
	}
	s.awaitGoodbyes(ctx)
	err = s.srv.Shutdown(ctx)
	if err == nil {
		// Hijacked connections have timeToClose, and those with HTTP/2 have requests.
		s.tracker.waitNone(ctx)
		err = ctx.Err()
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
		if cut = int(s.inFlight.Load()) + s.countedBelow(); cut > 0 {
			err = &cutError{fmt.Errorf("shut down server %q: %d requests cut: %w", s.name, cut, context.Cause(ctx))}
		}
	} else if err != nil {
		err = fmt.Errorf("shut down server %q: %w", s.name, err)
	}
	return cut, errors.Join(err, s.closeAll(ln))
}

// Close closes the listener and every connection now. A second call returns
// nil.
func (s *Server) Close() error {
	ln := s.begin()
	if ln == nil {
		return nil
	}
	return s.closeAll(ln)
}

// begin marks the server as closing. It returns nil when the server is not bound;
// Bind fails from then on.
func (s *Server) begin() *listener {
	s.mu.Lock()
	s.closing = true
	ln := s.ln
	s.mu.Unlock()
	s.EndWindow()
	s.listenerCloses()
	return ln
}

func (s *Server) closeAll(ln *listener) error {
	err := s.srv.Close()
	if lerr := ln.Close(); err == nil {
		err = lerr // the server had not begun to serve
	}
	for _, c := range s.tracker.open() {
		_ = c.Close()
	}
	if err != nil {
		return fmt.Errorf("close server %q: %w", s.name, err)
	}
	return nil
}
