package httpdrain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// GRPCServer is what a *grpc.Server has. Serve returns nil after GracefulStop
// or Stop. GracefulStop closes the listener, sends GOAWAY to every connection
// and returns when the RPCs in progress are done; Stop closes everything and
// makes a GracefulStop in progress return.
type GRPCServer interface {
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// GRPCHealth is what grpc's health.Server has. Shutdown sets every service to
// NOT_SERVING and ignores changes from then on.
type GRPCHealth interface{ Shutdown() }

// healthPatience is how long Shutdown waits, counted from T0, for the health's
// Shutdown before it begins without it.
const healthPatience = time.Second

// goAwayHead is how long after GracefulStop was called handlers hear of it. Clients get
// GOAWAY first: one that calls again when its stream ends then calls another process.
const goAwayHead = 50 * time.Millisecond

// GRPC is a gRPC server with the same goodbye as [Server]:
//
//	T0             health says NOT_SERVING; RPCs are served as before
//	T0+window      nothing: streams end with GracefulStop, or are cut with Stop
//	then           the listener closes once nothing was accepted for AcceptQuiet
//	Shutdown       GracefulStop; a moment later Goodbye closes; Stop when its context is done
//
// GracefulStop comes last because it closes the listener at once: while endpoints
// still point here, clients that it sends away come back to a closed port. There
// is no linger: grpc sends GOAWAY in two steps (RFC 9113, 6.8), so that a client
// on an open connection loses no request. Requests cannot be seen without
// importing grpc, so Stats counts connections.
//
// Its methods may be called concurrently. Call Bind once, and then Serve once.
type GRPC struct {
	bound
	srv     GRPCServer
	health  GRPCHealth
	given   net.Listener
	goodbye chan struct{} // closed once, by sayGoodbye

	// Guarded by mu.
	said     bool       // goodbye is closed
	told     *call.Call // the health's Shutdown; nil without a health
	graceful *call.Call // GracefulStop; nil before it is called
	stopped  *call.Call // Stop; nil before it is called
}

// NewGRPC prepares srv, which is used once, on ln, which the GRPC owns from
// Bind on. health may be nil.
func NewGRPC(name string, srv GRPCServer, ln net.Listener, health GRPCHealth, cfg Config) *GRPC {
	return &GRPC{
		bound:   bound{name: name, cfg: cfg.clean(), tracker: newTracker()},
		srv:     srv,
		health:  health,
		given:   ln,
		goodbye: make(chan struct{}),
	}
}

// Bind takes the listener, which is bound already. It fails after Shutdown.
func (g *GRPC) Bind(context.Context) error {
	ln, err := newListener(g.given, g.tracker)
	if err != nil {
		return fmt.Errorf("bind gRPC server %q to the given listener: %w", g.name, err)
	}
	ln.anyConn = true
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return fmt.Errorf("bind gRPC server %q: stopped", g.name)
	}
	g.ln = ln
	return nil
}

// Serve serves until Shutdown or Close and then returns nil. It returns an
// error when the server ends by itself. The context is not used: RPCs have contexts
// of grpc's own.
func (g *GRPC) Serve(context.Context) error {
	g.mu.Lock()
	ln, closing := g.ln, g.closing
	g.mu.Unlock()
	if closing {
		return nil
	}
	err := g.srv.Serve(ln)
	ln.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return nil
	}
	if err == nil {
		err = errors.New("stopped by other code")
	}
	return fmt.Errorf("serve gRPC %q on %s: %w", g.name, ln.Addr(), err)
}

// BeginDrain begins the drain, at T0: it makes health say NOT_SERVING, in a goroutine of
// its own, and does not wait for that. When health panics or does not return, the error of
// Shutdown says so. A second call does nothing.
func (g *GRPC) BeginDrain(t0 time.Time, _ time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.began {
		return
	}
	g.began, g.t0 = true, t0
	if g.health != nil {
		g.told = startMethod(g.name+": Shutdown of its health", g.health.Shutdown)
	}
}

// EndWindow notes the moment from which AcceptQuiet and Linger count, and does
// BeginDrain's work if that was not called.
func (g *GRPC) EndWindow() {
	g.BeginDrain(time.Now(), 0)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.windowEnd.IsZero() {
		g.windowEnd = time.Now()
	}
}

// CloseWhenQuiet closes the listener as [Server.CloseWhenQuiet] does.
func (g *GRPC) CloseWhenQuiet(ctx context.Context) error { return g.closeWhenQuiet(ctx) }

// LingerOpen returns at once: see [GRPC].
func (g *GRPC) LingerOpen(context.Context) {}

