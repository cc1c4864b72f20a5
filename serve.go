package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ErrWindowOver is the cause of the context of a stream that was still open
// when the drain window ended.
var ErrWindowOver = httpdrain.ErrWindowOver

// ServeOption shapes [App.Serve].
type ServeOption func(*serveConfig)

type serveConfig struct {
	ln    net.Listener
	given bool
}

// WithListener serves on ln in place of a listener made from the server's Addr.
// The App closes it. A nil one is refused by Run.
func WithListener(ln net.Listener) ServeOption {
	return func(c *serveConfig) { c.ln, c.given = ln, true }
}

// Serve adds an HTTP server. Its listener, on srv.Addr, is bound while the App
// starts: an address in use is an error of Run, and nothing is ready before.
// TLS is spoken when srv.TLSConfig has a certificate.
//
// While the App drains the server goes on serving, and says goodbye to its
// clients: HTTP/1.x responses carry Connection: close, HTTP/2 connections get a
// GOAWAY after GoAwayAfter, handlers of streams see [Draining]. After the
// window the listener closes once nothing new arrives, open connections are
// served until they are gone or Linger is over, and only then is srv.Shutdown
// called, because that drops requests that are just being read. Handlers that
// need longer than the in-flight slice are cut, and counted.
//
// The context of a request is cancelled when its client goes away, when the App
// is stopping, and for a stream (it called [Draining], accepts
// text/event-stream, or was hijacked) at the window's end. srv is the App's
// from here on: do not call its Shutdown or Close, and do not give it, or its
// listener, to another Serve, which Run would refuse. (Of two Apps in a process
// the second to run refuses a server that the first has or had. That they share
// a listener nobody can tell: each would get some of its connections, and the
// first to stop would close it under the other.) Its BaseContext, ConnContext and
// ConnState functions are still called.
func (a *App) Serve(name string, srv *http.Server, opts ...ServeOption) *App {
	var c serveConfig
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.given && isNil(c.ln) {
		a.refuse("unit", name, errors.New("WithListener: nil where a listener is needed"))
		return a
	}
	return a.addUnit(name, srv == nil, false, func() worker.Worker {
		var hopts []httpdrain.Option
		a.claimLocked(name, "server", srv)
		if c.given {
			a.claimLocked(name, "listener", c.ln)
			hopts = append(hopts, httpdrain.WithListener(c.ln))
		}
		return newServer(name, "http", httpdrain.New(name, srv, drainConfig(a.cfg), hopts...), a)
	})
}

// GRPCServer is what a *grpc.Server has: Serve returns nil after GracefulStop or
// Stop; GracefulStop closes the listener, tells every connection to go and
// returns when the calls in progress are done; Stop closes everything.
type GRPCServer interface {
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// GRPCHealth is what a *health.Server of grpc has: Shutdown sets every service
// to NOT_SERVING.
type GRPCHealth interface{ Shutdown() }

// GRPC adds a gRPC server, which it knows by its shape, so that this package
// need not import grpc. health may be nil, or a nil pointer. At T0 health says
// NOT_SERVING; RPCs are served all through the window; after it GracefulStop
// lets those that run finish, and Stop ends them when the in-flight slice is
// over. The App closes the listener. A server or listener that another unit has
// is refused by Run. A method that does not return (Stop waits for handlers in a
// server with grpc.WaitForHandlers) is abandoned and named, with its stack.
func (a *App) GRPC(name string, srv GRPCServer, ln net.Listener, health GRPCHealth) *App {
	if isNil(health) {
		health = nil
	}
	return a.addUnit(name, isNil(srv) || isNil(ln), false, func() worker.Worker {
		a.claimLocked(name, "server", srv)
		a.claimLocked(name, "listener", ln)
		return newServer(name, "grpc", httpdrain.NewGRPC(name, srv, ln, health, drainConfig(a.cfg)), a)
	})
}

// claimLocked refuses a server or a listener that another unit has: each would
// close it under the other.
func (a *App) claimLocked(name, what string, v any) {
	if !reflect.ValueOf(v).Comparable() {
		return // nobody can tell
	}
	if owner, taken := a.claimed[v]; taken {
		a.errs = append(a.errs, fmt.Errorf("unit %q: its %s, a %T, is that of unit %q already: give each its own", name, what, v, owner))
		return
	}
	if a.claimed == nil {
		a.claimed = make(map[any]string)
	}
	a.claimed[v] = name
}

func drainConfig(cfg Config) httpdrain.Config {
	return httpdrain.Config{
		AcceptQuiet: on(cfg.AcceptQuiet), Linger: on(cfg.Linger), GoAwayAfter: on(cfg.GoAwayAfter),
		Patience: serverPatience(cfg),
	}
}

// serverPatience is what a server gets that does not return when its time is
// over: a second, unless that is more than half of what the units behind it have.
func serverPatience(cfg Config) time.Duration {
	return max(min(time.Second, on(cfg.UnitSlice)/2), settle)
}

// drainingServer is a server that can say goodbye.
type drainingServer interface {
	Bind(context.Context) error
	Addr() net.Addr
	Serve(context.Context) error
	Configure(httpdrain.Config)
	BeginDrain(now time.Time, window time.Duration)
	EndWindow()
	CloseWhenQuiet(context.Context) error
	LingerOpen(context.Context)
	Shutdown(context.Context) (cut int, err error)
	Close() error
	Stats() httpdrain.Stats
}

// server is the worker around one. The App walks it through the drain; its Stop
// closes what is left.
type server struct {
	worker.BaseWorker
	drainingServer
	accepting call.Call // Serve
}

func newServer(name, kind string, s drainingServer, a *App) *server {
	w := &server{drainingServer: s}
	w.Init(kind, name)
	a.servers = append(a.servers, w)
	return w
}

// Start serves. The listener is bound already.
func (s *server) Start(ctx context.Context) error {
	if err := s.Begin(ctx); err != nil {
		return err
	}
	s.MarkRunning()
	s.accepting.Start(s.Name(), func() error { return s.Serve(ctx) }, s.Finish)
	return nil
}

// Stop closes the listener and every connection that the drain has left.
func (s *server) Stop(ctx context.Context) error {
	if live := s.RequestStop(worker.ErrStopRequested); !live {
		return s.drainingServer.Close()
	}
	err := s.drainingServer.Close()
	select {
	case <-s.Done():
	case <-ctx.Done():
		// The listener may be anybody's, and its Accept not mind a Close.
		s.Kill(s.accepting.Abandon())
	}
	return err
}

// serving reports whether its accept loop runs.
func (s *server) isServing() bool {
	st := s.Status()
	return st == worker.StatusRunning || st == worker.StatusStopping
}

// retire takes the server out of service after the window, by end at the
// latest, and returns how many requests had to be cut. It calls closed once
// nobody can connect any more. hurried leaves out what is only there for clients
// that have not noticed yet.
func (s *server) retire(ctx context.Context, hurried bool, closed func()) (cut int, err error) {
	var closeErr error
	if hurried {
		closed()
	} else {
		closeErr = s.CloseWhenQuiet(ctx)
		closed()
		s.LingerOpen(ctx) // also when its listener is broken: those who are connected are served
	}
	s.RequestStop(worker.ErrStopRequested)
	cut, err = s.Shutdown(ctx)
	return cut, errors.Join(closeErr, err)
}

// Addr returns the address on which the server added under name listens, or nil
// when there is no such server or it is not bound yet. It is for servers on
// port 0.
func (a *App) Addr(name string) net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.servers {
		if s.Name() == name {
			return s.drainingServer.Addr()
		}
	}
	return nil
}
