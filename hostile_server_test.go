package lifecycle_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Tests of listeners, and of servers that the App knows only by an interface,
// whose methods hang or panic.

// rogueListener hangs or panics in one of its methods.
type rogueListener struct {
	net.Listener
	mode    string
	release chan struct{}
}

func (l *rogueListener) Accept() (net.Conn, error) {
	switch l.mode {
	case "Accept panics":
		panic(l.mode)
	case "Accept hangs": // Accept hangs although the listener is closed
		<-l.release
		return nil, net.ErrClosed
	}
	return l.Listener.Accept()
}

// endlessError wraps itself, twice, until it is shut.
type endlessError struct{ shut *atomic.Bool }

func (e endlessError) Error() string { return "an error without an end" }
func (e endlessError) Unwrap() []error {
	if e.shut.Load() {
		return nil
	}
	return []error{e, e}
}

// endlessListener returns such an error from Accept.
type endlessListener struct {
	net.Listener
	err error
}

func (l endlessListener) Accept() (net.Conn, error) { return nil, l.err }

func TestListenerWhoseErrorHasNoEnd(t *testing.T) {
	var shut atomic.Bool
	ln := endlessListener{listenTCP(t), endlessError{&shut}}
	rogueRun(t, func(r *rig) {
		r.OnShutdown("shut", func(context.Context) error { shut.Store(true); return nil })
		r.Serve("http", &http.Server{}, lifecycle.WithListener(ln))
	}, false, "unit http", "an error without an end")
}

func (l *rogueListener) Addr() net.Addr {
	switch l.mode {
	case "Addr panics":
		panic(l.mode)
	case "Addr is nil":
		return nil
	case "the address panics":
		return rogueAddr{l.Listener.Addr()}
	}
	return l.Listener.Addr()
}

// rogueDeadline is a listener whose SetDeadline panics.
type rogueDeadline struct{ net.Listener }

func (rogueDeadline) SetDeadline(time.Time) error { panic("SetDeadline panics") }

// rogueAddr is an address whose String panics.
type rogueAddr struct{ net.Addr }

func (rogueAddr) String() string { panic("the address panics") }

// rogueConns is a listener. The Close of its connections panics or does not return.
type rogueConns struct {
	net.Listener
	close func()
}

func (l rogueConns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return rogueConn{c, l.close}, err
}

type rogueConn struct {
	net.Conn
	close func()
}

func (c rogueConn) Close() error {
	_ = c.Conn.Close()
	c.close()
	return nil
}

