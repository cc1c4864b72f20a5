package httpdrain

import (
	"context"
	"log"
	"net"
	"net/http"
	"time"

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
	// net/http answers OPTIONS * above the handler. That response would not be
	// counted and would not say goodbye.
	s.optionsStar = !s.srv.DisableGeneralOptionsHandler
	s.srv.DisableGeneralOptionsHandler = true

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
		if userState == nil {
			return
		}
		// net/http does not recover from a panic that comes as it closes a connection.
		err := call.Do("ConnState", func() error { userState(asAccepted(nc), state); return nil })
		if err != nil {
			s.logf("http: %v\n%s", err, stackOf(err))
		}
	}
	s.wrapHTTP2()
}

// stackOf returns the stack of a panic, and nothing for another error.
func stackOf(err error) []byte {
	p, ok := call.As[*call.PanicError](err)
	if !ok {
		return nil
	}
	return p.Stack
}

// logf writes to the log of net/http's server.
func (s *Server) logf(format string, args ...any) {
	if s.srv.ErrorLog != nil {
		s.srv.ErrorLog.Printf(format, args...)
		return
	}
	log.Printf(format, args...)
}

// hijack moves a request from in-flight to hijacked.
func (s *Server) hijack(c *conn) {
	bits := c.request.Load()
	if bits&requestHTTP2 != 0 {
		c.upgraded()
	}
	c.takenAt = time.Now()
	// In this order against EndWindow: either that closes it, or it has grace.
	c.hijacked.Store(true)
	if s.windowOver.Load() && bits&requestHTTP2 == 0 {
		c.hasGrace.Store(true)
	}
	c.request.Store(0)
	if bits&requestActive != 0 {
		s.endedRequest()
	}
	// The server no longer waits for it.
	c.tracker.wake()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channelLocked(c.noticeLocked())
	if c.hasGrace.Load() && !s.closedAt.IsZero() {
		c.endAfter(2 * lateNotice)
	}
}
