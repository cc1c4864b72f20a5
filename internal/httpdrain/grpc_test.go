package httpdrain

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeGRPC has the behaviour of grpc.Server on which GRPC relies. An RPC is one byte, which
// the server echoes after release.
type fakeGRPC struct {
	mu      sync.Mutex
	ln      net.Listener
	conns   map[net.Conn]bool // true while an RPC runs
	ended   chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
	release chan struct{}
	log     []string
}

func newFakeGRPC() *fakeGRPC {
	return &fakeGRPC{conns: map[net.Conn]bool{}, ended: make(chan struct{}), release: make(chan struct{})}
}

func (f *fakeGRPC) note(what string) { f.mu.Lock(); f.log = append(f.log, what); f.mu.Unlock() }

func (f *fakeGRPC) Serve(ln net.Listener) error {
	f.mu.Lock()
	f.ln = ln
	f.mu.Unlock()
	for {
		nc, err := ln.Accept()
		if err != nil {
			if isClosed(f.ended) {
				return nil
			}
			return err
		}
		f.mu.Lock()
		f.conns[nc] = false
		f.mu.Unlock()
		f.wg.Go(func() { f.serveConn(nc) })
	}
}

func (f *fakeGRPC) serveConn(nc net.Conn) {
	defer nc.Close()
	defer func() { f.mu.Lock(); delete(f.conns, nc); f.mu.Unlock() }()
	b := make([]byte, 1)
	for {
		if _, err := nc.Read(b); err != nil {
			return
		}
		f.mu.Lock()
		f.conns[nc] = true
		f.mu.Unlock()
		<-f.release
		if _, err := nc.Write(b); err != nil {
			return
		}
		f.mu.Lock()
		f.conns[nc] = false
		f.mu.Unlock()
		if isClosed(f.ended) {
			return
		}
	}
}

func (f *fakeGRPC) end(cut bool) {
	f.once.Do(func() { close(f.ended) })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ln != nil {
		f.ln.Close()
	}
	for nc, busy := range f.conns {
		if cut || !busy {
			nc.Close()
		}
	}
	if cut && !isClosed(f.release) {
		close(f.release)
	}
}

func (f *fakeGRPC) GracefulStop() { f.note("GracefulStop"); f.end(false); f.wg.Wait() }
func (f *fakeGRPC) Stop()         { f.note("Stop"); f.end(true) }
func (f *fakeGRPC) Shutdown()     { f.note("NOT_SERVING") }

func (f *fakeGRPC) calls() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.log, " ")
}

func startGRPC(t *testing.T, f *fakeGRPC, cfg Config) (*GRPC, *pipeListener) {
	ln := newPipeListener()
	return serveGRPC(t, f, ln, f, cfg), ln
}

func serveGRPC(t *testing.T, f *fakeGRPC, ln *pipeListener, health GRPCHealth, cfg Config) *GRPC {
	g := NewGRPC("rpc", f, ln, health, cfg)
	if err := g.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(t.Context()) }()
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		f.wg.Wait()
	})
	return g
}

// Health says NOT_SERVING at T0. RPCs and new connections are served through the window
// and until nothing new arrives. Only then comes GracefulStop, which lets RPCs in progress
// end.
func TestGRPCDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGRPC()
		g, ln := startGRPC(t, f, Config{AcceptQuiet: time.Second, Linger: 10 * time.Second})
		old := ln.dial(t)
		g.BeginDrain(time.Now(), 5*time.Second)
		g.BeginDrain(time.Now(), 5*time.Second)
		synctest.Wait()
		if got := f.calls(); got != "NOT_SERVING" {
			t.Error(got)
		}
		time.Sleep(5 * time.Second)
		g.EndWindow()
		fresh := ln.dial(t)
		if err := g.CloseWhenQuiet(t.Context()); err != nil {
			t.Error(err)
		}
		old.send("a")
		fresh.send("b")
		g.LingerOpen(t.Context())
		synctest.Wait()
		if st := g.Stats(); st.Conns != 2 || st.Accepted != 2 || f.calls() != "NOT_SERVING" {
			t.Errorf("%+v, %s", st, f.calls())
		}
		type result struct {
			cut int
			err error
		}
		down := make(chan result)
		go func() { cut, err := g.Shutdown(t.Context()); down <- result{cut, err} }()
		synctest.Wait()
		close(f.release)
		for _, c := range []*raw{old, fresh} {
			if b, err := io.ReadAll(c.r); len(b) != 1 || err != nil {
				t.Errorf("%q %v", b, err)
			}
		}
		if r := <-down; r.cut != 0 || r.err != nil {
			t.Errorf("%+v", r)
		}
		if got := f.calls(); got != "NOT_SERVING GracefulStop Stop" {
			t.Error(got)
		}
	})
}

// The listener closes when nothing has come for as long again as the last connection came
// after T0, with a health server and without one.
func TestGRPCWaitsAsLongAgainForTheNextConnection(t *testing.T) {
	for _, hasHealth := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f, ln := newFakeGRPC(), newPipeListener()
			var health GRPCHealth
			if hasHealth {
				health = f
			}
			g := serveGRPC(t, f, ln, health, Config{AcceptQuiet: time.Second, AcceptMax: time.Minute})
			g.BeginDrain(time.Now(), 5*time.Second)
			time.Sleep(4 * time.Second)
			ln.dial(t)
			time.Sleep(time.Second)
			g.EndWindow()
			end := time.Now()
			if err := g.CloseWhenQuiet(t.Context()); err != nil {
				t.Error(err)
			}
			if got := time.Since(end); got != 3*time.Second {
				t.Errorf("with a health server %v: closed after %v, want 3s", hasHealth, got)
			}
		})
	}
}

