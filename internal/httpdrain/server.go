// Package httpdrain takes an http.Server, or a gRPC server by its shape, out
// of service without failing a request.
//
// The timeline, with T0 the moment at which the process was asked to stop:
//
//	T0              BeginDrain     HTTP/1.x responses to requests that arrive from now on say Connection: close
//	T0+GoAwayAfter                 Draining closes for handlers that watch, one after the other
//	T0+window       EndWindow      HTTP/2 connections get GOAWAY at their next quiet moment;
//	                               contexts of streams are cancelled, hijacked connections are closed
//	then            CloseWhenQuiet the listener closes once nothing was accepted for AcceptQuiet
//	then            LingerOpen     connections that are open go on being served, told to close
//	then            Shutdown       http.Server.Shutdown for the rest, then Close, which counts the cut requests
//
// http.Server.Shutdown comes last because its accept loop and its read loops
// drop what they have just read once it has begun, even the first request on a
// new connection (net/http, conn.serve; golang/go#75591). Keep-alive is never
// switched off for the same reason.
package httpdrain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/progress"
	"github.com/pleme-io/lifecycle-go/internal/sdsocket"
)

// ErrWindowOver is the cause (context.Cause) of a stream's context that was
// cancelled because the drain window was over.
var ErrWindowOver = errors.New("drain window over")

// Config is the timing of a goodbye.
type Config struct {
	// AcceptQuiet is how long the server must accept no connection before the
	// listener closes, or half of the time since T0 if that is longer. With 0 it closes at
	// the end of the window.
	AcceptQuiet time.Duration
	// AcceptMax is how long after the window the listener stays open at most.
	AcceptMax time.Duration
	// Linger is how long, counted from the window's end, the server goes on
	// serving open connections, and at least half of it after the listener has closed.
	Linger time.Duration
	// GoAwayAfter is how long after T0 the server tells handlers that watch Draining, such
	// as the handlers of event streams and websockets. It waits because endpoints still
	// point here: a client that reconnects may land here again. It is at most half of the
	// window.
	GoAwayAfter time.Duration
	// Patience is how long Shutdown and Close wait for a call that should return
	// at once: a gRPC server's Stop, and its GracefulStop after that. Defaults to
	// 1 s.
	Patience time.Duration
}

func (c Config) clean() Config {
	if c.Patience <= 0 {
		c.Patience = time.Second
	}
	return c
}

// Stats is a snapshot of one server. The fields are read one after the other, so they may
// contradict each other slightly.
type Stats struct {
	InFlight    int64     // requests whose handler runs and has not hijacked its connection; 0 for gRPC, where they cannot be seen
	Conns       int       // open connections that are not hijacked
	Hijacked    int       // open connections that a handler took over
	Accepted    uint64    // connections accepted since Bind
	Opaque      bool      // requests cannot be seen: each open connection may carry one (gRPC)
	LastArrival time.Time // when the latest request arrived (HTTP) or the latest connection was accepted (gRPC); zero before the first

	// Progress is when the server last finished a request, sent something or read of a body, and
	// ProgressGap the longest time between two of these. They are zero while few requests wait, and
	// for gRPC.
	Progress    time.Time
	ProgressGap time.Duration

	Panics    uint64    // handlers that have panicked, other than with http.ErrAbortHandler
	LastPanic string    // what the last of them said, clipped
	Panicking time.Time // when the last but two of them was; zero while there are fewer
}

// Busy reports whether the server serves a client, as far as it can see: a
// request is in flight, a handler has hijacked a connection, or a connection is
// open on which the server cannot see requests.
func (s Stats) Busy() bool {
	return s.InFlight > 0 || s.Hijacked > 0 || s.Opaque && s.Conns > 0
}

// Option changes how a Server is made.
type Option func(*Server)

// WithListener serves on ln in place of one made from srv.Addr. The Server
// owns it from Bind on. It must hand out plain connections: TLS is added when
// srv.TLSConfig has a certificate.
func WithListener(ln net.Listener) Option {
	return func(s *Server) { s.given = ln }
}

// WithSockets listens on one of these sockets, or adds a new one to them.
func WithSockets(sockets *sdsocket.Sockets) Option {
	return func(s *Server) { s.sockets = sockets }
}

// Server is one http.Server with its goodbye. Its methods may be called concurrently.
// Call Bind once, and then Serve once. The steps of the goodbye may come at any time.
type Server struct {
	bound
	srv     *http.Server
	given   net.Listener
	sockets *sdsocket.Sockets
	lc      net.ListenConfig

	next        http.Handler // the user's, set by Bind
	inFlight    atomic.Int64
	sending     atomic.Int64 // calls of ReadFrom in progress
	panics      panics
	signs       progress.Meter // of progress, in nanoseconds after tracker.created
	lastArrival atomic.Int64   // nanoseconds after tracker.created, 0 before the first
	draining    atomic.Bool    // T0 has passed
	windowOver  atomic.Bool    // EndWindow was called
	goodbye     chan struct{}  // closed at T0+GoAwayAfter

	// Guarded by mu.
	tls          bool
	idle         time.Duration // of HTTP/2 connections; set by Bind
	registered   bool          // golang.org/x/net/http2 has net/http serve HTTP/2
	oneStep      bool          // HTTP/2 is the user's own: a response says goodbye
	base         context.Context
	closedAt     time.Time   // when the listener has closed, or closes in Shutdown
	goodbyeSaid  bool        // goodbye is closed
	goodbyeTimer *time.Timer // says goodbye within the window; nil without a listener
	streams      map[*stream]struct{}
}

