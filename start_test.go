package lifecycle_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestStopWhileStartingRollsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Go("started", func(ctx context.Context) error {
			<-ctx.Done()
			r.mark("unit cancelled")
			return nil
		}).Go("waits", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, lifecycle.WithStartCondition()).
			OnDrain("d", lifecycle.DrainFunc(func(context.Context) error { r.mark("drainer"); return nil })).
			OnShutdown("h", func(ctx context.Context) error {
				if ctx.Err() != nil {
					t.Error("the hook's context has ended")
				}
				r.mark("hook")
				return nil
			})
		r.signalAfter(time.Second, syscall.SIGTERM)
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		r.wantTrail("1s unit cancelled", "1s hook")
		if !r.EnteredAt(lifecycle.PhaseRunning).IsZero() || !r.EnteredAt(lifecycle.PhaseDraining).IsZero() {
			t.Error("the App ran or drained")
		}
	})
}

func TestFailureWhileStartingRollsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		second := worker.NewFunc("dead", untilCancelled)
		_ = second.Stop(t.Context())
		r.Go("one", func(ctx context.Context) error { <-ctx.Done(); r.mark("one cancelled"); return nil }).
			Add(second).
			Go("three", func(context.Context) error { t.Error("a unit after the failed one was started"); return nil }).
			OnShutdown("h", func(context.Context) error { r.mark("hook"); return nil })
		err := r.Run(t.Context())
		wantErr(t, err, worker.ErrNotStartable, "start: ", "unit dead")
		r.wantTrail("0s one cancelled", "0s hook")
		if r.Phase() != lifecycle.PhaseFailed {
			t.Errorf("it is %s", r.Phase())
		}
		if n := strings.Count(err.Error(), "dead"); n > 2 {
			t.Errorf("the error names the failure more than once: %v", err)
		}
	})
}

func TestUnitThatFailsWhileStartingIsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Go("waits", untilCancelled, lifecycle.WithStartCondition()).
			Go("fails", func(context.Context) error { time.Sleep(time.Second); return errBoom })
		err := r.Run(t.Context())
		wantErr(t, err, errBoom, "unit fails: boom")
		if got := time.Since(r.began); got != time.Second {
			t.Errorf("it took %v", got)
		}
	})
}

func TestParentThatIsOverStartsNothingAndRunsHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.Go("unit", func(context.Context) error { r.mark("unit"); return nil }).
			OnShutdown("h", func(context.Context) error { r.mark("hook"); return nil })
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
		r.wantTrail("0s hook")
		if got := r.Report().Units[0].Result; got != lifecycle.ResultSkipped {
			t.Errorf("the unit is %s", got)
		}
	})
}

func TestStopBeforeRunMakesRunStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Stop(errBoom)
		time.Sleep(time.Hour) // the watchdog must not count from here
		r.Go("unit", func(context.Context) error { r.mark("unit"); return nil }).
			OnShutdown("h", func(context.Context) error { r.mark("hook"); return nil })
		wantErr(t, r.Run(t.Context()), errBoom)
		r.wantTrail("1h0m0s hook")
		r.Stop(nil) // after Run: nothing
	})
}

func TestTwoAppsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newRig(t, lifecycle.Config{}), newRig(t, lifecycle.Config{})
		a.Go("unit", untilCancelled)
		b.Go("unit", untilCancelled)
		done := make(chan error, 1)
		go func() { done <- b.Run(t.Context()) }()
		a.signalAfter(time.Second, syscall.SIGTERM)
		if err := a.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if b.Phase() != lifecycle.PhaseRunning {
			t.Errorf("one's stop reached the other: it is %s", b.Phase())
		}
		b.Stop(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
