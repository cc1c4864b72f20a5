package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Tests of careless and hostile parts of a process.

// typed is an error type. Its nil pointer makes an error that is not nil, and
// whose Error panics.
type typed struct{ text string }

func (e *typed) Error() string { return e.text }

func nilTyped() error { var e *typed; return e }

func TestErrorWhoseTextPanicsIsReportedAsAPanic(t *testing.T) {
	for name, shape := range map[string]func(*rig){
		"unit": func(r *rig) { r.Go("culprit", func(context.Context) error { return nilTyped() }) },
		"drainer": func(r *rig) {
			r.OnDrain("culprit", lifecycle.DrainFunc(func(context.Context) error { return nilTyped() }))
		},
		"hook":    func(r *rig) { r.OnShutdown("culprit", func(context.Context) error { return nilTyped() }) },
		"wrapped": func(r *rig) { r.Go("culprit", func(context.Context) error { return errors.Join(errBoom, nilTyped()) }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{})
				r.OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
				r.Go("u", untilCancelled)
				shape(r)
				r.signalAfter(time.Second, syscall.SIGTERM)
				err := r.Run(t.Context())
				wantErr(t, err, nil, "culprit", "cannot be read")
				var p *lifecycle.PanicError
				if !errors.As(err, &p) || p.Name != "culprit" {
					t.Errorf("got %#v", err)
				}
				if len(r.trail) != 1 {
					t.Error("the hook behind it did not run")
				}
			})
		})
	}
}

func TestFailureJoinedWithTheCancelIsKept(t *testing.T) {
	full := errors.New("flush: disk full")
	for name, give := range map[string]func(ctx context.Context) error{
		"joined":    func(ctx context.Context) error { return errors.Join(ctx.Err(), full) },
		"wrapped":   func(ctx context.Context) error { return fmt.Errorf("commit: %w (while %w)", full, ctx.Err()) },
		"the cause": func(ctx context.Context) error { return errors.Join(context.Cause(ctx), full) },
		"deep inside": func(ctx context.Context) error {
			return fmt.Errorf("a: %w", errors.Join(ctx.Err(), fmt.Errorf("b: %w", full)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{})
				r.Go("u", func(ctx context.Context) error { <-ctx.Done(); return give(ctx) })
				quit := make(chan struct{})
				r.Actor("a", func() error { <-quit; return errors.Join(http.ErrServerClosed, full) }, func(error) { close(quit) })
				r.signalAfter(time.Second, syscall.SIGTERM)
				err := r.Run(t.Context())
				wantErr(t, err, full, "unit u: ", "unit a: ")
			})
		})
	}
	t.Run("but the cancel alone, however wrapped, is clean", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Go("u", func(ctx context.Context) error {
				<-ctx.Done()
				return fmt.Errorf("loop: %w", errors.Join(ctx.Err(), context.Cause(ctx)))
			})
			r.signalAfter(time.Second, syscall.SIGTERM)
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
}

func TestReportIsReadWhileEverythingFails(t *testing.T) {
	for range 20 {
		r := newRig(t, lifecycle.Config{DrainWait: lifecycle.WaitNever})
		for i := range 50 {
			quit := make(chan struct{})
			r.Actor(fmt.Sprint("a", i), func() error { <-quit; return nil }, func(error) { close(quit); panic("interrupt") })
		}
		r.Go("reader", func(ctx context.Context) error {
			<-r.Reached(lifecycle.PhaseRunning)
			r.Stop(nil)
			for ctx.Err() == nil || r.Phase() != lifecycle.PhaseStopping {
				r.Report()
			}
			for range 200 {
				r.Report()
			}
			return nil
		})
		wantErr(t, r.Run(t.Context()), nil, "interrupt")
	}
}

func TestStubbornHooksLeaveTimeForTheOneBehindThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := newRig(t, lifecycle.Config{ShutdownGrace: time.Second})
		r.OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
		for i := range 4 {
			r.OnShutdown(fmt.Sprint("stubborn", i), func(context.Context) error { <-release; return nil })
		}
		r.Go("u", untilCancelled)
		r.signalAfter(time.Second, syscall.SIGTERM)
		wantErr(t, r.Run(t.Context()), nil, "stubborn0", "stubborn3", "abandoned")
		if len(r.trail) != 1 {
			t.Errorf("the database was not closed: %v", r.Report().Hooks)
		}
		close(release)
		synctest.Wait()
	})
}

