package lifecycle_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// The whole stop: which functions are called, when, in which order and with which
// contexts.
func TestChoreography(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainInterval: 5 * time.Second, ShutdownGrace: 20 * time.Second, DrainWait: lifecycle.WaitAlways})
		type key struct{}
		fresh := func(ctx context.Context, who string) {
			if ctx.Value(key{}) != "kept" {
				t.Errorf("%s: the parent's values are lost", who)
			}
			if ctx.Err() != nil {
				t.Errorf("%s begins with a context that has ended", who)
			}
		}
		left := func(ctx context.Context) time.Duration {
			deadline, _ := ctx.Deadline()
			return time.Until(deadline)
		}
		interrupted := make(chan struct{})
		r.Go("unit", func(ctx context.Context) error {
			fresh(ctx, "unit")
			r.mark("unit starts")
			<-lifecycle.Draining(ctx)
			time.Sleep(time.Millisecond) // after everything else that happens at T0, so that the trail has one order
			r.mark("unit sees draining")
			<-ctx.Done()
			var sig *lifecycle.SignalError
			if !errors.As(context.Cause(ctx), &sig) || sig.Signal != syscall.SIGTERM {
				t.Errorf("the unit's cause is %v", context.Cause(ctx))
			}
			time.Sleep(2 * time.Second)
			r.mark("unit returns")
			return ctx.Err()
		}).Actor("actor", func() error { <-interrupted; return errors.New("closed") }, func(cause error) {
			var sig *lifecycle.SignalError
			if !errors.As(cause, &sig) {
				t.Errorf("interrupt gets %v", cause)
			}
			time.Sleep(time.Second)
			r.mark("actor interrupted")
			close(interrupted)
		}).OnDrain("quick", lifecycle.DrainFunc(func(ctx context.Context) error {
			fresh(ctx, "drainer")
			r.mark("drain with %v", left(ctx))
			return nil
		})).OnDrain("slow", lifecycle.DrainFunc(func(ctx context.Context) error {
			<-ctx.Done()
			r.mark("window over")
			return nil
		})).OnShutdown("first", func(ctx context.Context) error {
			fresh(ctx, "hook")
			r.mark("hook first with %v", left(ctx))
			return nil
		}).OnShutdown("second", func(ctx context.Context) error {
			r.mark("hook second with %v", left(ctx))
			time.Sleep(3 * time.Second)
			return nil
		})
		r.signalAfter(time.Second, syscall.SIGTERM)
		err := r.Run(context.WithValue(t.Context(), key{}, "kept"))
		r.mark("Run returns")
		wantErr(t, err, nil, "unit actor: closed")
		r.wantTrail(
			"0s unit starts",
			"1s drain with 5s",
			"1.001s unit sees draining",
			"6s window over",
			"7s actor interrupted",
			"8s unit returns",
			"8s hook second with 17s", // of 20 s, 2 s have passed and 1 s belongs to the hook first
			"11s hook first with 15s",
			"11s Run returns",
		)
	})
}

func TestPhasesAreAwaitableAndTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainInterval: 5 * time.Second, DrainWait: lifecycle.WaitAlways})
		events := r.Events().Subscribe(64)
		if r.Phase() != lifecycle.PhaseCreated {
			t.Errorf("before Run the phase is %s", r.Phase())
		}
		r.Go("late", func(ctx context.Context) error {
			time.Sleep(2 * time.Second)
			lifecycle.MarkStarted(ctx)
			<-ctx.Done()
			time.Sleep(time.Second)
			return nil
		}, lifecycle.WithStartCondition())
		r.signalAfter(10*time.Second, os.Interrupt)
		done := make(chan error)
		go func() { done <- r.Run(t.Context()) }()
		for _, want := range []struct {
			phase lifecycle.Phase
			at    time.Duration
		}{
			{lifecycle.PhaseStarting, 0}, {lifecycle.PhaseRunning, 2 * time.Second}, {lifecycle.PhaseDraining, 10 * time.Second},
			{lifecycle.PhaseStopping, 15 * time.Second}, {lifecycle.PhaseStopped, 16 * time.Second},
		} {
			<-r.Reached(want.phase)
			if got := time.Since(r.began); got != want.at {
				t.Errorf("%s reached at %v, want %v", want.phase, got, want.at)
			}
			if got := r.EnteredAt(want.phase).Sub(r.began); got != want.at {
				t.Errorf("%s entered at %v, want %v", want.phase, got, want.at)
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if !r.EnteredAt(lifecycle.PhaseKilled).IsZero() {
			t.Error("a phase that the App never entered has a time")
		}
		events.Close()
		var path []string
		for e := range events.All(t.Context()) {
			if e.Kind == lifecycle.KindApp {
				path = append(path, e.To)
			}
		}
		if got := strings.Join(path, " "); got != "starting running draining stopping stopped" {
			t.Errorf("events say %s", got)
		}
	})
}

