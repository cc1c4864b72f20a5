package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestGoUnits(t *testing.T) {
	t.Run("a nil return is fine, also the last one's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Go("one", func(context.Context) error { return nil })
			r.signalAfter(time.Hour, syscall.SIGTERM)
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if got := time.Since(r.began); got != time.Hour {
				t.Errorf("the App went on for %v", got)
			}
		})
	})
	for name, test := range map[string]struct {
		fn   func(context.Context) error
		is   error
		says string
	}{
		"an error":                 {func(context.Context) error { return errBoom }, errBoom, "unit u: boom"},
		"a panic":                  {func(context.Context) error { panic("oh no") }, nil, "unit u: panic: oh no"},
		"Goexit":                   {func(context.Context) error { runtime.Goexit(); return nil }, lifecycle.ErrGoexit, "unit u"},
		"another context's cancel": {func(context.Context) error { return context.Canceled }, context.Canceled, "unit u"},
		"wrapped other cancel":     {func(context.Context) error { return fmt.Errorf("fetch: %w", context.Canceled) }, context.Canceled, "unit u: fetch"},
	} {
		t.Run(name+" stops the App", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{})
				r.Go("u", test.fn).Go("other", untilCancelled)
				err := r.Run(t.Context())
				wantErr(t, err, test.is, test.says)
				if !strings.HasPrefix(err.Error(), "unit u: ") {
					t.Errorf("the primary cause is not first: %v", err)
				}
				if r.Phase() != lifecycle.PhaseFailed || lifecycle.ExitCode(err) != 1 {
					t.Errorf("it is %s, exit code %d", r.Phase(), lifecycle.ExitCode(err))
				}
			})
		})
	}
	t.Run("a panic carries the stack", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Go("u", func(context.Context) error { panic(errBoom) })
			err := r.Run(t.Context())
			var p *lifecycle.PanicError
			if !errors.As(err, &p) || p.Name != "u" || !errors.Is(err, errBoom) || !strings.Contains(string(p.Stack), "TestGoUnits") {
				t.Errorf("got %#v", err)
			}
			if got := r.Report().Units[0].Result; got != lifecycle.ResultPanicked {
				t.Errorf("the report says %s", got)
			}
		})
	})
	t.Run("a unit that returns its own cancel is clean, in every form", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Go("err", untilCancelled).
				Go("cause", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }).
				Go("wrapped", func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("loop: %w", ctx.Err()) }).
				Go("nil", func(ctx context.Context) error { <-ctx.Done(); return nil })
			r.signalAfter(time.Second, syscall.SIGTERM)
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("what fails in the teardown is joined behind the cause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			late := errors.New("late")
			r := newRig(t, lifecycle.Config{})
			r.Go("late", func(ctx context.Context) error { <-ctx.Done(); return late }).
				Go("bad", func(context.Context) error {
					<-r.Reached(lifecycle.PhaseRunning) // before, there is nothing to drain
					return errBoom
				}).
				OnDrain("d", lifecycle.DrainFunc(func(context.Context) error { return errors.New("drain") })).
				OnShutdown("h", func(context.Context) error { panic("hook") })
			err := r.Run(t.Context())
			if got, want := err.Error(), "unit bad: boom\nunit late: late\ndrainer d: drain\nshutdown hook h: panic: hook"; got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	})
}

func TestActors(t *testing.T) {
	closes := func() (execute func() error, interrupt func(error), calls *atomic.Int32) {
		quit, calls := make(chan struct{}), new(atomic.Int32)
		return func() error { <-quit; return nil }, func(error) {
			if calls.Add(1) == 1 {
				close(quit)
			}
		}, calls
	}
	t.Run("any return ends the App, and each is interrupted once", func(t *testing.T) {
		for _, result := range []error{nil, errBoom} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{DrainInterval: 3 * time.Second, DrainWait: lifecycle.WaitAlways})
				execute, interrupt, calls := closes()
				own := new(atomic.Int32)
				r.Actor("other", execute, interrupt).
					Actor("first", func() error { time.Sleep(time.Second); return result }, func(cause error) {
						own.Add(1)
						if !errors.Is(cause, result) {
							t.Errorf("interrupt gets %v", cause)
						}
						if got := time.Since(r.began); got != 4*time.Second {
							t.Errorf("interrupted at %v, want after the drain", got)
						}
					})
				err := r.Run(t.Context())
				if !errors.Is(err, result) || (err == nil) != (result == nil) {
					t.Errorf("Run returned %v, want %v", err, result)
				}
				if calls.Load() != 1 || own.Load() != 1 {
					t.Errorf("interrupts: %d, %d, want 1 each, also for the one that had returned", calls.Load(), own.Load())
				}
			})
		}
	})
	t.Run("an error that says closed is clean after the interrupt", func(t *testing.T) {
		for _, closed := range []error{http.ErrServerClosed, net.ErrClosed, fmt.Errorf("accept: %w", net.ErrClosed)} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{})
				quit := make(chan struct{})
				r.Actor("a", func() error { <-quit; return closed }, func(error) { close(quit) })
				r.signalAfter(time.Second, syscall.SIGTERM)
				if err := r.Run(t.Context()); err != nil {
					t.Errorf("%v: %v", closed, err)
				}
			})
		}
	})
	t.Run("an error that says closed is a failure before the interrupt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Actor("a", func() error { return http.ErrServerClosed }, func(error) {})
			wantErr(t, r.Run(t.Context()), http.ErrServerClosed)
		})
	})
	t.Run("a cause that the actor returns is reported once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			causes := make(chan error, 1)
			r.Actor("a", func() error { return <-causes }, func(err error) { causes <- err }).
				Go("bad", func(context.Context) error { return errBoom })
			if err := r.Run(t.Context()); err == nil || err.Error() != "unit bad: boom" {
				t.Errorf("got %v", err)
			}
		})
	})
	t.Run("a panic of interrupt is caught", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			quit := make(chan struct{})
			r.Actor("a", func() error { <-quit; return nil }, func(error) { close(quit); panic("interrupt") })
			r.signalAfter(time.Second, syscall.SIGTERM)
			wantErr(t, r.Run(t.Context()), nil, "unit a", "interrupt", "panic")
		})
	})
	t.Run("it is not interrupted when it never ran", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Stop(nil)
			r.Actor("a", func() error { return nil }, func(error) { t.Error("interrupted") })
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
}