func TestThousandsOfStuckUnitsKeepToTheBudget(t *testing.T) {
	release := make(chan struct{})
	const grace = 20 * time.Minute // shorter than a second for each, and long enough for a busy machine
	r := newRig(t, lifecycle.Config{
		DrainWait:     lifecycle.WaitNever,
		ShutdownGrace: grace,
		UnitSlice:     time.Second,
		Linger:        lifecycle.Off,
		AcceptQuiet:   lifecycle.Off,
		HookSlice:     grace - 2*time.Second,
	})
	var wg sync.WaitGroup
	for i := range 3000 {
		wg.Add(1)
		r.Go(fmt.Sprint("u", i), func(context.Context) error { defer wg.Done(); <-release; return nil })
	}
	r.OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
	r.Go("stop", func(context.Context) error { <-r.Reached(lifecycle.PhaseRunning); r.Stop(nil); return nil })
	err := r.Run(t.Context())
	wantErr(t, err, nil, "unit u0: ", "unit u2999: ", "abandoned")
	if len(r.trail) != 1 {
		t.Error("the hook did not run")
	}
	if out := r.Report().Units[7]; !strings.Contains(out.Stack, "goroutine:\n") {
		t.Errorf("a stack is missing: %+v", out)
	}
	close(release)
	wg.Wait()
}

// broken is a worker whose methods fail in the way that its mode selects.
type broken struct {
	worker.BaseWorker
	mode string
	stop chan struct{}
}

func (w *broken) Start(ctx context.Context) error {
	if err := w.Begin(ctx); err != nil {
		return err
	}
	w.MarkRunning()
	return nil
}

func (w *broken) Stop(context.Context) error { w.RequestStop(nil); w.Finish(nil); return nil }

func (w *broken) State() worker.State {
	if w.mode == "State" {
		panic("State")
	}
	return w.BaseWorker.State()
}

func (w *broken) Status() worker.Status {
	status := w.BaseWorker.Status()
	switch {
	case w.mode == "Status":
		panic("Status")
	case w.mode == "Status exits", w.mode == "Status of the end exits" && status.Terminal():
		runtime.Goexit()
	}
	return status
}

func (w *broken) Done() <-chan struct{} {
	if w.mode == "Done" {
		panic("Done")
	}
	return w.BaseWorker.Done()
}

func (w *broken) Name() string {
	if w.mode == "Name" {
		panic("Name")
	}
	return w.BaseWorker.Name()
}

func (w *broken) HoldRestarts() {
	if w.mode == "HoldRestarts" {
		<-w.stop
	}
	if w.mode == "HoldRestarts panics" {
		panic("HoldRestarts")
	}
}

func TestWorkerWhoseMethodsPanicOrHang(t *testing.T) {
	for mode, wants := range map[string][]string{
		"State":                   nil,
		"Status":                  {"unit w: ", "Status"},
		"Status exits":            {"unit w: Status: called runtime.Goexit"},
		"Status of the end exits": {"unit w: Status: called runtime.Goexit"},
		"Done":                    {"unit w: ", "Done"},
		"Name":                    {"Name: panic", "Name"},
		"HoldRestarts":            nil,
		"HoldRestarts panics":     nil,
	} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &broken{mode: mode, stop: make(chan struct{})}
				w.Init("broken", "w")
				r := newRig(t, lifecycle.Config{})
				r.Add(w).OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
				r.signalAfter(time.Second, syscall.SIGTERM)
				began := time.Now()
				err := r.Run(t.Context())
				if strings.HasPrefix(mode, "Status") && mode != "Status of the end exits" && time.Since(began) >= time.Second {
					t.Error("the App went on starting until the signal")
				}
				if wants == nil {
					if err != nil {
						t.Error(err)
					}
				} else {
					wantErr(t, err, nil, wants...)
				}
				if len(r.trail) != 1 {
					t.Error("the hook did not run")
				}
				close(w.stop)
			})
		})
	}
	t.Run("a nil pointer", func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		wantErr(t, r.Add((*worker.Func)(nil)).Run(t.Context()), nil, `unit "": Add: the worker is nil`)
	})
}

// touchy is a log handler that panics.
type touchy struct{ slog.Handler }

func (touchy) Enabled(context.Context, slog.Level) bool { panic("Enabled") }

func TestLogHandlerThatPanicsLosesItsLinesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{}, lifecycle.WithLogger(slog.New(touchy{slog.DiscardHandler})))
		r.Go("u", untilCancelled).OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
		r.signalAfter(time.Second, syscall.SIGTERM)
		if err := r.Run(t.Context()); err != nil || len(r.trail) != 1 {
			t.Errorf("%v, %v", err, r.trail)
		}
	})
}

func TestStartConditionThatIsNeverMetIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Go("cache", func(context.Context) error { return nil }, lifecycle.WithStartCondition())
		wantErr(t, r.Run(t.Context()), worker.ErrStartCondition, "unit cache")
		if !r.EnteredAt(lifecycle.PhaseRunning).IsZero() {
			t.Error("it was ready")
		}
	})
}

func TestCheckThatHangsDoesNotStretchTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := newRig(t, lifecycle.Config{})
		r.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { <-release; return nil }))
		r.Go("u", untilCancelled)
		r.signalAfter(10*time.Second, syscall.SIGTERM)
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if got := time.Since(r.began); got > 11*time.Second {
			t.Errorf("the stop took %v", got-10*time.Second)
		}
		if left := r.Report().Left; len(left) != 1 || !strings.Contains(left[0], "db") {
			t.Errorf("the report does not name the check that hangs: %q", left)
		}
		close(release)
		synctest.Wait()
	})
}

