package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ErrWindowOver is the context.Cause in a stream that was still open when the drain
// window ended.
var ErrWindowOver = httpdrain.ErrWindowOver

// ServeOption configures [App.Serve].
type ServeOption func(*serveConfig)

type serveConfig struct {
	ln    net.Listener
	given bool
}

// WithListener serves on ln in place of a listener on the server's Addr. The App
// closes it. When ln is nil, Run returns an error. [App.Upgrade] hands over a listener of
// [App.Listen] only.
func WithListener(ln net.Listener) ServeOption {
	return func(c *serveConfig) { c.ln, c.given = ln, true }
}

// Serve adds an HTTP server. The App binds a listener on srv.Addr while it starts: for
// an address in use Run returns an error, and the App is not ready before. The server
// uses TLS when srv.TLSConfig has a certificate. An Addr of fd://NAME is the socket of
// that FileDescriptorName= on which systemd listens for this process, and fd://3 the
// first of them (sd_listen_fds(3)); connections that come after the stop wait there.
//
// While the App drains, the server still serves, and says goodbye to its clients:
// HTTP/1.x responses carry Connection: close, HTTP/2 connections get a GOAWAY that
// drops no request after GoAwayAfter, handlers of streams see [Draining]. After the
// window the listener closes when no new connection arrives. The server serves open
// connections until they close or Linger is over. Only then does the App call
// srv.Shutdown, because Shutdown drops requests that the server is just reading. When
// the in-flight slice is over, the App cuts and counts the handlers that still run.
//
// The servers of an App leave at the same time. A server that the handlers of another one
// call, such as the gRPC server behind a gateway, is an [App.Actor]: units are stopped when
// the servers have finished their requests.
//
// The App cancels the context of a request when its client disconnects and when the
// App is stopping. It cancels the context of a stream at the window's end: see [Stream].
//
// srv belongs to the App from this call on: do not call its Shutdown or Close. Do not
// give it or its listener to another Serve; Run would return an error. Of two Apps in
// a process, the second to run refuses a server of the first. It does not detect a
// shared listener: each App would get some of the connections, and the first to stop
// would close the listener of the other. The App still calls the server's BaseContext,
// ConnContext and ConnState functions, with the connection that the listener accepted
// or the *tls.Conn around it. A hijacked connection, and the one below a *tls.Conn, is
// of a type of the App's own; its NetConn method returns the accepted one. Close the
// hijacked connection itself: the App does not see that the one below it is closed, and
// counts it as open until the stop.
func (a *App) Serve(name string, srv *http.Server, opts ...ServeOption) *App {
	var c serveConfig
	for i, opt := range opts {
		if opt == nil {
			a.parts.refuse(name, nilOption(i))
			return a
		}
		opt(&c)
	}
	if c.given && call.IsNil(c.ln) {
		a.parts.refuse(name, errors.New("WithListener: the listener is nil"))
		return a
	}
	return a.addUnit(kindUnit, name, missing("Serve", argument{"server", srv == nil}), func() worker.Worker {
		hopts := []httpdrain.Option{httpdrain.WithSockets(&a.parts.sockets)}
		a.parts.claimLocked(name, "server", srv)
		if c.given {
			a.parts.claimLocked(name, "listener", c.ln)
			hopts = append(hopts, httpdrain.WithListener(c.ln))
		}
		return a.addServer(name, "http", httpdrain.New(name, srv, a.budget.Goodbye(), hopts...))
	})
}