// At the in-flight deadline Stop cuts, and the connections are counted.
func TestGRPCStopAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGRPC()
		g, ln := startGRPC(t, f, Config{})
		busy := ln.dial(t)
		busy.send("a")
		ln.dial(t)
		synctest.Wait()
		why := errors.New("slice over")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, why)
		defer cancel()
		begin := time.Now()
		cut, err := g.Shutdown(ctx)
		if cut != 1 || !errors.Is(err, why) || time.Since(begin) != 3*time.Second {
			t.Errorf("cut %d after %v, %v", cut, time.Since(begin), err)
		}
		if got := f.calls(); got != "NOT_SERVING GracefulStop Stop" {
			t.Error(got)
		}
	})
}

type stubborn struct {
	*fakeGRPC
	release chan struct{}
}

func (s stubborn) GracefulStop() { <-s.release }
func (s stubborn) Shutdown()     { panic("unwell") }

// A GracefulStop that does not return after Stop is abandoned and named; a
// health that panics is reported.
func TestGRPCThatDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGRPC()
		s := stubborn{f, make(chan struct{})}
		g := NewGRPC("rpc", s, newPipeListener(), s, Config{})
		if err := g.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_, err := g.Shutdown(ctx)
		if err == nil || !strings.Contains(err.Error(), "rpc: GracefulStop: did not return in time and was abandoned in ") || !strings.Contains(err.Error(), "panic: unwell") {
			t.Error(err)
		}
		if got := time.Since(begin); got != 2*time.Second {
			t.Errorf("after %v", got)
		}
		close(s.release)
	})
}

type hungHealth chan struct{}

func (h hungHealth) Shutdown() { <-h }

// A health that hangs does not delay T0, uses up a second of Shutdown
// at most, counted from T0, and is reported.
func TestGRPCHealthThatHangs(t *testing.T) {
	for _, test := range []struct {
		name         string
		window, hang time.Duration // of the health; 0 for ever
		want         time.Duration // what Shutdown takes
		says         string
	}{
		{"for ever, with a window", 5 * time.Second, 0, 0, `gRPC server "rpc": rpc: Shutdown of its health: did not return in time and was abandoned`},
		{"for ever, without", 0, 0, time.Second, "Shutdown of its health: did not return in time and was abandoned"},
		{"a while", 0, 300 * time.Millisecond, 300 * time.Millisecond, ""},
		{"all through the window", 5 * time.Second, 4 * time.Second, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, h := newFakeGRPC(), make(hungHealth)
				g := NewGRPC("rpc", f, newPipeListener(), h, Config{})
				if err := g.Bind(t.Context()); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				if test.hang > 0 {
					time.AfterFunc(test.hang, func() { close(h) })
				}
				if test.window > 0 {
					g.BeginDrain(begin, test.window)
					if got := time.Since(begin); got != 0 {
						t.Errorf("T0 took %v", got)
					}
					time.Sleep(test.window)
				}
				cut, err := g.Shutdown(t.Context())
				if got := time.Since(begin) - test.window; got != test.want || cut != 0 {
					t.Errorf("Shutdown took %v, want %v; cut %d", got, test.want, cut)
				}
				if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
					t.Errorf("got %v, want %q", err, test.says)
				}
				if got := f.calls(); got != "GracefulStop Stop" {
					t.Error(got)
				}
				if test.hang == 0 {
					close(h)
				}
			})
		})
	}
}

// A health that ends after Shutdown has ceased to wait for it, and before GracefulStop, is no error.
func TestGRPCHealthThatEndsDuringGracefulStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := newFakeGRPC(), make(hungHealth)
		g := NewGRPC("rpc", f, newPipeListener(), h, Config{})
		if err := g.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.wg.Go(func() { time.Sleep(5 * time.Second) }) // an RPC
		time.AfterFunc(1300*time.Millisecond, func() { close(h) })
		if cut, err := g.Shutdown(t.Context()); cut != 0 || err != nil {
			t.Errorf("%d cut, %v", cut, err)
		}
	})
}

func TestGRPCErrors(t *testing.T) {
	f := newFakeGRPC()
	check := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	g := NewGRPC("rpc", f, failingListener{newPipeListener()}, nil, Config{})
	if g.Addr() != nil {
		t.Error(g.Addr())
	}
	if err := g.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(g.Serve(t.Context()), "out of luck")

	// Stopped by other code.
	g = NewGRPC("rpc", f, newPipeListener(), nil, Config{})
	if err := g.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Stop()
	g.given.Close()
	check(g.Serve(t.Context()), "stopped by other code")

	// Everything on one that was never bound.
	g = NewGRPC("rpc", f, newPipeListener(), nil, Config{})
	g.EndWindow()
	g.LingerOpen(t.Context())
	if cut, err := g.Shutdown(t.Context()); cut != 0 || err != nil {
		t.Error(cut, err)
	}
	if err := errors.Join(g.CloseWhenQuiet(t.Context()), g.Close()); err != nil {
		t.Error(err)
	}
	check(g.Bind(t.Context()), "stopped")
}
