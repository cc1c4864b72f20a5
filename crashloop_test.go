package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"github.com/pleme-io/lifecycle-go/worker"
)

// linesWith returns the lines of a log that contain text.
func linesWith(log, text string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// A unit that fails again and again is in the log, and its state says so.
func TestEachRestartIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		fails := 0
		r.Supervise("poller", func(ctx context.Context) error {
			if fails++; fails > 4 {
				return untilCancelled(ctx)
			}
			return fmt.Errorf("boom %d", fails)
		}, lifecycle.Backoff{Min: time.Second, Max: 4 * time.Second, Jitter: worker.NoJitter})
		r.after(2*time.Second, func() { // after 1 s it has failed for the second time
			u := r.Status().Units[0]
			if u.Reason != "backoff after: boom 2" || !u.Due.Equal(r.began.Add(3*time.Second)) || u.Restarts != 1 || u.Exit == nil || u.Exit.Error != "boom 2" {
				t.Errorf("while it waits its state is %+v", u)
			}
		})
		r.after(time.Minute, func() {
			u := r.Status().Units[0]
			if u.Reason != "" || !u.Due.IsZero() || u.Restarts != 4 || u.Exit == nil || u.Exit.Error != "boom 4" || u.Exit.Status != worker.StatusFailed {
				t.Errorf("when it runs again its state is %+v", u)
			}
			r.Stop(nil)
		})
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		got := linesWith(r.log.String(), "level=WARN")
		for i, wait := range []string{"1s", "2s", "4s", "4s"} {
			want := fmt.Sprintf(`msg="unit failed, and is restarted" unit=poller error="boom %d" restarts=%d wait=%s`, i+1, i+1, wait)
			if i >= len(got) || !strings.HasSuffix(got[i], want) {
				t.Errorf("restart %d is not logged as %s:\n%s", i+1, want, strings.Join(got, "\n"))
			}
		}
		if len(got) != 4 {
			t.Errorf("%d lines for 4 restarts", len(got))
		}
	})
}

// The same holds for the children of a tree, however deep.
func TestEachRestartInATreeIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		backoff := lifecycle.Backoff{Min: time.Second, Jitter: worker.NoJitter}
		failing := func() func(context.Context) error {
			fails := 0
			return func(ctx context.Context) error {
				if fails++; fails > 2 {
					return untilCancelled(ctx)
				}
				return errBoom
			}
		}
		leaf, function := failing(), failing()
		inner := worker.Spec{Name: "inner", New: func(name string) (worker.Worker, error) {
			return worker.NewSupervisor(name, worker.SupervisorConfig{Backoff: backoff, Children: []worker.Spec{
				worker.FuncSpec("leaf", leaf),
				{Name: "function", New: func(name string) (worker.Worker, error) {
					return worker.NewRestarter(name, function, backoff), nil
				}},
			}}), nil
		}}
		r.Add(worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{inner}}))
		r.after(time.Minute, func() { r.Stop(nil) })
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		for _, want := range []string{
			`msg="child failed, and is restarted" supervisor=inner child=leaf error=boom restarts=1 wait=1s`,
			`msg="child failed, and is restarted" supervisor=inner child=leaf error=boom restarts=2 wait=2s`,
			`msg="unit failed, and is restarted" unit=function error=boom restarts=1 wait=1s`,
			`msg="unit failed, and is restarted" unit=function error=boom restarts=2 wait=2s`,
		} {
			if got := linesWith(r.log.String(), want); len(got) != 1 {
				t.Errorf("%d lines %s in\n%s", len(got), want, r.log)
			}
		}
	})
}

// The log of a unit that fails all the time has a line a second.
func TestRestartsAreLoggedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Supervise("poller", func(context.Context) error { return errBoom },
			lifecycle.Backoff{Min: 10 * time.Millisecond, Max: 10 * time.Millisecond, Jitter: worker.NoJitter, MaxRestarts: worker.NoLimit})
		r.after(10*time.Second, func() { r.Stop(nil) })
		_ = r.Run(t.Context())
		if got := linesWith(r.log.String(), "is restarted"); len(got) < 9 || len(got) > 11 || !strings.Contains(got[1], "restarts=101 ") {
			t.Errorf("%d lines for a thousand restarts in ten seconds:\n%s", len(got), strings.Join(got, "\n"))
		}
	})
}

// A unit that asks not to be restarted and has failed ends alone. Its error is told.
func TestErrDoNotRestartDropsNoError(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		told bool
	}{
		{"alone", lifecycle.ErrDoNotRestart, false},
		{"with words", fmt.Errorf("all done: %w", lifecycle.ErrDoNotRestart), false},
		{"joined with an error", errors.Join(lifecycle.ErrDoNotRestart, errBoom), true},
		{"wrapped with an error", fmt.Errorf("%w: %w", errBoom, lifecycle.ErrDoNotRestart), true},
	} {
		for _, opts := range [][]lifecycle.UnitOption{nil, {lifecycle.WithStartCondition()}} {
			t.Run(fmt.Sprint(test.name, len(opts)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, lifecycle.Config{})
					r.Supervise("import", func(context.Context) error { return test.err }, lifecycle.DefaultBackoff(), opts...).
						Go("other", untilCancelled)
					r.signalAfter(time.Minute, syscall.SIGTERM)
					err := r.Run(t.Context())
					if time.Since(r.began) < time.Minute || r.EnteredAt(lifecycle.PhaseRunning).IsZero() {
						t.Error("the App did not go on")
					}
					if told := errors.Is(err, errBoom); told != test.told || !told && err != nil {
						t.Errorf("Run returned %v", err)
					}
					if told := strings.Contains(r.log.String(), `level=ERROR msg="unit failed" unit=import`); told != test.told {
						t.Errorf("the log:\n%s", r.log)
					}
					if out := r.Report().Units[0]; (out.Result == lifecycle.ResultFailed) != test.told {
						t.Errorf("the report: %v", out)
					}
				})
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Supervise("import", func(context.Context) error { return errors.Join(lifecycle.ErrDoNotRestart, lifecycle.ErrTerminate) }, lifecycle.DefaultBackoff())
		wantErr(t, r.Run(t.Context()), lifecycle.ErrTerminate)
	})
}

func TestEmptyAppSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.after(time.Second, func() { r.Stop(nil) })
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if got := linesWith(r.log.String(), "level=WARN"); len(got) != 1 || !strings.Contains(got[0], "no unit is registered: the app waits for a signal, the end of the parent context or App.Stop") {
			t.Errorf("the log:\n%s", r.log)
		}
	})
}

func TestTwoAppsOnOneHealthAddressNameTheOption(t *testing.T) {
	first := newRig(t, lifecycle.Config{HealthAddr: "127.0.0.1:0", DrainWait: lifecycle.WaitNever})
	first.Go("unit", untilCancelled)
	ended := make(chan error)
	go func() { ended <- first.Run(t.Context()) }()
	<-first.Reached(lifecycle.PhaseRunning)
	second := newRig(t, lifecycle.Config{HealthAddr: first.HealthAddr().String()})
	wantErr(t, second.Run(t.Context()), syscall.EADDRINUSE,
		`start: listen on health address`,
		`set HealthAddr (health_addr) to another address, or to "off" for none; each App of a process needs an address of its own`)
	first.Stop(nil)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// One failure is one line at error level, when it happens. The report repeats it, below
// that level.
func TestOneFailureIsToldOnceAtErrorLevel(t *testing.T) {
	boom := func(context.Context) error { return errBoom }
	for name, shape := range map[string]func(r *rig){
		"a unit":             func(r *rig) { r.Go("bad", boom) },
		"a job":              func(r *rig) { r.Job("bad", boom) },
		"an actor":           func(r *rig) { r.Actor("bad", func() error { return errBoom }, func(error) {}) },
		"a spent budget":     func(r *rig) { r.Supervise("bad", boom, lifecycle.Backoff{MaxRestarts: 1}) },
		"a Start":            func(r *rig) { r.Add(badStart{worker.NewFunc("bad", untilCancelled)}) },
		"a Stop":             func(r *rig) { r.Add(badStop{worker.NewFunc("bad", untilCancelled)}) },
		"an unfinished Stop": func(r *rig) { r.Add(noStop{worker.NewFunc("bad", untilCancelled)}) },
		"a drainer":          func(r *rig) { r.OnDrain("bad", lifecycle.DrainFunc(boom)) },
		"a hook":             func(r *rig) { r.OnShutdown("bad", boom) },
		"a start too late":   func(r *rig) { r.Go("bad", untilCancelled, lifecycle.WithStartCondition()) },
		"a registration":     func(r *rig) { r.Go("boom", nil) },
		"Stop":               func(r *rig) { r.after(time.Second, func() { r.Stop(errBoom) }) },
		"Stop, twice": func(r *rig) {
			r.OnShutdown("slow", func(context.Context) error { time.Sleep(time.Second); return nil })
			r.after(time.Second, func() { r.Stop(nil); r.Stop(errBoom) }) // the second is joined
		},
		"a listener": func(r *rig) {
			r.Serve("boom", &http.Server{}, lifecycle.WithListener(brokenListener{lifecycletest.NewListener()}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{})
				r.Go("unit", untilCancelled)
				r.after(24*time.Hour, func() { r.Stop(nil) })
				shape(r)
				err := r.Run(t.Context())
				if took := time.Since(r.began); name == "a Start" && took != 0 {
					t.Errorf("a Start that failed took %v to stop", took)
				}
				time.Sleep(48 * time.Hour) // until noStop ends
				if got := linesWith(r.log.String(), "level=ERROR"); err == nil || len(got) != 1 {
					t.Errorf("Run returned %v, and the log has\n%s", err, strings.Join(got, "\n"))
				}
			})
		})
	}
}

// TestCauseThatNoErrorHasIsNotLogged has a second cause arrive as Run returns: it is in
// both, or in neither.
func TestCauseThatNoErrorHasIsNotLogged(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.after(time.Second, func() { r.Stop(nil); r.Stop(errBoom) })
			err := r.Run(t.Context())
			synctest.Wait()
			if logged := linesWith(r.log.String(), "level=ERROR"); errors.Is(err, errBoom) != (len(logged) == 1) {
				t.Fatalf("Run returned %v, and the log has\n%s", err, strings.Join(logged, "\n"))
			}
		})
	}
}

type badStart struct{ *worker.Func }

func (badStart) Start(context.Context) error { return errBoom }

type badStop struct{ *worker.Func }

func (w badStop) Stop(ctx context.Context) error { return errors.Join(w.Func.Stop(ctx), errBoom) }

// noStop is a worker whose Stop returns and stops nothing.
type noStop struct{ *worker.Func }

func (w noStop) Start(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(48*time.Hour, cancel)
	return w.Func.Start(ctx)
}
func (noStop) Stop(context.Context) error { return nil }

type brokenListener struct{ net.Listener }

func (brokenListener) Accept() (net.Conn, error) { return nil, errBoom }