// GRPCServer is implemented by *grpc.Server. Serve returns nil after GracefulStop or
// Stop. GracefulStop closes the listener, sends GOAWAY on every connection, and
// returns when the calls in progress are done. Stop closes everything.
type GRPCServer interface {
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// GRPCHealth is implemented by the *health.Server of grpc. Shutdown sets every service
// to NOT_SERVING.
type GRPCHealth interface{ Shutdown() }

// GRPC adds a gRPC server. It takes interfaces, so that this package need not import
// grpc. health may be nil, or a nil pointer. At T0 health says NOT_SERVING, and the
// server serves RPCs during the whole window. After the window GracefulStop lets
// running RPCs finish, and Stop ends them when the in-flight slice is over. The App
// closes the listener; open it with [App.Listen] when [App.Upgrade] is to hand it over. Run
// returns an error for a server or listener that another unit has. The App abandons a method
// that does not return and names it, with its stack; in a server with grpc.WaitForHandlers,
// Stop waits for handlers. For [Draining] in the server's handlers use the interceptors of the
// module grpcdrain, or [App.CallContext].
func (a *App) GRPC(name string, srv GRPCServer, ln net.Listener, health GRPCHealth) *App {
	if call.IsNil(health) {
		health = nil
	}
	isNil := missing("GRPC", argument{"server", call.IsNil(srv)}, argument{"listener", call.IsNil(ln)})
	return a.addUnit(kindUnit, name, isNil, func() worker.Worker {
		a.parts.claimLocked(name, "server", srv)
		a.parts.claimLocked(name, "listener", ln)
		return a.addServer(name, "grpc", httpdrain.NewGRPC(name, srv, ln, health, a.budget.Goodbye()))
	})
}

// drainingServer is a server that can say goodbye to its clients.
type drainingServer interface {
	Bind(context.Context) error
	Addr() net.Addr
	Serve(context.Context) error
	Configure(httpdrain.Config)
	BeginDrain(now time.Time, window time.Duration)
	Goodbye() <-chan struct{}
	HandOver(context.Context) error
	EndWindow()
	CloseWhenQuiet(context.Context) error
	LingerOpen(context.Context)
	Shutdown(context.Context) (cut int, err error)
	Close() error
	Stats() httpdrain.Stats
}

// server is the worker around a drainingServer. The App calls the steps of its drain;
// Stop closes the connections that are still open.
type server struct {
	worker.BaseWorker
	drainingServer
	accepting call.Call // of Serve
}

// addServer makes the worker of a server and registers it.
func (a *App) addServer(name, kind string, s drainingServer) *server {
	w := &server{drainingServer: s}
	w.Init(kind, name)
	a.parts.servers = append(a.parts.servers, w)
	return w
}

// Start serves on the listener that Bind has bound.
func (s *server) Start(ctx context.Context) error {
	if err := s.Begin(ctx); err != nil {
		return err
	}
	s.MarkRunning()
	s.accepting.Start(ctx, worker.KindWorker, s.Name(), func() error { return s.Serve(ctx) }, s.Finish)
	return nil
}

// State returns a snapshot.
func (s *server) State() worker.State {
	state, stats := s.BaseWorker.State(), s.Stats()
	state.Progress, state.ProgressGap = stats.Progress, stats.ProgressGap
	return state
}

// Stop closes the listener and every open connection.
func (s *server) Stop(ctx context.Context) error {
	live := s.RequestStop(worker.ErrStopRequested)
	err := s.drainingServer.Close()
	if !live {
		return err
	}
	select {
	case <-s.Done():
	case <-ctx.Done():
		// A foreign listener's Accept may ignore Close.
		s.Kill(s.accepting.Abandon())
	}
	return err
}

// isServing reports whether the server's accept loop runs.
func (s *server) isServing() bool {
	st := s.Status()
	return st == worker.StatusRunning || st == worker.StatusStopping
}

// retire takes the server out of service after the window, until ctx ends, and returns
// the number of cut requests. It calls closed before it closes connections: after the listener
// has closed, or at once with skipLinger, which skips the steps for clients that have not noticed
// the stop yet.
func (s *server) retire(ctx context.Context, skipLinger bool, closed func()) (cut int, err error) {
	var closeErr error
	if skipLinger {
		closed()
	} else {
		closeErr = s.CloseWhenQuiet(ctx)
		closed()
		s.LingerOpen(ctx) // also with a broken listener: open connections still have clients
	}
	s.RequestStop(worker.ErrStopRequested)
	cut, err = s.Shutdown(ctx)
	return cut, errors.Join(closeErr, err)
}

// Addr returns the address of the server added under name. It is nil when there is no
// such server or it is not bound yet. Use it for servers on port 0.
func (a *App) Addr(name string) net.Addr {
	if s := a.server(name); s != nil {
		return s.drainingServer.Addr()
	}
	return nil
}

// server returns the server added under name, or nil.
func (a *App) server(name string) *server {
	_, servers := a.parts.view()
	for _, s := range servers {
		if s.Name() == name {
			return s
		}
	}
	return nil
}

func (a *App) bind(s *server) error {
	a.setWaiting("listener " + s.Name())
	ctx, cancel := a.untilStop()
	defer cancel()
	if err := s.Bind(ctx); err != nil {
		return err
	}
	a.log.Info("listening", "server", s.Name(), "addr", s.drainingServer.Addr().String())
	return nil
}

// retireServers takes every server out of service, all at once.
func (a *App) retireServers(base context.Context, end time.Time, skipLinger bool) {
	if len(a.parts.servers) == 0 {
		return
	}
	a.setWaiting("requests in flight")
	ctx, cancel := context.WithDeadline(base, end)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range a.parts.servers {
		wg.Go(func() { a.retireServer(ctx, s, skipLinger) })
	}
	wg.Wait()
}

// retireServer takes one server out of service, and records the requests that it has cut. A
// listener or a foreign gRPC server may hang or panic; that does not use up the time of units
// and hooks.
func (a *App) retireServer(ctx context.Context, s *server, skipLinger bool) {
	var cut atomic.Int64 // an abandoned call may still write it
	out := callPart(ctx, "call", s.Name()+": shutdown", ctx.Done(), a.budget.Patience+settle, func() error {
		// With DrainReadiness "serving" the App is ready until the listeners close.
		n, err := s.retire(ctx, skipLinger, func() { a.health.owner.SetDraining(true) })
		cut.Store(int64(n))
		return err
	})
	requests := int(cut.Load())
	if out.Result == ResultAbandoned && requests == 0 {
		requests = int(s.Stats().InFlight)
	}
	if requests > 0 {
		a.saveBox(fmt.Sprintf("server %s: %d requests were cut", s.Name(), requests))
	}
	if out.err != nil {
		a.log.Error("server retired with an error", "server", s.Name(), "took", out.Took, "cut", requests, "error", out.err)
	} else {
		a.log.Info("server retired", "server", s.Name(), "took", out.Took)
	}
	a.stop.add(out.err)
	a.stop.mu.Lock()
	defer a.stop.mu.Unlock()
	a.stop.cut += requests
}