// New prepares srv, which must not be used for another Server. New reads and
// changes nothing of srv: the caller may set its fields until Bind.
func New(name string, srv *http.Server, cfg Config, opts ...Option) *Server {
	s := &Server{
		bound:   bound{name: name, cfg: cfg.clean(), tracker: newTracker()},
		srv:     srv,
		sockets: new(sdsocket.Sockets),
		goodbye: make(chan struct{}),
		streams: make(map[*stream]struct{}),
	}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// Bind listens on srv.Addr, ":http" or with TLS ":https" when that is empty,
// and puts the tracking around srv's Handler, BaseContext, ConnContext,
// ConnState and TLSNextProto, which are called as before. Serving is with TLS
// when srv.TLSConfig has Certificates, GetCertificate or GetConfigForClient.
//
// It fails when the address cannot be bound before ctx is done, when the server
// belongs to another Server, and after Shutdown. The error has the name and the address. A
// Bind that waits for a name server delays no other call: Shutdown and Close
// return at once, and Bind then closes the listener that it gets.
func (s *Server) Bind(ctx context.Context) error {
	addr, err := s.beginBind()
	if err != nil {
		return err
	}
	ln, err := s.listen(ctx, addr)
	if err != nil {
		return err
	}
	tracked, err := newListener(ln, s.tracker)
	if err != nil {
		return fmt.Errorf("bind server %q to the given listener: %w", s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		_ = ln.Close() // no client has connected to it
		return fmt.Errorf("bind server %q to %q: %w", s.name, addr, http.ErrServerClosed)
	}
	s.ln = tracked
	s.wrap()
	return nil
}

// beginBind returns where to listen.
func (s *Server) beginBind() (addr string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return "", fmt.Errorf("bind server %q: %w", s.name, http.ErrServerClosed)
	}
	if other, is := s.srv.Handler.(handler); is {
		return "", fmt.Errorf("bind server %q: its *http.Server is already used by server %q; give each its own", s.name, other.name)
	}
	addr, s.tls = listenAddr(s.srv)
	return addr, nil
}

// listen returns the given listener, or one on addr. It is called without the lock, because the
// address may be a name.
func (s *Server) listen(ctx context.Context, addr string) (net.Listener, error) {
	if ln := s.given; ln != nil {
		if isTLS(ln) {
			return nil, fmt.Errorf("bind server %q to the given listener: on %s: %w", s.name, ln.Addr(), errTLSConn)
		}
		return ln, nil
	}
	ln, err := s.sockets.Listen(ctx, &s.lc, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("bind server %q to %q: %w", s.name, addr, err)
	}
	return ln, nil
}

// listenAddr returns where srv listens, and whether with TLS.
func listenAddr(srv *http.Server) (addr string, withTLS bool) {
	c := srv.TLSConfig
	withTLS = c != nil && (len(c.Certificates) > 0 || c.GetCertificate != nil || c.GetConfigForClient != nil)
	switch {
	case srv.Addr != "":
		return srv.Addr, withTLS
	case withTLS:
		return ":https", true
	default:
		return ":http", false
	}
}

// Serve serves until Shutdown or Close and then returns nil. Contexts of
// requests have the values of base and are cancelled with it; values of the user's own
// BaseContext come first. Cancel base only when the process is stopping, after
// Shutdown.
//
// It returns an error when the server ends by itself, and when other code closed the
// http.Server.
func (s *Server) Serve(base context.Context) error {
	s.mu.Lock()
	s.base = base
	ln, withTLS, closing := s.ln, s.tls, s.closing
	s.mu.Unlock()
	if closing {
		return nil
	}

	var err error
	if withTLS {
		err = s.serveTLS(ln)
	} else {
		err = s.srv.Serve(ln)
	}
	// ServeTLS leaves the listener open when it fails before it serves.
	ln.Close()
	s.mu.Lock()
	closing = s.closing
	s.mu.Unlock()
	err = call.Keep(s.name, err) // a foreign listener may have returned it
	if call.Is(err, http.ErrServerClosed) {
		if closing {
			return nil
		}
		err = fmt.Errorf("closed by other code: %w", err)
	}
	return fmt.Errorf("serve %q on %s: %w", s.name, ln.Addr(), err)
}

// Stats returns what the server is doing now.
func (s *Server) Stats() Stats {
	st := Stats{
		InFlight:    s.inFlight.Load() + int64(s.countedBelow()),
		Accepted:    s.tracker.accepted.Load(),
		LastArrival: s.tracker.at(s.lastArrival.Load()),
	}
	st.Conns, st.Hijacked = s.tracker.count()
	st.Panics, st.LastPanic, st.Panicking = s.panics.look()
	if s.waiting() >= crowd {
		st.Progress, st.ProgressGap = s.signs.Told(s.tracker.created)
	}
	return st
}

// crowd is how many requests wait at least when a server needs signs of progress: one or two may
// wait for something on purpose.
const crowd = 3

// beginRequest counts a request whose handler begins.
func (s *Server) beginRequest() {
	if s.inFlight.Add(1) <= crowd {
		s.signs.Begin(s.tracker.since())
	}
}

// endedRequest counts a request whose handler has returned, or has taken the connection over.
func (s *Server) endedRequest() {
	s.signs.Sign(s.tracker.since())
	s.inFlight.Add(-1)
}

// waiting returns how many requests wait for an answer: those in flight, without streams and
// without those whose answer the operating system sends.
func (s *Server) waiting() int64 {
	n := s.inFlight.Load() - s.sending.Load()
	if n < crowd {
		return n
	}
	for _, c := range s.tracker.open() {
		if c.request.Load()&requestStream != 0 {
			n--
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.endless {
			n--
		}
	}
	return n
}