// Shutdown calls GracefulStop and, when ctx is done before that returns, Stop.
// cut is the number of connections that were open then. The error says that
// connections were cut and why (the cause of ctx), that the listener could not
// be closed, or that GracefulStop, Stop or the health's Shutdown panicked. It names
// each of them that has not returned Patience after Stop was called; that one is
// abandoned. (Stop waits for handlers in a server with grpc.WaitForHandlers.)
// Shutdown waits for the health until a second after T0, which is mostly within
// the window, so that clients hear NOT_SERVING before GOAWAY.
func (g *GRPC) Shutdown(ctx context.Context) (cut int, err error) {
	g.EndWindow()
	g.awaitHealth(ctx)
	ln, graceful := g.begin()
	if ln == nil {
		return 0, g.healthError()
	}
	select {
	case <-graceful.Done():
	case <-ctx.Done():
	case <-time.After(goAwayHead):
	}
	g.sayGoodbye()
	select {
	case <-graceful.Done():
	case <-ctx.Done():
		if ended, _ := graceful.Ended(); !ended {
			cut, _ = g.tracker.count()
			if cut > 0 {
				err = &cutError{fmt.Errorf("shut down gRPC server %q: %d connections cut: %w", g.name, cut, context.Cause(ctx))}
			}
		}
	}
	return cut, errors.Join(err, g.stop(ln), g.healthError())
}

// Goodbye returns the channel that closes when handlers without an end should return: a
// moment after GracefulStop was called, or when the server is closed.
func (g *GRPC) Goodbye() <-chan struct{} { return g.goodbye }

func (g *GRPC) sayGoodbye() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.said {
		g.said = true
		close(g.goodbye)
	}
}

// awaitHealth returns when the health has said NOT_SERVING, when healthPatience
// is over, or when ctx is done.
func (g *GRPC) awaitHealth(ctx context.Context) {
	g.mu.Lock()
	told, t0 := g.told, g.t0
	g.mu.Unlock()
	if told == nil {
		return
	}
	select {
	case <-told.Done():
	case <-time.After(time.Until(t0.Add(healthPatience))):
	case <-ctx.Done():
	}
}

// healthError returns what was wrong with the health's Shutdown.
func (g *GRPC) healthError() error {
	g.mu.Lock()
	told := g.told
	g.mu.Unlock()
	if told == nil {
		return nil
	}
	if err := told.Wait(call.Now(), 0); err != nil {
		return fmt.Errorf("shut down gRPC server %q: %w", g.name, err)
	}
	return nil
}

// Close stops the server and closes every connection now.
func (g *GRPC) Close() error {
	g.mu.Lock()
	g.closing = true
	ln := g.ln
	g.mu.Unlock()
	g.sayGoodbye()
	if ln == nil {
		return nil
	}
	return g.stop(ln)
}

// startMethod calls one of the server's methods in a goroutine of its own.
func startMethod(what string, method func()) *call.Call {
	return call.Start(what, func() error { method(); return nil })
}

// begin marks the server as closing and starts GracefulStop, once.
func (g *GRPC) begin() (*listener, *call.Call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closing = true
	if g.ln != nil && g.graceful == nil {
		g.graceful = startMethod(g.name+": GracefulStop", g.srv.GracefulStop)
	}
	return g.ln, g.graceful
}

// stop calls Stop, which is harmless after GracefulStop, and closes what is
// left. Only the first call waits, and says what hangs.
func (g *GRPC) stop(ln *listener) (err error) {
	g.mu.Lock()
	first := g.stopped == nil
	if first {
		g.stopped = startMethod(g.name+": Stop", g.srv.Stop)
	}
	stopped, graceful := g.stopped, g.graceful
	g.mu.Unlock()
	over, cancel := context.WithTimeout(context.Background(), g.cfg.Patience)
	defer cancel()
	if first {
		err = stopped.Wait(over.Done(), 0)
	}
	if lerr := ln.Close(); lerr != nil {
		err = errors.Join(err, fmt.Errorf("close the listener of gRPC server %q: %w", g.name, lerr))
	}
	for _, c := range g.tracker.open() {
		_ = c.Close()
	}
	if first && graceful != nil {
		err = errors.Join(err, graceful.Wait(over.Done(), 0))
	}
	if err != nil {
		return fmt.Errorf("shut down gRPC server %q: %w", g.name, err)
	}
	return nil
}

// Stats returns what the server is doing now.
func (g *GRPC) Stats() Stats {
	st := Stats{
		Opaque:      true,
		Accepted:    g.tracker.accepted.Load(),
		LastArrival: g.tracker.at(g.tracker.lastAccept.Load()),
	}
	st.Conns, _ = g.tracker.count()
	return st
}