func (l *rogueListener) Close() error {
	err := l.Listener.Close()
	switch l.mode {
	case "Close panics":
		panic(l.mode)
	case "Close exits":
		runtime.Goexit()
	case "Close hangs":
		<-l.release
	}
	return err
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// rogueRun runs an App, stops it soon, and checks what R17 and R18 promise: the
// hook that runs after the faulty part runs in time, and the error contains says,
// the name of that part. When says is empty, Run must return nil.
func rogueRun(t *testing.T, register func(*rig), stuck bool, says ...string) {
	t.Helper()
	slice := time.Second // what hangs takes all of it
	if !stuck {
		slice = time.Minute
	}
	r := newRig(t, lifecycle.Config{
		DrainInterval: 10 * time.Millisecond, DrainWait: lifecycle.WaitAlways,
		// The hook gets most of the time, because it may be late on a busy machine.
		ShutdownGrace: slice + time.Minute + time.Second, Linger: 500 * time.Millisecond, UnitSlice: slice, HookSlice: time.Minute,
	})
	register(r)
	inTime := false
	r.OnShutdown("db", func(ctx context.Context) error { inTime = ctx.Err() == nil; return nil })
	over := make(chan struct{})
	var stop sync.WaitGroup
	stop.Go(func() {
		select {
		case <-r.Reached(lifecycle.PhaseRunning):
			time.Sleep(100 * time.Millisecond) // so that most calls are under way
			r.Stop(nil)
		case <-over: // it did not start
		}
	})
	err := r.Run(t.Context())
	close(over)
	stop.Wait()
	if says == nil {
		if err != nil || !inTime {
			t.Errorf("%v; the hook after it ran in time: %v", err, inTime)
		}
		return
	}
	wantErr(t, err, nil, says...)
	if lines := strings.Split(err.Error(), "\n"); len(slices.Compact(slices.Sorted(slices.Values(lines)))) < len(lines) {
		t.Errorf("the error names it twice: %v", err)
	}
	if !inTime {
		t.Error("the hook after it did not run in time")
	}
	var abandoned *lifecycle.AbandonedError
	switch {
	case errors.As(err, &abandoned) != stuck:
		t.Errorf("something was abandoned: %v, want %v: %v", !stuck, stuck, err)
	case stuck && (abandoned.Stack == "" || lifecycle.ExitCode(err) != lifecycle.ExitStuck):
		t.Errorf("exit status %d, and the stack is %q", lifecycle.ExitCode(err), abandoned.Stack)
	}
}

func TestListenerThatHangsOrPanics(t *testing.T) {
	for mode, c := range map[string]struct {
		stuck bool
		says  []string
	}{
		"Accept panics":      {false, []string{"unit http", "panic: Accept panics"}},
		"Accept hangs":       {true, []string{"http", "abandoned"}},
		"Addr panics":        {false, []string{`bind server "http"`, "panic: Addr panics"}},
		"Addr is nil":        {false, []string{`bind server "http"`, "a *lifecycle_test.rogueListener has no address"}},
		"Close panics":       {false, []string{"http", "panic: Close panics"}},
		"Close exits":        {false, []string{"http", "called runtime.Goexit"}},
		"the address panics": {false, []string{`bind server "http"`, "panic: the address panics"}},
		"Close hangs":        {true, []string{"http", "abandoned", "rogueListener).Close"}},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			ln := &rogueListener{listenTCP(t), mode, make(chan struct{})}
			t.Cleanup(func() { close(ln.release) })
			rogueRun(t, func(r *rig) { r.Serve("http", &http.Server{}, lifecycle.WithListener(ln)) }, c.stuck, c.says...)
		})
	}
}

func TestListenerWhoseSetDeadlinePanics(t *testing.T) {
	// The App treats it as a listener without deadlines.
	ln := rogueDeadline{listenTCP(t)}
	rogueRun(t, func(r *rig) { r.Serve("http", &http.Server{}, lifecycle.WithListener(ln)) }, false)
}

func TestHijackedConnectionWhoseCloseHangsOrPanics(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for mode, c := range map[string]struct {
		close func()
		stuck bool
		says  []string
	}{
		// Both count as an error of Close, which the App ignores.
		"panics": {func() { panic("Close of a connection") }, false, nil},
		"exits":  {runtime.Goexit, false, nil},
		"hangs":  {func() { <-release }, true, []string{"http: shutdown", "abandoned"}},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			ln := rogueConns{listenTCP(t), c.close}
			rogueRun(t, func(r *rig) {
				hijacked := make(chan struct{})
				r.Serve("http", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _, _ = http.NewResponseController(w).Hijack()
					close(hijacked)
				})}, lifecycle.WithListener(ln))
				r.Go("client", func(ctx context.Context) error { <-hijacked; lifecycle.MarkStarted(ctx); <-ctx.Done(); return nil }, lifecycle.WithStartCondition()) // the App is not running before that
				client, err := net.Dial("tcp", ln.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = client.Close() })
				_, _ = client.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
			}, c.stuck, c.says...)
		})
	}
}

func TestActorThatIsAbandonedIsNamedOnce(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	rogueRun(t, func(r *rig) {
		r.Actor("old", func() error { <-release; return nil }, func(error) {})
	}, true, "unit old: did not return")
}