func TestRegisteringHooksAgainstRun(t *testing.T) {
	for range 50 {
		r := newRig(t, lifecycle.Config{})
		r.Stop(nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 5 {
				r.OnShutdown(fmt.Sprint(i), func(context.Context) error { return nil })
			}
		})
		_ = r.Run(t.Context()) // it names the hooks that came too late, up to its end
		wg.Wait()
		rep := r.Report()
		if len(rep.Hooks)+len(rep.Refused) != 5 {
			t.Fatalf("of 5 hooks %d ran and %d were refused", len(rep.Hooks), len(rep.Refused))
		}
	}
}

func TestStartErrorBesideAStopIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &failsWhenStopped{r: newRig(t, lifecycle.Config{})}
		w.Init("late", "late")
		w.r.Add(w)
		wantErr(t, w.r.Run(t.Context()), errBoom, "unit late")
	})
}

// failsWhenStopped is a worker whose Start fails, after the App was asked to stop.
type failsWhenStopped struct {
	worker.BaseWorker
	r *rig
}

func (w *failsWhenStopped) Start(context.Context) error {
	w.r.Stop(nil)
	return errBoom
}

func (w *failsWhenStopped) Stop(context.Context) error { w.RequestStop(nil); return nil }

// New or Run refuses a nil option, and names its index.
func TestNilOptionsAreRefused(t *testing.T) {
	_, err := lifecycle.New(lifecycle.Config{}, lifecycle.WithLogger(nil), nil)
	wantErr(t, err, nil, "New: option 2 is nil")
	r := newRig(t, lifecycle.Config{DrainWait: lifecycle.WaitNever})
	r.Go("u", untilCancelled, nil).Supervise("s", untilCancelled, lifecycle.DefaultBackoff(), nil)
	r.Serve("http", &http.Server{Addr: "127.0.0.1:0"}, nil)
	wantErr(t, r.Run(t.Context()), nil, `unit "u": option 1 is nil`, `unit "s": option 1 is nil`, `unit "http": option 1 is nil`)
}

func TestNilParentIsRefused(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	r.Go("u", func(context.Context) error { t.Error("a unit was started"); return nil })
	r.OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
	var none context.Context
	wantErr(t, r.Run(none), nil, "parent context is nil", "context.Background()")
	if len(r.trail) != 1 {
		t.Error("the hook did not run")
	}
	s := lifecycle.NewShutdown(nil)
	s.Add("db", func(ctx context.Context) error { return ctx.Err() })
	if err := s.Run(none, time.Minute); err != nil {
		t.Error(err)
	}
}

func TestNilPointerInAnInterfaceIsNil(t *testing.T) {
	_, err := lifecycle.New(lifecycle.Config{}, lifecycle.WithMetrics(http.HandlerFunc(nil)))
	wantErr(t, err, nil, "WithMetrics: the handler is nil")
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		var health *hungHealth // a nil pointer
		r.GRPC("grpc", &fakeGRPC{quit: make(chan struct{}), events: func(string) {}}, newPipeListener(), health)
		r.after(time.Second, func() { r.Stop(nil) })
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestCauseThatCannotBeReadIsAReasonToStop(t *testing.T) {
	for name, stop := range map[string]func(*rig, context.CancelCauseFunc){
		"of the parent": func(_ *rig, cancel context.CancelCauseFunc) { cancel(nilTyped()) },
		"of App.Stop":   func(r *rig, _ context.CancelCauseFunc) { r.Stop(nilTyped()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				r := newRig(t, lifecycle.Config{})
				r.Go("u", untilCancelled)
				r.OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
				r.after(time.Second, func() { stop(r, cancel) })
				_ = r.Run(parent)
				if got := r.Report().Reason; !strings.Contains(got, "cannot be read") || len(r.trail) != 1 {
					t.Errorf("reason %q, %v", got, r.trail)
				}
			})
		})
	}
}

func TestHealthClientThatIsCutIsInTheReport(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{})
	slow := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(asked); <-release })
	r := newRig(t, lifecycle.Config{HealthAddr: "127.0.0.1:0", DrainWait: lifecycle.WaitNever}, lifecycle.WithMetrics(slow))
	r.Go("u", untilCancelled)
	over := make(chan error, 1)
	go func() { over <- r.Run(context.Background()) }()
	<-r.Reached(lifecycle.PhaseRunning)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if resp, err := http.Get("http://" + r.HealthAddr().String() + "/metrics"); err == nil {
			resp.Body.Close()
			t.Error("the client got an answer")
		}
	}()
	<-asked
	r.Stop(nil)
	if err := <-over; err != nil {
		t.Errorf("a client of the health server that is cut off fails the stop: %v", err)
	}
	<-answered
	if left := r.Report().Left; len(left) != 1 || !strings.Contains(left[0], "close health server") {
		t.Errorf("the report says %q", left)
	}
	close(release)
}
