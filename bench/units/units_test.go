package units

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oklog/run"
	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/thejerf/suture/v4"
	"go.uber.org/fx"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// work counts units that have begun and ended.
type work struct {
	n            int64
	begun, ended atomic.Int64
	all          chan struct{} // closed when all have begun
}

func newWork(n int) *work { return &work{n: int64(n), all: make(chan struct{})} }

// run is one unit: it lives until its context ends.
func (w *work) run(ctx context.Context) {
	if w.begun.Add(1) == w.n {
		close(w.all)
	}
	<-ctx.Done()
	w.ended.Add(1)
}

// group starts the work's units, waits until all have begun, takes them down
// and returns when all have ended.
type group struct {
	peer string
	run  func(w *work) error
}

// groups are the compared groups. Each is used as its documentation shows, silent,
// without a server, and without the process's signals, which none of the peers touches
// here. "signals" is the App with them: taking a signal from the runtime and giving it
// back switches threads, and costs more than the rest. Three run the units without an
// App: "worker" restarts each, "Func" runs each once, and "Supervisor" is one supervisor
// of all, as suture runs its services.
var groups = []group{
	{"errgroup", errGroup},
	{"lifecycle-go", func(w *work) error { return app(w, goes, quiet) }},
	{"lifecycle-go.Supervise", func(w *work) error { return app(w, supervised, quiet) }},
	{"lifecycle-go.signals", func(w *work) error { return app(w, goes) }},
	{"lifecycle-go.worker", workers},
	{"lifecycle-go.Func", funcs},
	{"lifecycle-go.Supervisor", supervisor},
	{"oklog.run", oklogRun},
	{"suture", sutures},
	{"fx", fxApp},
}

// names are made before anything is measured: services have constants.
var names = func() []string {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("unit-%d", i)
	}
	return names
}()

func errGroup(w *work) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for range w.n {
		g.Go(func() error {
			w.run(ctx)
			return nil
		})
	}
	<-w.all
	cancel()
	return g.Wait()
}

func oklogRun(w *work) error {
	var g run.Group
	for range w.n {
		ctx, cancel := context.WithCancel(context.Background())
		g.Add(func() error {
			w.run(ctx)
			return nil
		}, func(error) { cancel() })
	}
	stop := make(chan struct{})
	var once sync.Once
	g.Add(func() error { <-stop; return nil }, func(error) { once.Do(func() { close(stop) }) })
	result := make(chan error, 1)
	go func() { result <- g.Run() }()
	<-w.all
	once.Do(func() { close(stop) })
	return <-result
}

type service struct{ w *work }

func (s service) Serve(ctx context.Context) error {
	s.w.run(ctx)
	return nil
}

func sutures(w *work) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := suture.New("bench", suture.Spec{EventHook: func(suture.Event) {}})
	for range w.n {
		s.Add(service{w})
	}
	result := s.ServeBackground(ctx)
	<-w.all
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func fxApp(w *work) error {
	a := fx.New(fx.NopLogger, fx.Invoke(func(lc fx.Lifecycle) {
		for range w.n {
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			lc.Append(fx.Hook{
				OnStart: func(context.Context) error {
					go func() {
						defer close(ended)
						w.run(ctx)
					}()
					return nil
				},
				OnStop: func(ctx context.Context) error {
					cancel()
					select {
					case <-ended:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				},
			})
		}
	}))
	if err := a.Start(context.Background()); err != nil {
		return err
	}
	<-w.all
	return a.Stop(context.Background())
}

func goes(a *lifecycle.App, name string, fn func(context.Context) error) { a.Go(name, fn) }

func supervised(a *lifecycle.App, name string, fn func(context.Context) error) {
	a.Supervise(name, fn, lifecycle.DefaultBackoff())
}

// workers starts and stops the workers that Supervise makes, by hand.
func workers(w *work) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	all := make([]*worker.Restarter, w.n)
	for i := range all {
		all[i] = worker.NewRestarter(names[i], func(ctx context.Context) error {
			w.run(ctx)
			return nil
		}, lifecycle.DefaultBackoff())
		if err := all[i].Start(ctx); err != nil {
			return err
		}
	}
	<-w.all
	cancel()
	for _, r := range all {
		<-r.Done()
		if err := r.Err(); err != nil {
			return err
		}
	}
	return nil
}

// funcs starts and stops functions that are not restarted, by hand.
func funcs(w *work) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	all := make([]*worker.Func, w.n)
	for i := range all {
		all[i] = worker.NewFunc(names[i], func(ctx context.Context) error {
			w.run(ctx)
			return nil
		})
		if err := all[i].Start(ctx); err != nil {
			return err
		}
	}
	<-w.all
	cancel()
	for _, f := range all {
		<-f.Done()
		if err := f.Err(); err != nil {
			return err
		}
	}
	return nil
}

func supervisor(w *work) error {
	specs := make([]worker.Spec, w.n)
	for i := range specs {
		specs[i] = worker.FuncSpec(names[i], func(ctx context.Context) error {
			w.run(ctx)
			return nil
		})
	}
	s := worker.NewSupervisor("bench", worker.SupervisorConfig{Children: specs})
	if err := s.Start(context.Background()); err != nil {
		return err
	}
	<-w.all
	return s.Stop(context.Background())
}

var (
	silent = slog.New(slog.DiscardHandler)
	quiet  = lifecycle.WithSignals(make(chan os.Signal))
)

// app has no health server, as the peers have none, and so nothing to drain
// for.
func app(w *work, add func(*lifecycle.App, string, func(context.Context) error), opts ...lifecycle.Option) error {
	a, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff, TerminationLog: "off"},
		append(opts, lifecycle.WithLogger(silent))...)
	if err != nil {
		return err
	}
	for i := range w.n {
		add(a, names[i], func(ctx context.Context) error {
			w.run(ctx)
			return nil
		})
	}
	result := make(chan error, 1)
	go func() { result <- a.Run(context.Background()) }()
	select {
	case <-w.all:
	case err := <-result:
		return errors.Join(errors.New("ended before it was asked to"), err)
	}
	<-a.Reached(lifecycle.PhaseRunning)
	a.Stop(nil)
	return <-result
}

// lives runs one group through one life and says what did not happen.
func lives(g group, n int) error {
	w := newWork(n)
	if err := g.run(w); err != nil {
		return err
	}
	if b, e := w.begun.Load(), w.ended.Load(); b != w.n || e != w.n {
		return fmt.Errorf("%d units, %d have begun and %d have ended", n, b, e)
	}
	return nil
}

func TestGroupsDoTheWork(t *testing.T) {
	for _, g := range groups {
		t.Run(g.peer, func(t *testing.T) {
			if err := lives(g, 3); err != nil {
				t.Error(err)
			}
		})
	}
}

// BenchmarkSpawn makes a group, starts its units, waits until all run, takes
// them down and waits until all have returned.
func BenchmarkSpawn(b *testing.B) {
	for _, n := range []int{1, 10, 1000} {
		for _, g := range groups {
			b.Run(fmt.Sprintf("units=%d/peer=%s", n, g.peer), func(b *testing.B) {
				b.ReportAllocs()
				report := cpu.Measure(b)
				for b.Loop() {
					if err := lives(g, n); err != nil {
						b.Fatal(err)
					}
				}
				report()
			})
		}
	}
}