// rogueGRPC is a gRPC server and its health service. One of its methods does not
// return. (The Stop of a real server waits for handlers with
// grpc.WaitForHandlers.)
type rogueGRPC struct {
	mode    string
	stop    chan struct{}
	release chan struct{}
}

func (g *rogueGRPC) hang(mode string) {
	if g.mode == mode {
		<-g.release
	}
}

func (g *rogueGRPC) Serve(net.Listener) error { <-g.stop; g.hang("Serve"); return nil }
func (g *rogueGRPC) GracefulStop()            { g.hang("GracefulStop"); <-g.stop }
func (g *rogueGRPC) Stop()                    { close(g.stop); g.hang("Stop") }
func (g *rogueGRPC) Shutdown()                { g.hang("Shutdown") }

func TestGRPCMethodThatHangsIsNamedWithItsStack(t *testing.T) {
	for mode, says := range map[string]string{
		"Serve":        "unit grpc: did not return",
		"GracefulStop": "grpc: GracefulStop: did not return",
		"Stop":         "grpc: Stop: did not return",
		"Shutdown":     "grpc: Shutdown of its health: did not return",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			g := &rogueGRPC{mode, make(chan struct{}), make(chan struct{})}
			t.Cleanup(func() { close(g.release) })
			rogueRun(t, func(r *rig) { r.GRPC("grpc", g, listenTCP(t), g) }, true, says, "rogueGRPC).")
		})
	}
}

// rogueAwait is a worker whose Await panics, or ignores its context.
type rogueAwait struct {
	worker.BaseWorker
	release chan struct{}
}

func (w *rogueAwait) Start(ctx context.Context) error { return w.Begin(ctx) }
func (w *rogueAwait) Stop(context.Context) error      { w.RequestStop(nil); w.Finish(nil); return nil }
func (w *rogueAwait) Await(context.Context, func(worker.Status) bool) (worker.Status, error) {
	if w.release == nil {
		panic("ouch")
	}
	<-w.release
	return worker.StatusRunning, nil
}

func TestWorkerWhoseAwaitPanicsOrHangs(t *testing.T) {
	t.Run("panics", func(t *testing.T) {
		w := &rogueAwait{}
		w.Init("rogue", "w")
		r := newRig(t, lifecycle.Config{})
		wantErr(t, r.Add(w).Run(t.Context()), nil, "unit w: ", "panic: ouch")
	})
	t.Run("hangs", func(t *testing.T) {
		w := &rogueAwait{release: make(chan struct{})}
		w.Init("rogue", "w")
		r := newRig(t, lifecycle.Config{})
		r.after(50*time.Millisecond, func() { r.Stop(nil) })
		if err := r.Add(w).Run(t.Context()); err != nil {
			t.Error(err)
		}
		close(w.release)
	})
}

func TestServerOfAnotherAppIsRefused(t *testing.T) {
	srv := &http.Server{Addr: "127.0.0.1:0"}
	first := newRig(t, lifecycle.Config{DrainWait: lifecycle.WaitNever})
	first.Serve("api", srv)
	over := make(chan error, 1)
	go func() { over <- first.Run(context.Background()) }()
	<-first.Reached(lifecycle.PhaseRunning)
	for range 2 { // while the other App runs, and after
		second := newRig(t, lifecycle.Config{DrainWait: lifecycle.WaitNever})
		wantErr(t, second.Serve("http", srv).Run(t.Context()), nil, `bind server "http": its *http.Server is already used by server "api"`)
		if over != nil {
			first.Stop(nil)
			if err := <-over; err != nil {
				t.Error(err)
			}
			over = nil
		}
	}
}

func TestNilListenerIsRefused(t *testing.T) {
	for name, ln := range map[string]net.Listener{"nil": nil, "a nil pointer": (*net.TCPListener)(nil)} {
		r := newRig(t, lifecycle.Config{})
		err := r.Serve("http", &http.Server{}, lifecycle.WithListener(ln)).Run(t.Context())
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		wantErr(t, err, nil, `unit "http": WithListener: the listener is nil`)
	}
}