func TestSupervisedUnits(t *testing.T) {
	quick := lifecycle.Backoff{Min: time.Second, Factor: 1, Jitter: worker.NoJitter}
	t.Run("restarts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			runs := 0
			r.Supervise("s", func(context.Context) error {
				runs++
				r.mark("run %d", runs)
				if runs < 3 {
					return errBoom
				}
				return nil // done: the App goes on
			}, quick)
			r.signalAfter(time.Minute, syscall.SIGTERM)
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			r.wantTrail("0s run 1", "1s run 2", "2s run 3")
		})
	})
	t.Run("ErrDoNotRestart ends it cleanly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Supervise("s", func(context.Context) error { return fmt.Errorf("empty: %w", lifecycle.ErrDoNotRestart) }, quick)
			r.signalAfter(time.Minute, syscall.SIGTERM)
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("ErrTerminate ends the App with that cause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Supervise("s", func(context.Context) error { return fmt.Errorf("%w: %w", lifecycle.ErrTerminate, errBoom) }, quick)
			err := r.Run(t.Context())
			wantErr(t, err, lifecycle.ErrTerminate, "unit s")
			wantErr(t, err, errBoom)
		})
	})
	t.Run("a spent budget escalates", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := quick
			b.MaxRestarts = 3
			r := newRig(t, lifecycle.Config{})
			r.Supervise("s", func(context.Context) error { return errBoom }, b)
			err := r.Run(t.Context())
			wantErr(t, err, lifecycle.ErrRestartBudget, "unit s", "3 restarts")
			wantErr(t, err, errBoom)
			if got := time.Since(r.began); got != 3*time.Second {
				t.Errorf("it took %v", got)
			}
		})
	})
	t.Run("nothing restarts in the drain", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{DrainInterval: 10 * time.Second, DrainWait: lifecycle.WaitAlways})
			r.Supervise("fails in it", func(ctx context.Context) error {
				r.mark("runs")
				<-lifecycle.Draining(ctx)
				time.Sleep(time.Second)
				return errBoom
			}, quick).Supervise("waits", func(context.Context) error {
				time.Sleep(2500 * time.Millisecond)
				r.mark("fails")
				return errors.New("before")
			}, quick)
			r.signalAfter(3*time.Second, syscall.SIGTERM)
			err := r.Run(t.Context())
			wantErr(t, err, errBoom, "unit fails in it")
			if strings.Contains(err.Error(), "before") {
				t.Errorf("a failure that was about to be retried is reported as an error: %v", err)
			}
			r.wantTrail("0s runs", "2.5s fails")
		})
	})
}

func TestUnitThatNeverReturnsIsAbandonedByName(t *testing.T) {
	for _, kind := range []string{"Go", "Actor", "Supervise", "Add"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer func() { close(release); synctest.Wait() }()
				r := newRig(t, lifecycle.Config{ShutdownGrace: 20 * time.Second, UnitSlice: 4 * time.Second, HookSlice: 4 * time.Second})
				stuck := func(context.Context) error { hangsHere(release); return nil }
				switch kind {
				case "Go":
					r.Go("stuck", stuck)
				case "Actor":
					r.Actor("stuck", func() error { return stuck(nil) }, func(error) {})
				case "Supervise":
					r.Supervise("stuck", stuck, lifecycle.DefaultBackoff())
				case "Add":
					r.Add(worker.NewFunc("stuck", stuck))
				}
				r.OnShutdown("h", func(context.Context) error { r.mark("hook"); return nil })
				r.signalAfter(time.Second, syscall.SIGTERM)
				err := r.Run(t.Context())
				wantErr(t, err, nil, "unit stuck", "abandoned", "hangsHere")
				if got := lifecycle.ExitCode(err); got != lifecycle.ExitStuck {
					t.Errorf("exit code %d", got)
				}
				out := r.Report().Units[0]
				if out.Result != lifecycle.ResultAbandoned || !strings.Contains(out.Stack, "hangsHere") {
					t.Errorf("the report says %+v", out)
				}
				// After 1 s, 20 s of grace, 4 s of which are the hooks'.
				if len(r.trail) != 1 || !strings.HasPrefix(r.trail[0], "17") {
					t.Errorf("the hook ran at %v", r.trail)
				}
			})
		})
	}
}