func TestPhaseTableIsSound(t *testing.T) {
	table := lifecycle.Phases()
	if err := table.Validate(); err != nil {
		t.Fatal(err)
	}
	table[lifecycle.PhaseStopped] = []lifecycle.Phase{lifecycle.PhaseRunning}
	if len(lifecycle.Phases()[lifecycle.PhaseStopped]) != 0 {
		t.Error("changing the copy changed the table")
	}
}

// Every reason to stop runs the same teardown. None cancels the units at once.
func TestEveryReasonRunsTheSameTeardown(t *testing.T) {
	for name, test := range map[string]struct {
		trigger func(r *rig, cancel context.CancelCauseFunc)
		cause   error
		err     error
	}{
		"signal":                {func(r *rig, _ context.CancelCauseFunc) { r.signals <- syscall.SIGTERM }, &lifecycle.SignalError{Signal: syscall.SIGTERM}, nil},
		"parent":                {func(_ *rig, cancel context.CancelCauseFunc) { cancel(nil) }, context.Canceled, nil},
		"parent with a cause":   {func(_ *rig, cancel context.CancelCauseFunc) { cancel(errBoom) }, errBoom, nil},
		"App.Stop":              {func(r *rig, _ context.CancelCauseFunc) { r.Stop(nil) }, lifecycle.ErrStopRequested, nil},
		"App.Stop with cause":   {func(r *rig, _ context.CancelCauseFunc) { r.Stop(errBoom) }, errBoom, errBoom},
		"a unit that fails":     {nil, errBoom, errBoom},
		"an actor that returns": {nil, lifecycle.ErrStopRequested, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{DrainInterval: 5 * time.Second, DrainWait: lifecycle.WaitAlways})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				var cause error
				r.Go("watcher", func(ctx context.Context) error {
					<-r.Draining()
					r.mark("draining")
					<-ctx.Done()
					cause = context.Cause(ctx)
					r.mark("cancelled")
					return nil
				}).OnDrain("d", lifecycle.DrainFunc(func(context.Context) error { r.mark("drainer"); return nil })).
					OnShutdown("h", func(context.Context) error { r.mark("hook"); return nil })
				switch name {
				case "a unit that fails":
					r.Go("bad", func(context.Context) error { time.Sleep(time.Second); return errBoom })
				case "an actor that returns":
					r.Actor("done", func() error { time.Sleep(time.Second); return nil }, func(error) {})
				default:
					r.after(time.Second, func() { test.trigger(r, cancel) })
				}
				r.Go("order", func(context.Context) error { return nil })
				err := r.Run(ctx)
				if !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
					t.Errorf("Run returned %v, want %v", err, test.err)
				}
				var want, got *lifecycle.SignalError
				if errors.As(test.cause, &want) {
					if !errors.As(cause, &got) || got.Signal != want.Signal {
						t.Errorf("the unit's cause is %v, want %v", cause, test.cause)
					}
				} else if !errors.Is(cause, test.cause) {
					t.Errorf("the unit's cause is %v, want %v", cause, test.cause)
				}
				r.mu.Lock()
				trail := strings.Join(r.trail, ", ")
				r.mu.Unlock()
				if trail != "1s draining, 1s drainer, 6s cancelled, 6s hook" && trail != "1s drainer, 1s draining, 6s cancelled, 6s hook" {
					t.Errorf("happened: %s", trail)
				}
			})
		})
	}
}

func TestDrainWithoutDrainersTakesTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainInterval: 7 * time.Second, DrainWait: lifecycle.WaitAlways})
		r.Go("unit", untilCancelled)
		r.signalAfter(time.Second, syscall.SIGTERM)
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := r.took(lifecycle.PhaseDraining); got != 7*time.Second {
			t.Errorf("drained for %v, want exactly the interval", got)
		}
		if got := r.Report().Window; got != "full" {
			t.Errorf("the report says %q", got)
		}
	})
}

