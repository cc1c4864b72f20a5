package lifecycle_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// small returns budgets for tests on real sockets. The window is short. Linger and
// ShutdownGrace are as long as a busy machine needs; they end early when no connection
// is open and when every unit has returned.
func small() lifecycle.Config {
	return lifecycle.Config{
		DrainInterval: 400 * time.Millisecond, GoAwayAfter: 100 * time.Millisecond, AcceptQuiet: 150 * time.Millisecond,
		Linger: 15 * time.Second, ShutdownGrace: time.Minute,
	}
}

// cutting returns budgets in which the App cuts requests two seconds after the window.
// What comes after that has a minute.
func cutting() lifecycle.Config {
	cfg := small()
	cfg.Linger, cfg.UnitSlice, cfg.HookSlice = 300*time.Millisecond, 38*time.Second, 20*time.Second
	return cfg
}

// rawClient sends requests over one connection at a time and never retries: a
// request that gets no response is lost. It reconnects when it is told to
// close, unless endpoints have moved: then it goes on using the connection that
// it has, and opens no other.
func rawClient(addr string, idle time.Duration, moved, stop <-chan struct{}) (sent, lost int, err error) {
	var conn net.Conn
	var r *bufio.Reader
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	for {
		select {
		case <-stop:
			return sent, lost, err
		default:
		}
		if conn == nil {
			select {
			case <-moved:
				return sent, lost, err
			default:
			}
			c, dialErr := net.Dial("tcp", addr)
			if dialErr != nil {
				select {
				case <-moved: // while it was dialling
					return sent, lost, err
				default:
				}
				return sent, lost + 1, fmt.Errorf("request %d: %w", sent+1, dialErr)
			}
			conn, r = c, bufio.NewReader(c)
		}
		sent++
		_, werr := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
		resp, rerr := http.ReadResponse(r, nil)
		if werr != nil || rerr != nil {
			return sent, lost + 1, fmt.Errorf("request %d: %w", sent, errors.Join(werr, rerr))
		}
		if _, cerr := io.Copy(io.Discard, resp.Body); cerr != nil || resp.StatusCode != 200 {
			return sent, lost + 1, fmt.Errorf("request %d: status %d: %w", sent, resp.StatusCode, errors.Join(cerr, errBoom))
		}
		resp.Body.Close()
		if resp.Close {
			conn.Close()
			conn = nil
		}
		select {
		case <-time.After(idle):
		case <-stop:
		}
	}
}

// Clients connect until the endpoints have moved, in the middle of the window,
// and go on using the connections that they have.
func TestNoRequestIsLostWhileTheAppStops(t *testing.T) {
	cfg := small()
	cfg.DrainInterval = 3 * time.Second // half of it is left for a drainer that comes late
	r := newRig(t, cfg)
	var served atomic.Int64
	r.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		served.Add(1)
		time.Sleep(2 * time.Millisecond)
		_, _ = w.Write([]byte("ok"))
	})})
	var wg sync.WaitGroup
	var sent atomic.Int64
	moved, end := make(chan struct{}), make(chan struct{})
	r.OnDrain("endpoints", lifecycle.DrainFunc(func(context.Context) error {
		time.Sleep(r.Config().DrainInterval / 2) // under load, in real time
		close(moved)
		return nil
	}))
	r.Go("clients", func(context.Context) error {
		<-r.Reached(lifecycle.PhaseRunning)
		for _, idle := range []time.Duration{0, 0, 5 * time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond} {
			wg.Go(func() {
				n, lost, err := rawClient(r.Addr("http").String(), idle, moved, end)
				sent.Add(int64(n))
				if lost > 0 {
					t.Errorf("a client that idles %v lost %d of %d requests: %v", idle, lost, n, err)
				}
			})
		}
		for served.Load() < 50 && !t.Failed() {
			time.Sleep(10 * time.Millisecond) // load, in real time
		}
		r.Stop(nil)
		return nil
	})
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	close(end)
	wg.Wait()
	if sent.Load() < 50 {
		t.Errorf("only %d requests: that proves nothing", sent.Load())
	}
}

func TestRequestInFlightFinishesAfterTheWindow(t *testing.T) {
	cfg := small()
	cfg.Linger, cfg.AcceptQuiet = lifecycle.Off, lifecycle.Off
	r := newRig(t, cfg)
	r.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.Stop(nil)
		if r.awaitWindowEnd(req.Context()); req.Context().Err() == nil {
			_, _ = w.Write([]byte("finished"))
		} else {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("cancelled"))
		}
	})})
	got := make(chan string, 1)
	r.Go("client", func(context.Context) error {
		<-r.Reached(lifecycle.PhaseRunning)
		got <- fetch(t, "http://"+r.Addr("http").String())
		return nil
	})
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if s := <-got; s != "200 finished" {
		t.Errorf("the client got %q", s)
	}
}

func TestRequestThatNeverEndsIsCutAndCounted(t *testing.T) {
	r := newRig(t, cutting())
	ended := make(chan error, 1)
	r.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		r.Stop(nil)
		<-req.Context().Done()
		ended <- context.Cause(req.Context())
	})})
	r.Go("client", func(context.Context) error {
		<-r.Reached(lifecycle.PhaseRunning)
		resp, err := http.Get("http://" + r.Addr("http").String())
		if err == nil {
			resp.Body.Close()
			t.Error("the client got an answer")
		}
		return nil
	})
	err := r.Run(t.Context())
	wantErr(t, err, context.DeadlineExceeded, `server "http"`, "1 requests cut")
	if code := lifecycle.ExitCode(err); code != lifecycle.ExitCut {
		t.Errorf("the exit status is %d, want %d", code, lifecycle.ExitCut)
	}
	if got := r.Report().CutRequests; got != 1 {
		t.Errorf("the report says %d", got)
	}
	<-ended
}

// A server that handlers of another one call is an Actor, and is there until the requests of the
// others have ended.
func TestActorServesTheServersToTheEnd(t *testing.T) {
	cfg := small()
	cfg.Linger, cfg.AcceptQuiet = lifecycle.Off, lifecycle.Off
	r := newRig(t, cfg)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	back := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("from the back"))
	})}
	r.Actor("back", func() error {
		if err := back.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}, func(error) { _ = back.Shutdown(context.Background()) })
	r.Serve("front", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.Stop(nil)
		r.awaitWindowEnd(req.Context())
		time.Sleep(300 * time.Millisecond) // enough for a server to leave
		_, _ = w.Write([]byte(fetch(t, "http://"+ln.Addr().String())))
	})})
	got := make(chan string, 1)
	r.Go("client", func(context.Context) error {
		<-r.Reached(lifecycle.PhaseRunning)
		got <- fetch(t, "http://"+r.Addr("front").String())
		return nil
	})
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if s := <-got; s != "200 200 from the back" {
		t.Errorf("the client got %q", s)
	}
}

func TestServerThatDiesStopsTheApp(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, small())
	r.Serve("http", &http.Server{}, lifecycle.WithListener(ln)).
		Go("kill", func(context.Context) error {
			<-r.Reached(lifecycle.PhaseRunning)
			return ln.Close()
		})
	err = r.Run(t.Context())
	wantErr(t, err, net.ErrClosed, "unit http")
	if got := r.Report().Window; got != "nothing listens" {
		t.Errorf("the window: %q, want it skipped: the only listener is gone", got)
	}
}

func TestFatalUnitKeepsTheWindowWhileAListenerServes(t *testing.T) {
	r := newRig(t, small())
	r.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.NotFoundHandler()})
	r.Go("bad", func(context.Context) error {
		<-r.Reached(lifecycle.PhaseRunning)
		return errBoom
	})
	r.OnDrain("client", lifecycle.DrainFunc(func(context.Context) error {
		if got := fetch(t, "http://"+r.Addr("http").String()); !strings.HasPrefix(got, "404") {
			t.Errorf("in the window a new connection gets %s", got)
		}
		return nil
	}))
	wantErr(t, r.Run(t.Context()), errBoom)
	if got := r.Report().Window; got != "full" {
		t.Errorf("the window: %q", got)
	}
}

