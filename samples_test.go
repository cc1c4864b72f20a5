package lifecycle_test

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// The samples of the models that this library follows, unchanged. They test the names and
// signatures by compiling; the second one also runs.

type sampleServer struct{}

func (sampleServer) serve() error { return nil }
func (sampleServer) Close() error { return nil }

type sampleDB struct{}

func (sampleDB) PingContext(context.Context) error { return nil }
func (sampleDB) Close() error                      { return nil }

type sampleSRA struct{}

func (sampleSRA) StopAcceptingSessions()                          {}
func (sampleSRA) WaitForActiveSessions(ctx context.Context) error { return nil }

func TestSampleOfTheApp(t *testing.T) {
	var (
		cfg           struct{ Lifecycle lifecycle.Config }
		log           = slog.New(slog.DiscardHandler)
		ctx           = t.Context()
		reconcileLoop = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		poll          = reconcileLoop
		srv           sampleServer
		db            sampleDB
		sra           sampleSRA
	)
	cfg.Lifecycle = lifecycle.Config{HealthAddr: lifecycle.HealthOff}
	run := func() error {
		app, err := lifecycle.New(cfg.Lifecycle, lifecycle.WithLogger(log))
		// or: lifecycle.FromConfig(cfg.Lifecycle)
		if err != nil {
			return err
		}
		app.OnDrain("sra-sessions", lifecycle.DrainFunc(func(ctx context.Context) error {
			sra.StopAcceptingSessions()           // refuse new remote sessions
			return sra.WaitForActiveSessions(ctx) // let live ones finish within ctx
		}))
		app.Go("reconcile", reconcileLoop). // errgroup (ctx-aware)
							Actor("http", srv.serve, func(error) { srv.Close() }). // oklog/run shape
							Supervise("poller", poll, lifecycle.DefaultBackoff()). // suture-style restart
							Probe("db", lifecycle.ProbeFunc(db.PingContext)).      // readiness dependency
							OnShutdown("db", func(context.Context) error { return db.Close() })
		return app.Run(ctx) // encodes the k8s shutdown choreography
	}
	if err := run(); err != nil { // the actor returns at once, which is a clean stop
		t.Error(err)
	}
}

func TestSampleOfThePrimitives(t *testing.T) {
	var db sampleDB
	reconcile := func(context.Context) error { return nil }
	parent, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)

	// 1. Root context cancels on SIGINT/SIGTERM.
	ctx, stop := lifecycle.SignalContext(parent)
	defer stop()

	// 2. Ordered, bounded teardown (LIFO — reverse of acquisition order).
	srv := &http.Server{Addr: "127.0.0.1:0"}
	sd := lifecycle.NewShutdown(slog.New(slog.DiscardHandler))
	sd.Add("http-server", srv.Shutdown)
	sd.Add("db", func(context.Context) error { return db.Close() })

	// 3. Health surface for Kubernetes probes.
	reg := lifecycle.NewRegistry()
	reg.RegisterLiveness("self", lifecycle.ProbeFunc(func(context.Context) error { return nil }))
	reg.RegisterReadiness("db", lifecycle.ProbeFunc(db.PingContext))
	srv.Handler = reg.Handler() // serves /healthz and /readyz
	served := make(chan error, 1)
	go func() { served <- srv.ListenAndServe() }()

	// 4. Background work loop, with backoff on error.
	looped := make(chan error, 1)
	go func() {
		looped <- lifecycle.RunLoop(ctx, 30*time.Second, reconcile,
			lifecycle.WithLoopLogger(slog.Default()),
			lifecycle.WithBackoff(5*time.Minute),
			lifecycle.WithImmediateTick(),
		)
	}()

	<-ctx.Done() // a signal arrived
	if err := sd.Run(context.Background(), 30*time.Second); err != nil {
		t.Error(err)
	}
	if err := <-looped; err != nil {
		t.Error(err)
	}
	<-served
}