func hangsHere(release <-chan struct{}) { <-release }

// rude is a worker that keeps no part of its contract about stopping.
type rude struct {
	worker.BaseWorker
	release chan struct{}
}

func (w *rude) Start(ctx context.Context) error {
	_ = w.Begin(context.WithoutCancel(ctx))
	w.MarkRunning()
	return nil
}

func (w *rude) Stop(context.Context) error { hangsHere(w.release); return nil }

func TestWorkerWhoseStopHangsIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &rude{release: make(chan struct{})}
		w.Init("rude", "rude")
		defer func() { close(w.release); synctest.Wait() }()
		r := newRig(t, lifecycle.Config{})
		r.Add(w)
		r.signalAfter(time.Second, syscall.SIGTERM)
		wantErr(t, r.Run(t.Context()), nil, "unit rude", "abandoned", "hangsHere")
	})
}

func TestStartThatHangsDoesNotKeepAStopOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &slowStart{release: make(chan struct{})}
		w.Init("slow", "slow")
		defer func() { close(w.release); synctest.Wait() }()
		r := newRig(t, lifecycle.Config{})
		r.Add(w)
		r.signalAfter(time.Second, syscall.SIGTERM)
		err := r.Run(t.Context())
		if err != nil {
			t.Errorf("it was stopped before it began: %v", err)
		}
		if got := time.Since(r.began); got > 10*time.Second {
			t.Errorf("it took %v", got)
		}
	})
}

type slowStart struct {
	worker.BaseWorker
	release chan struct{}
}

func (w *slowStart) Start(context.Context) error { <-w.release; return nil }
func (w *slowStart) Stop(context.Context) error  { w.RequestStop(nil); return nil }

func TestAddedWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		var stopped []string
		add := func(name string) {
			r.Add(worker.NewFunc(name, func(ctx context.Context) error {
				r.mark("%s starts", name)
				<-ctx.Done()
				return ctx.Err()
			}))
		}
		add("a")
		r.Add(worker.NewFunc("done", func(context.Context) error { return nil }))
		events := r.Events().Subscribe(64)
		r.signalAfter(time.Second, syscall.SIGTERM)
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		events.Close()
		for e := range events.All(t.Context()) {
			if e.Kind == worker.KindWorker && e.Name == "a" {
				stopped = append(stopped, e.To)
			}
		}
		if got := strings.Join(stopped, " "); got != "Starting Running Stopping Stopped" {
			t.Errorf("the App's events say %s", got)
		}
	})
}

// A name appears once in a line of the log and in the report, however the part
// failed. An error with a long text does not fill the log.
func TestNamesAndLongErrorsInLogAndReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		long := errors.New(strings.Repeat("x", 1<<20))
		r.Go("poller", func(ctx context.Context) error { time.Sleep(time.Second); return errBoom })
		r.Go("cache", func(ctx context.Context) error { <-ctx.Done(); panic("oh no") })
		r.OnDrain("peer", lifecycle.DrainFunc(func(context.Context) error { return long }))
		r.OnShutdown("db", func(context.Context) error { return long })
		err := r.Run(t.Context())
		if n := len(err.Error()); n > 40<<10 {
			t.Errorf("the error of Run has %d bytes", n)
		}
		wantErr(t, err, long, "unit cache")
		wantErr(t, err, errBoom, "unit poller: boom", "unit cache: panic: oh no")
		log := r.log.String()
		for _, want := range []string{
			`msg="unit failed" unit=poller status=Failed error=boom`,
			`msg="unit failed" unit=cache status=Failed error="panic: oh no" stack="goroutine`,
			"unit_test.go:", // in that stack
			"poller failed in 1s (boom), cache panicked in 1s (panic: oh no)",
			"(1048576 bytes)",
		} {
			if !strings.Contains(log, want) {
				t.Errorf("the log does not say %q", want)
			}
		}
		if len(log) > 128<<10 {
			t.Errorf("the log has %d bytes", len(log))
		}
		rep := r.Report()
		if a, b := rep.Units[0].Error, rep.Units[1].Error; a != "boom" || b != "panic: oh no" {
			t.Errorf("units failed with %q and %q", a, b)
		}
		if n := len(rep.Hooks[0].Error); n > 17<<10 {
			t.Errorf("the report has %d bytes of an error", n)
		}
	})
}