// A name server that does not answer holds up the start, and not the stop.
func TestStopWhileANameIsLookedUp(t *testing.T) {
	asked, release := make(chan struct{}, 100), make(chan struct{})
	resolver := net.DefaultResolver
	defer func() { net.DefaultResolver = resolver }()
	defer close(release)
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		asked <- struct{}{}
		<-release
		return nil, errBoom
	}}
	r := newRig(t, small())
	r.Serve("http", &http.Server{Addr: "lifecycle.example:8080"})
	stopped := make(chan struct{})
	go func() {
		<-asked
		if addr := r.Addr("http"); addr != nil {
			t.Errorf("on %v before it is bound", addr)
		}
		r.Stop(nil)
		close(stopped)
	}()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(context.Background()) }()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("Stop waits for the name server")
	}
	if err := <-ended; err != nil { // it was asked to stop, and has
		t.Error(err)
	}
}

// fakeGRPC has the shape of a grpc.Server.
type fakeGRPC struct {
	quit   chan struct{}
	once   sync.Once
	events func(string)
	stuck  chan struct{}
}

func (g *fakeGRPC) Serve(ln net.Listener) error {
	go func() { <-g.quit; ln.Close() }()
	for {
		c, err := ln.Accept()
		if err != nil {
			select {
			case <-g.quit:
				return nil
			default:
				return err
			}
		}
		c.Close()
	}
}

func (g *fakeGRPC) GracefulStop() {
	g.events("GracefulStop")
	if g.stuck != nil {
		<-g.stuck
		return
	}
	g.once.Do(func() { close(g.quit) })
}

func (g *fakeGRPC) Stop() {
	g.events("Stop")
	g.once.Do(func() {
		if g.stuck != nil {
			close(g.stuck)
		}
		close(g.quit)
	})
}

type fakeHealth func(string)

func (h fakeHealth) Shutdown() { h("NOT_SERVING") }

func TestGRPCServerIsWalkedThroughTheDrain(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprint("stuck ", stuck), func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, cutting())
			var mu sync.Mutex
			var events []string
			note := func(e string) {
				mu.Lock()
				defer mu.Unlock()
				events = append(events, string(r.Phase())+" "+e)
			}
			srv := &fakeGRPC{quit: make(chan struct{}), events: note}
			if stuck {
				srv.stuck = make(chan struct{})
			}
			r.GRPC("grpc", srv, ln, fakeHealth(note))
			r.Go("stop", func(context.Context) error {
				<-r.Reached(lifecycle.PhaseRunning)
				r.Stop(nil)
				return nil
			})
			err = r.Run(t.Context())
			mu.Lock()
			defer mu.Unlock()
			got := strings.Join(events, ", ")
			got = strings.TrimPrefix(strings.TrimPrefix(got, "running "), "draining ")
			want := "NOT_SERVING, draining GracefulStop"
			if stuck {
				want += ", draining Stop"
			}
			if err != nil { // no client was connected: nothing was cut
				t.Error(err)
			}
			if !strings.HasPrefix(got, want) { // Stop once more at the end is harmless
				t.Errorf("went %s, want %s", got, want)
			}
		})
	}
}

type hungHealth chan struct{}

func (h hungHealth) Shutdown() { <-h }

// A health of gRPC's that hangs does not keep T0 from coming, and is reported.
func TestGRPCHealthThatHangsDoesNotHoldUpTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		h := make(hungHealth)
		r.GRPC("grpc", &fakeGRPC{quit: make(chan struct{}), events: func(string) {}}, newPipeListener(), h)
		r.after(time.Second, func() {
			r.Stop(nil)
			r.mark("Stop returns")
		})
		wantErr(t, r.Run(t.Context()), nil, `gRPC server "grpc": grpc: Shutdown of its health: did not return`, "hungHealth.Shutdown")
		r.wantTrail("1s Stop returns")
		close(h)
	})
}

func TestConnectionRefusedAfterRun(t *testing.T) {
	r := newRig(t, small())
	r.Serve("http", &http.Server{Addr: "127.0.0.1:0"})
	r.Go("stop", func(context.Context) error { <-r.Reached(lifecycle.PhaseRunning); r.Stop(nil); return nil })
	if r.Addr("http") != nil || r.Addr("unknown") != nil {
		t.Error("an address before it is bound")
	}
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", r.Addr("http").String()); err == nil {
		c.Close()
		t.Error("the listener is open after Run")
	} else if errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