func TestDrainQuietEndsTheWindowEarly(t *testing.T) {
	drain := func(t *testing.T, cfg lifecycle.Config, drainer time.Duration) (time.Duration, string) {
		var took time.Duration
		var how string
		synctest.Test(t, func(t *testing.T) {
			cfg.DrainInterval, cfg.DrainWait = 10*time.Second, lifecycle.WaitAlways
			r := newRig(t, cfg)
			r.Go("unit", untilCancelled)
			if drainer > 0 {
				r.OnDrain("d", lifecycle.DrainFunc(func(context.Context) error { time.Sleep(drainer); return nil }))
			}
			r.signalAfter(time.Second, syscall.SIGTERM)
			if err := r.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			took, how = r.took(lifecycle.PhaseDraining), r.Report().Window
		})
		return took, how
	}
	for _, test := range []struct {
		name    string
		cfg     lifecycle.Config
		drainer time.Duration
		want    time.Duration
		how     string
	}{
		{"after the quiet time", lifecycle.Config{DrainQuiet: 2 * time.Second}, 0, 2 * time.Second, "quiet"},
		{"never before the minimum", lifecycle.Config{DrainQuiet: 500 * time.Millisecond, DrainMin: 3 * time.Second}, 0, 3 * time.Second, "quiet"},
		{"not before a drainer has returned", lifecycle.Config{DrainQuiet: time.Second}, 4 * time.Second, 4 * time.Second, "quiet"},
		{"not at all when it never is quiet", lifecycle.Config{DrainQuiet: time.Minute}, 0, 10 * time.Second, "full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, how := drain(t, test.cfg, test.drainer); got != test.want || how != test.how {
				t.Errorf("the window took %v and ended %q, want %v, %q", got, how, test.want, test.how)
			}
		})
	}
}

func TestWindowIsSkippedOnlyWithoutClients(t *testing.T) {
	down := lifecycle.ProbeFunc(func(context.Context) error { return errBoom })
	for _, test := range []struct {
		name  string
		cfg   lifecycle.Config
		shape func(r *rig)
		want  time.Duration
	}{
		{"nothing listens", lifecycle.Config{}, func(*rig) {}, 0},
		{"nothing listens, but it is to wait always", lifecycle.Config{DrainWait: lifecycle.WaitAlways}, func(*rig) {}, 5 * time.Second},
		{"never ready", lifecycle.Config{}, func(r *rig) { r.Probe("db", down) }, 0},
		{"never ready, but always", lifecycle.Config{DrainWait: lifecycle.WaitAlways}, func(r *rig) { r.Probe("db", down) }, 5 * time.Second},
		{"never ready, and a server listens", lifecycle.Config{}, func(r *rig) { serveNothing(r); r.Probe("db", down) }, 0},
		{"never waits, and a server listens", lifecycle.Config{DrainWait: lifecycle.WaitNever}, serveNothing, 0},
		{"ready, and a server listens", lifecycle.Config{Linger: lifecycle.Off, AcceptQuiet: lifecycle.Off}, serveNothing, 5 * time.Second},
		{"never waits", lifecycle.Config{DrainWait: lifecycle.WaitNever}, func(*rig) {}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, test.cfg)
				drained := false
				r.Go("unit", untilCancelled)
				r.OnDrain("d", lifecycle.DrainFunc(func(ctx context.Context) error {
					if d, _ := ctx.Deadline(); time.Until(d) != 5*time.Second {
						t.Errorf("the drainer has %v", time.Until(d))
					}
					drained = true
					return nil
				}))
				test.shape(r)
				r.signalAfter(time.Minute, syscall.SIGTERM)
				if err := r.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := r.took(lifecycle.PhaseDraining); got != test.want {
					t.Errorf("drained for %v, want %v (%s)", got, test.want, r.Report().Window)
				}
				if !drained {
					t.Error("the drainer did not run")
				}
			})
		})
	}
}

func TestASkippedWaitStillWaitsForDrainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainWait: lifecycle.WaitNever})
		r.OnDrain("d", lifecycle.DrainFunc(func(context.Context) error { time.Sleep(3 * time.Second); return nil }))
		r.Go("unit", untilCancelled)
		r.signalAfter(time.Second, syscall.SIGTERM)
		if err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := r.took(lifecycle.PhaseDraining); got != 3*time.Second {
			t.Errorf("drained for %v, want the drainer's 3s", got)
		}
	})
}

func TestSecondSignalSkipsTheRestOfTheWindow(t *testing.T) {
	for _, test := range []struct {
		name    string
		signals []time.Duration
		stop    time.Duration // App.Stop at
		want    time.Duration
	}{
		{"one signal", []time.Duration{0}, -1, 10 * time.Second},
		{"two within 250ms are one", []time.Duration{0, 250 * time.Millisecond}, -1, 10 * time.Second},
		{"two", []time.Duration{0, 2 * time.Second}, -1, 2 * time.Second},
		{"only signals count: Stop and one signal", []time.Duration{2 * time.Second}, 0, 10 * time.Second},
		{"Stop and two signals", []time.Duration{2 * time.Second, 3 * time.Second}, 0, 3 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{DrainInterval: 10 * time.Second, DrainWait: lifecycle.WaitAlways})
				r.Go("unit", untilCancelled)
				for _, d := range test.signals {
					r.signalAfter(time.Second+d, syscall.SIGTERM)
				}
				if test.stop >= 0 {
					r.after(time.Second+test.stop, func() { r.Stop(nil) })
				}
				if err := r.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := r.took(lifecycle.PhaseDraining); got != test.want {
					t.Errorf("drained for %v, want %v", got, test.want)
				}
			})
		})
	}
}
