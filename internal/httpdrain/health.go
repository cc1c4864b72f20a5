package httpdrain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/sdsocket"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// The limits of a client of the health server. A kubelet opens a connection for every
// probe, sends a request of some hundred bytes and closes it; a scraper keeps one open.
const (
	healthReadTimeout  = 5 * time.Second  // for a whole request, from its first byte
	healthWriteTimeout = 10 * time.Second // for a response, from the end of the request's header
	healthIdleTimeout  = 90 * time.Second // between two requests
	healthMaxHeader    = 8 << 10          // bytes; net/http adds 4096 of slack
)

// HealthServer serves the health planes on an address of their own. They outlive
// the drain, and the state of the service's own listeners does not affect them.
//
// Timeouts and a header limit bound what one connection can hold, and for how long a
// client that sends nothing, or one byte at a time, can hold it.
//
// Make one with [NewHealthServer]. All methods may be called concurrently.
type HealthServer struct {
	address string
	sockets *sdsocket.Sockets
	srv     *http.Server
	leaving atomic.Bool   // each response tells its client to close the connection
	served  chan struct{} // closed when Serve has returned

	mu       sync.Mutex // guards everything below
	listener net.Listener
	closed   bool
	open     map[net.Conn]http.ConnState
}

// NewHealthServer returns a server for h. The address is a TCP address, or fd://NAME for
// the socket of that name in sockets. "" is any free port on all interfaces. A panic in h
// is logged to log, and cuts its answer. A nil log is slog.Default(), and nil sockets are
// none.
func NewHealthServer(address string, h http.Handler, log *slog.Logger, sockets *sdsocket.Sockets) *HealthServer {
	if log == nil {
		log = slog.Default()
	}
	if sockets == nil {
		sockets = new(sdsocket.Sockets)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s := &HealthServer{
		address: address,
		sockets: sockets,
		served:  make(chan struct{}),
		open:    make(map[net.Conn]http.ConnState),
	}
	s.srv = &http.Server{
		Handler:           s.guard(h, log),
		ReadHeaderTimeout: healthReadTimeout,
		ReadTimeout:       healthReadTimeout,
		WriteTimeout:      healthWriteTimeout,
		IdleTimeout:       healthIdleTimeout,
		MaxHeaderBytes:    healthMaxHeader,
		Protocols:         protocols,
		ConnState:         s.connState,
		// Any client can abort a connection or run into a timeout.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s
}

func (s *HealthServer) connState(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(s.open, conn)
		return
	}
	s.open[conn] = state
}

// Bind opens the listener; ctx bounds the lookup of the address's host name. Call it once.
func (s *HealthServer) Bind(ctx context.Context) error {
	ln, err := s.sockets.Listen(ctx, new(net.ListenConfig), "tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen on health address: %w", err)
	}
	s.Use(ln)
	return nil
}

// Use makes ln the listener instead of one that Bind opens, such as one in memory.
// Call it before Serve.
func (s *HealthServer) Use(ln net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener = ln
}

// Addr returns the address that the server is bound to, nil before Bind.
func (s *HealthServer) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return nil
	}
	return s.listener.Addr()
}

// Serve serves until Close, and returns nil then. Call it once, after Bind.
func (s *HealthServer) Serve() error {
	defer close(s.served)
	s.mu.Lock()
	ln := s.listener
	s.mu.Unlock()
	err := s.srv.Serve(ln)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve health on %s: %w", ln.Addr(), err)
}

// HandOver closes the listener, on which another process goes on. It returns when no further
// connection comes, or when ctx is done. Clients of the connections that are open get answers
// until Close, and are told to close.
func (s *HealthServer) HandOver(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	ln := s.listener
	s.mu.Unlock()
	s.leaving.Store(true)
	_ = ln.Close() // Close does it again
	select {
	case <-s.served:
	case <-ctx.Done():
	}
}

// AwaitClients waits until no connection is open, or until ctx is done.
func (s *HealthServer) AwaitClients(ctx context.Context) {
	awaitNone(ctx, func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.open)
	})
}

// Close closes the listener and the connections that no handler is answering. It
// waits for the other connections until ctx is done, then closes those too and
// returns an error. It may be called at any time and more than once.
func (s *HealthServer) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close() // first, so that no new connection comes in after the ones closed below
	}
	for conn, state := range s.open {
		if state == http.StateNew {
			_ = conn.Close() // Shutdown would wait 5 s for its first request
		}
	}
	s.mu.Unlock()
	err := s.srv.Shutdown(ctx)
	if errors.Is(err, net.ErrClosed) {
		err = nil // Close closed the listener itself; Shutdown has done the rest
	}
	if err != nil {
		_ = s.srv.Close() // cuts the remaining connections; err says so
		err = fmt.Errorf("close health server: %w", err)
	}
	return err
}

// Route returns a handler that serves the paths of extra by their own handlers, and all
// others by h.
func Route(h http.Handler, extra map[string]http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if own := extra[req.URL.Path]; own != nil {
			own.ServeHTTP(w, req)
			return
		}
		h.ServeHTTP(w, req)
	})
}

// guard logs a panic of h, and cuts its response, so that the client does not take it for
// complete. It tells clients to close their connections once the server leaves.
func (s *HealthServer) guard(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v != http.ErrAbortHandler { //nolint:errorlint // the value itself means abort
				log.ErrorContext(req.Context(), "health handler panicked",
					"path", text.Clip(req.URL.Path, 128), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler)
		}()
		if s.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, req)
	})
}
