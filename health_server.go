package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/answer"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// What the health server grants a client. A kubelet opens a connection for
// every probe, sends a request of some hundred bytes and closes it; a scraper
// keeps one open.
const (
	healthReadTimeout  = 5 * time.Second  // for a whole request, from its first byte
	healthWriteTimeout = 10 * time.Second // for a response, from the end of the request's header
	healthIdleTimeout  = 90 * time.Second // between two requests
	healthMaxHeader    = 8 << 10          // bytes; net/http adds 4096 of slack
	healthMaxConns     = 256              // open at a time
)

// healthServer serves the health planes on an address of their own, so that
// they outlive the drain and nothing that happens to the service's own
// listeners happens to them.
//
// It is made to be reached by anybody: timeouts and a header limit bound what
// one connection can hold, and of the connections that are open at a time the
// oldest that is not being answered is closed when there would be too many.
// The newest always gets in, so that clients that open connections and send
// nothing, or send it one byte at a time, cannot keep the kubelet out.
type healthServer struct {
	address string
	srv     *http.Server
	conns   *connTable

	mu       sync.Mutex // guards everything that follows
	listener net.Listener
	closed   bool
}

// newHealthServer returns a server for h on a TCP address, "" for any free port
// on all interfaces. It also serves the extra handlers: a path that ends in a
// slash stands for everything below it, any other for itself; they come before
// h. A panic in a handler is logged to log, nil for slog.Default(), and is a
// 500.
func newHealthServer(address string, h http.Handler, extra map[string]http.Handler, log *slog.Logger) *healthServer {
	if log == nil {
		log = slog.Default()
	}
	conns := &connTable{limit: healthMaxConns, open: make(map[net.Conn]*healthConn)}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &healthServer{address: address, conns: conns, srv: &http.Server{
		Handler:           conns.serving(guard(route(h, extra), log)),
		ReadHeaderTimeout: healthReadTimeout,
		ReadTimeout:       healthReadTimeout,
		WriteTimeout:      healthWriteTimeout,
		IdleTimeout:       healthIdleTimeout,
		MaxHeaderBytes:    healthMaxHeader,
		Protocols:         protocols,
		ConnContext:       conns.context,
		ConnState:         conns.state,
		// Aborted connections and timeouts of strangers are no news.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
}

// bind opens the listener. A second call returns an error.
func (s *healthServer) bind(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("listen on health address %s: %w", s.address, net.ErrClosed)
	case s.listener != nil:
		return fmt.Errorf("listen on health address %s: it is bound already", s.address)
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen on health address: %w", err)
	}
	s.listener = ln
	return nil
}

// addr is the address that the server is bound to, nil before bind.
func (s *healthServer) addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return nil
	}
	return s.listener.Addr()
}

// serve serves until close, and returns nil then. It is called once, after
// bind.
func (s *healthServer) serve() error {
	s.mu.Lock()
	ln := s.listener
	s.mu.Unlock()
	if ln == nil {
		return fmt.Errorf("serve health on %s: the address is not bound", s.address)
	}
	err := s.srv.Serve(ln)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve health on %s: %w", ln.Addr(), err)
}

// close closes the listener and the connections that are not being answered,
// waits for the others until ctx is done, and closes those too. It may be
// called at any time and more than once.
func (s *healthServer) close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	ln := s.listener
	s.mu.Unlock()
	if ln != nil {
		_ = ln.Close() // first, so that no connection comes after those closed next
	}
	s.conns.closeWaiting()
	err := s.srv.Shutdown(ctx)
	if errors.Is(err, net.ErrClosed) {
		err = nil // that the listener was closed before; all else has been done
	}
	if err != nil {
		_ = s.srv.Close() // what is left is cut, which err tells
		err = fmt.Errorf("close health server: %w", err)
	}
	return err
}

// route puts the extra handlers before h.
func route(h http.Handler, extra map[string]http.Handler) http.Handler {
	if len(extra) == 0 {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		path := req.URL.Path
		if exact := extra[path]; exact != nil {
			exact.ServeHTTP(w, req)
			return
		}
		for i := len(path); i > 0; {
			i = strings.LastIndexByte(path[:i], '/')
			if i < 0 {
				break
			}
			if below := extra[path[:i+1]]; below != nil {
				below.ServeHTTP(w, req)
				return
			}
		}
		h.ServeHTTP(w, req)
	})
}

// guard makes a panic a 500, or a cut response when it had begun.
func guard(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		g := &guardedWriter{ResponseWriter: w}
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v != http.ErrAbortHandler { //nolint:errorlint // the value itself means abort
				log.ErrorContext(req.Context(), "health handler panicked", "path", text.Clip(req.URL.Path, maxNameLen), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
			if v == http.ErrAbortHandler || g.wrote { //nolint:errorlint // as above
				panic(http.ErrAbortHandler)
			}
			clear(w.Header())
			answer.Line(http.StatusInternalServerError, "internal server error: the handler panicked").Write(w, req)
		}()
		h.ServeHTTP(g, req)
	})
}

// guardedWriter knows whether the response has begun.
type guardedWriter struct {
	http.ResponseWriter
	wrote bool
}

func (g *guardedWriter) WriteHeader(status int) {
	g.wrote = g.wrote || status >= 200 // 1xx come before the response
	g.ResponseWriter.WriteHeader(status)
}

func (g *guardedWriter) Write(b []byte) (int, error) {
	g.wrote = true
	return g.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (g *guardedWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }
