package stop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"go.uber.org/fx"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server serves h on ln. stop takes it down and returns when that is done.
type server struct {
	peer  string
	serve func(tb testing.TB, ln net.Listener, h http.Handler, t timing) (stop func() error)
}

// servers are the compared servers. Each is stopped as its documentation shows,
// without a deadline or with one that it does not reach.
var servers = []server{
	{"net-http.Shutdown", shutdown(func(h http.Handler) *http.Server { return &http.Server{Handler: h} }, false)},
	{"net-http.Sleep-Shutdown", shutdown(func(h http.Handler) *http.Server { return &http.Server{Handler: h} }, true)},
	{"fx", fxRecipe},
	{"controller-runtime", shutdown(controllerRuntimeServer, false)},
	{"lifecycle-go", app},
}

// shutdown calls http.Server.Shutdown at once or, like a preStop hook that sleeps, after
// the window.
func shutdown(build func(http.Handler) *http.Server, sleep bool) func(testing.TB, net.Listener, http.Handler, timing) func() error {
	return func(_ testing.TB, ln net.Listener, h http.Handler, t timing) func() error {
		srv := build(h)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(ln) }()
		return func() error {
			if sleep {
				time.Sleep(t.window)
			}
			err := srv.Shutdown(context.Background())
			if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
				return errors.Join(err, serr)
			}
			return err
		}
	}
}

// controllerRuntimeServer is what a manager serves webhooks, metrics and
// probes with (pkg/internal/httpserver, New); manager.Server and the webhook
// server call Shutdown on it as soon as their context is cancelled. It is
// copied because it is internal, and importing a package that uses it would compile
// client-go, which takes minutes.
func controllerRuntimeServer(h http.Handler) *http.Server {
	return &http.Server{
		BaseContext:       func(net.Listener) context.Context { return context.Background() },
		Handler:           h,
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second,
		ReadHeaderTimeout: 32 * time.Second,
	}
}

// fxRecipe is the server of fx's introduction ("Get started", "Add an HTTP
// server").
func fxRecipe(tb testing.TB, ln net.Listener, h http.Handler, _ timing) func() error {
	a := fx.New(fx.NopLogger,
		fx.Provide(func(lc fx.Lifecycle) *http.Server {
			srv := &http.Server{Handler: h}
			lc.Append(fx.Hook{
				OnStart: func(context.Context) error {
					go func() { _ = srv.Serve(ln) }()
					return nil
				},
				OnStop: srv.Shutdown,
			})
			return srv
		}),
		fx.Invoke(func(*http.Server) {}),
	)
	if err := a.Start(context.Background()); err != nil {
		tb.Fatal(err)
	}
	return func() error { return a.Stop(context.Background()) }
}

func app(tb testing.TB, ln net.Listener, h http.Handler, t timing) func() error {
	a, err := lifecycle.New(lifecycle.Config{
		HealthAddr: lifecycle.HealthOff, TerminationLog: "off",
		DrainInterval: t.window,
		GoAwayAfter:   t.window / 5,
		AcceptQuiet:   t.window / 5,
		Linger:        2 * t.idle, // ends when the last connection is gone
	}, lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		tb.Fatal(err)
	}
	a.Serve("http", &http.Server{Handler: h}, lifecycle.WithListener(ln))
	result := make(chan error, 1)
	go func() { result <- a.Run(context.Background()) }()
	<-a.Reached(lifecycle.PhaseRunning)
	return func() error {
		a.Stop(nil)
		return <-result
	}
}

// BenchmarkStop replaces a server under load, once an iteration.
//
// Two hundred clients keep their connections and pause between requests, for up to
// 1.6 s; eight open a connection for every request. They see a connection that
// was closed while it was idle, and they never retry. New connections go to
// the old server until 0.7 s after the stop, and then to its successor: that is
// what a cluster takes to notice. (With -short all of it is a quarter.)
func BenchmarkStop(b *testing.B) {
	t := times()
	for _, s := range servers {
		b.Run("peer="+s.peer, func(b *testing.B) {
			var took time.Duration
			var acc account
			for range b.N {
				took += replace(b, s, t, &acc)
			}
			n := float64(b.N)
			b.ReportMetric(float64(acc.lostFresh.Load())/n, "lost-fresh")
			b.ReportMetric(float64(acc.lostAlive.Load())/n, "lost-keepalive")
			b.ReportMetric(float64(acc.answered.Load())/n, "answered")
			b.ReportMetric(float64(took.Milliseconds())/n, "stop-ms")
			b.ReportMetric(0, "ns/op") // the length of a replacement is the harness's
		})
	}
}

// replace runs load against one server, stops that, moves the clients to its
// successor, and returns how long the stop took.
func replace(tb testing.TB, s server, t timing, acc *account) time.Duration {
	var served atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(t.handler)
		served.Add(1)
		_, _ = w.Write([]byte("done"))
	})
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		return ln
	}
	ln, next := listen(), listen()
	stopOld := s.serve(tb, ln, handler, t)
	successor := &http.Server{Handler: handler}
	succeeded := make(chan error, 1)
	go func() { succeeded <- successor.Serve(next) }()

	svc := &service{old: ln.Addr().String(), successor: next.Addr().String()}
	before := served.Load()
	endLoad, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		load(svc, t, acc, endLoad)
	}()
	time.Sleep(t.warm)
	if served.Load() == before {
		tb.Error("nothing was served before the stop")
	}

	began := time.Now()
	move := time.AfterFunc(t.propagation, func() { svc.moved.Store(true) })
	defer move.Stop()
	if err := stopOld(); err != nil {
		tb.Error(fmt.Errorf("stop of %s: %w", s.peer, err))
	}
	took := time.Since(began)
	// All clients have met the stop when each has paused once more.
	time.Sleep(max(0, t.propagation+t.idle-took) + t.warm)
	close(endLoad)
	<-ended
	_ = successor.Close()
	<-succeeded
	if lost := acc.lostFresh.Load() + acc.lostAlive.Load(); acc.answered.Load() <= lost {
		tb.Errorf("%d requests were lost and %d answered: the load was not served", lost, acc.answered.Load())
	}
	return took
}
