package httpdrain

import (
	"context"
	"net"
	"net/http"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// key finds the connection (HTTP/1) or the stream (HTTP/2) of a request in its
// context.
type key struct{}

// wrap puts the tracking around what the user has set. It is called once, by
// Bind, with s.mu held.
func (s *Server) wrap() {
	s.next = s.srv.Handler
	if s.next == nil {
		s.next = http.DefaultServeMux
	}
	s.srv.Handler = handler{s}

	userBase := s.srv.BaseContext
	s.srv.BaseContext = func(ln net.Listener) context.Context {
		s.mu.Lock()
		base := s.base
		s.mu.Unlock()
		if userBase == nil {
			return base
		}
		ctx := userBase(ln)
		if ctx == nil {
			return nil // net/http panics with a message of its own
		}
		ctx, cancel := context.WithCancelCause(call.WithValuesOf(ctx, base))
		context.AfterFunc(base, func() { cancel(context.Cause(base)) })
		return ctx
	}

	userConn := s.srv.ConnContext
	s.srv.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if c := trackedConn(nc); c != nil {
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			c.server = s
			c.withContext(cancel)
			ctx = context.WithValue(ctx, key{}, c)
		}
		if userConn != nil {
			return userConn(ctx, asAccepted(nc))
		}
		return ctx
	}

	userState := s.srv.ConnState
	s.srv.ConnState = func(nc net.Conn, state http.ConnState) {
		if c := trackedConn(nc); c != nil {
			if c.awaitsRequest.Store(state == http.StateIdle); state == http.StateHijacked {
				s.hijack(c)
			}
		}
		if userState != nil {
			userState(asAccepted(nc), state)
		}
	}
	s.wrapHTTP2()
}

// hijack moves a request from in-flight to hijacked.
func (s *Server) hijack(c *conn) {
	bits := c.request.Load()
	if bits&requestHTTP2 != 0 {
		c.upgraded()
	}
	c.hijacked.Store(true)
	c.request.Store(0)
	if bits&requestActive != 0 {
		s.endedRequest()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closedAt.IsZero() {
		c.noticeLocked().give()
		if bits&requestHTTP2 == 0 {
			c.endAfter(timeToClose)
		}
	}
}
