package lifecycle_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

// withHealth sets an address for the health planes. In a synctest bubble no request
// reaches it.
func withHealth(cfg lifecycle.Config) lifecycle.Config {
	cfg.HealthAddr = "127.0.0.1:0"
	return cfg
}

// work returns a job that takes d, unless it is cancelled.
func work(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestJobThatIsDoneEndsTheAppAtOnce(t *testing.T) {
	r := newRig(t, withHealth(lifecycle.Config{DrainInterval: time.Hour}))
	r.Job("migrate", func(context.Context) error { <-r.Reached(lifecycle.PhaseRunning); return nil }).
		Go("helper", untilCancelled).
		OnDrain("session", lifecycle.DrainFunc(func(context.Context) error { r.mark("drained"); return nil })).
		OnShutdown("db", func(context.Context) error { r.mark("closed"); return nil })
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if rep := r.Report(); rep.Reason != "job migrate is done" || rep.Window != "nothing listens" || len(rep.Drainers) != 1 || len(rep.Hooks) != 1 {
		t.Errorf("the report says %+v", rep)
	}
}

func TestJobsEndTheAppWhenTheLastIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Job("short", work(time.Second)).Job("long", work(time.Minute)).Job("none", work(0))
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(r.began); took != time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// A pod that exits 0 completes its Kubernetes Job, so only a job that is done may.
func TestExitStatusOfAJob(t *testing.T) {
	ignores := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(d):
			case <-ctx.Done(): // and does not say so
			}
			return nil
		}
	}
	for _, test := range []struct {
		name   string
		job    func(context.Context) error
		stop   func(r *rig, cancel context.CancelFunc) // after a second
		serves bool
		code   int
		took   time.Duration
	}{
		{"done", work(time.Second / 2), nil, false, 0, time.Second / 2},
		{"failed", func(context.Context) error { time.Sleep(time.Second); return errBoom }, nil, false, 1, time.Second},
		{"failed at once", func(context.Context) error { return errBoom }, nil, false, 1, 0},
		{"a signal", work(time.Hour), func(r *rig, _ context.CancelFunc) { r.signals <- syscall.SIGTERM }, false, 143, time.Second},
		{"Ctrl-C", work(time.Hour), func(r *rig, _ context.CancelFunc) { r.signals <- syscall.SIGINT }, false, 130, time.Second},
		{"a signal, and the job returns nil", ignores(time.Hour), func(r *rig, _ context.CancelFunc) { r.signals <- syscall.SIGTERM }, false, 143, time.Second},
		{"a signal, and the job fails", func(ctx context.Context) error { <-ctx.Done(); return errBoom }, func(r *rig, _ context.CancelFunc) { r.signals <- syscall.SIGTERM }, false, 143, time.Second},
		{"a signal, and the job is done in the window", work(3 * time.Second), func(r *rig, _ context.CancelFunc) { r.signals <- syscall.SIGTERM }, true, 0, 6 * time.Second},
		{"a signal, and a client may be served", work(time.Hour), func(r *rig, _ context.CancelFunc) { r.signals <- syscall.SIGTERM }, true, 143, 6 * time.Second},
		{"the parent context", work(time.Hour), func(_ *rig, cancel context.CancelFunc) { cancel() }, false, 1, time.Second},
		{"the program says that the stop is clean", work(time.Hour), func(r *rig, _ context.CancelFunc) { r.StopBecause("no longer needed") }, false, 0, time.Second},
		{"the program stops it with an error", work(time.Hour), func(r *rig, _ context.CancelFunc) { r.Stop(errBoom) }, false, 1, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{Linger: lifecycle.Off, AcceptQuiet: lifecycle.Off})
				r.Job("job", test.job)
				if test.serves {
					r.Serve("http", &http.Server{}, lifecycle.WithListener(lifecycletest.NewListener()))
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.stop != nil {
					r.after(time.Second, func() { test.stop(r, cancel) })
				}
				err := r.Run(ctx)
				if code := lifecycle.ExitCode(err); code != test.code {
					t.Errorf("the exit status is %d (%v), want %d", code, err, test.code)
				}
				if took := time.Since(r.began); took != test.took {
					t.Errorf("it took %v, want %v (%s)", took, test.took, r.Report().Window)
				}
			})
		})
	}
}

func TestJobThatNeverStartedIsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Go("waits", untilCancelled, lifecycle.WithStartCondition()).Job("job", work(time.Hour), lifecycle.WithStartCondition())
		r.signalAfter(time.Second, syscall.SIGTERM)
		err := r.Run(t.Context())
		wantErr(t, err, nil, "job job was not done: received signal: terminated")
		if code := lifecycle.ExitCode(err); code != 143 {
			t.Errorf("the exit status is %d", code)
		}
	})
}

// A preStop hook stops a job as the signal that follows it would.
func TestJobThatAPreStopHookStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const token = "0123456789abcdef"
		r := newRig(t, lifecycle.Config{AdminToken: token})
		r.Job("job", work(time.Hour))
		r.after(time.Second, func() {
			req := httptest.NewRequest(http.MethodGet, "/admin/prestop", nil)
			req.Header.Set("Authorization", "Bearer "+token)
			r.Handler().ServeHTTP(httptest.NewRecorder(), req)
		})
		if code := lifecycle.ExitCode(r.Run(t.Context())); code != 143 {
			t.Errorf("the exit status is %d", code)
		}
	})
}

// An App without a server skips the window when a unit fails, or an actor returns, before
// it has run for the length of the window: the cluster has not sent it a client yet.
func TestUnitThatEndsAtOncePaysNoWindow(t *testing.T) {
	for _, test := range []struct {
		name  string
		after time.Duration
		actor bool
		cfg   lifecycle.Config
		want  string
	}{
		{"it fails at once", 0, false, lifecycle.Config{DrainInterval: time.Hour}, "a unit ended at once"},
		{"an actor returns at once", 0, true, lifecycle.Config{DrainInterval: time.Hour}, "a unit ended at once"},
		{"it fails later", 300 * time.Millisecond, false, lifecycle.Config{DrainInterval: 100 * time.Millisecond}, "full"},
		{"an actor returns later", 300 * time.Millisecond, true, lifecycle.Config{DrainInterval: 100 * time.Millisecond}, "full"},
		{"DrainWait is always", 0, false, lifecycle.Config{DrainInterval: 100 * time.Millisecond, DrainWait: lifecycle.WaitAlways}, "full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, withHealth(test.cfg))
			end := func() error {
				<-r.Reached(lifecycle.PhaseRunning)
				time.Sleep(test.after)
				return nil
			}
			if test.actor {
				r.Actor("actor", end, func(error) {})
			} else {
				r.Go("unit", func(context.Context) error { return errors.Join(end(), errBoom) })
			}
			_ = r.Run(t.Context())
			if got := r.Report().Window; got != test.want {
				t.Errorf("the window: %q, want %q", got, test.want)
			}
		})
	}
}
