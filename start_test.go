package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
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
		r.wantTrail("1s drainer", "1s unit cancelled", "1s hook")
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
		// "unit dead" and the worker's own "start dead".
		if n := strings.Count(err.Error(), "dead"); n > 2 {
			t.Errorf("the error names the failure more than once: %v", err)
		}
	})
}

// The drainers of what has started run before it is taken down. A drainer is skipped when
// a unit registered before it was not started; a start condition that is still open does
// not count. The App does not wait for the window, and says which drainers it skips.
func TestStopWhileStartingRunsTheDrainersOfWhatHasStarted(t *testing.T) {
	refuses := func() worker.Worker {
		w := worker.NewFunc("refuses", untilCancelled)
		_ = w.Stop(context.Background())
		return w
	}
	const all = "first ok, second ok, third ok"
	for _, test := range []struct {
		name    string
		shape   func(r *rig)
		signals []time.Duration
		want    string // the drainers
		trail   []string
	}{
		{"a signal while a unit has not met its start condition", func(r *rig) {
			r.Go("waits", untilCancelled, lifecycle.WithStartCondition())
		}, []time.Duration{time.Second}, all, []string{"1s first", "1s second", "1s third", "3s unit cancelled"}},
		{"a Start that fails", func(r *rig) { r.Add(refuses()) }, nil,
			"first ok, second ok, third skipped", []string{"0s first", "0s second", "2s unit cancelled"}},
		{"a unit that fails before the App runs", func(r *rig) {
			r.Go("waits", untilCancelled, lifecycle.WithStartCondition()).
				Go("fails", func(context.Context) error { time.Sleep(time.Second); return errBoom })
		}, nil, all, []string{"1s first", "1s second", "1s third", "3s unit cancelled"}},
		{"a second signal ends the drainers", func(r *rig) {
			r.Go("waits", untilCancelled, lifecycle.WithStartCondition())
		}, []time.Duration{time.Second, 2 * time.Second}, "first ok, second failed, third ok",
			[]string{"1s first", "1s second", "1s third", "2s unit cancelled"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{})
				drainer := func(name string, took time.Duration) {
					r.OnDrain(name, lifecycle.DrainFunc(func(ctx context.Context) error {
						r.mark("%s", name)
						select {
						case <-time.After(took):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					}))
				}
				drainer("first", 0) // before every unit
				r.Go("unit", func(ctx context.Context) error {
					<-ctx.Done()
					r.mark("unit cancelled")
					return nil
				})
				drainer("second", 2*time.Second)
				test.shape(r)
				drainer("third", 0)
				for _, d := range test.signals {
					r.signalAfter(d, syscall.SIGTERM)
				}
				_ = r.Run(t.Context())
				got := map[string]lifecycle.Result{}
				for _, out := range r.Report().Drainers {
					got[out.Name] = out.Result
				}
				if s := fmt.Sprintf("first %s, second %s, third %s", got["first"], got["second"], got["third"]); s != test.want {
					t.Errorf("the drainers: %s, want %s", s, test.want)
				}
				slices.Sort(r.trail)
				r.wantTrail(test.trail...)
				line := `msg="drainer skipped: not every unit registered before it was launched" drainer=third`
				skipped := strings.Contains(test.want, "skipped")
				if skipped != strings.Contains(r.log.String(), line) {
					t.Errorf("skipped: %v, the log:\n%s", skipped, r.log)
				}
				if !r.EnteredAt(lifecycle.PhaseRunning).IsZero() || !r.EnteredAt(lifecycle.PhaseDraining).IsZero() {
					t.Error("it ran, or drained")
				}
			})
		})
	}
}

func TestDrainersAreSkippedWhenNothingHasStarted(t *testing.T) {
	for name, shape := range map[string]func(r *rig){
		"stopped before Run": func(r *rig) { r.Stop(nil) },
		"a name is taken":    func(r *rig) { r.Go("unit", untilCancelled) },
		"the address cannot be bound": func(r *rig) {
			r.Serve("http", &http.Server{Addr: "127.0.0.1:65536"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.OnDrain("d", lifecycle.DrainFunc(func(context.Context) error { t.Error("it ran"); return nil })).Go("unit", untilCancelled)
			shape(r)
			_ = r.Run(t.Context())
			if d := r.Report().Drainers; len(d) != 1 || d[0].Result != lifecycle.ResultSkipped {
				t.Errorf("the report says %v", d)
			}
		})
	}
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

// hungStart is a worker whose Start does not return before the end of its context.
type hungStart struct{ *worker.Func }

func (hungStart) Start(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestStartThatTakesTooLongNamesTheUnits(t *testing.T) {
	marks := func(after time.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			time.Sleep(after)
			lifecycle.MarkStarted(ctx)
			return untilCancelled(ctx)
		}
	}
	for _, test := range []struct {
		name    string
		timeout time.Duration
		shape   func(r *rig)
		took    time.Duration // -1: it runs
		says    string
	}{
		{"MarkStarted never comes", 0, func(r *rig) {
			r.Go("quick", untilCancelled).Go("cache", untilCancelled, lifecycle.WithStartCondition())
		}, time.Hour, "start: not done within 1h0m0s (StartTimeout): waiting for unit cache"},
		{"two of three", time.Minute, func(r *rig) {
			r.Go("cache", untilCancelled, lifecycle.WithStartCondition()).
				Go("migrated", marks(time.Second), lifecycle.WithStartCondition()).
				Supervise("index", untilCancelled, lifecycle.DefaultBackoff(), lifecycle.WithStartCondition())
		}, time.Minute, "waiting for unit cache, unit index"},
		{"a Start that hangs", time.Minute, func(r *rig) {
			r.Add(hungStart{worker.NewFunc("slow", untilCancelled)}).Go("behind", untilCancelled)
		}, time.Minute, "waiting for unit slow"},
		{"a slow migration", 0, func(r *rig) { r.Go("db", marks(59*time.Minute), lifecycle.WithStartCondition()) }, -1, ""},
		{"off", lifecycle.Off, func(r *rig) { r.Go("db", marks(59*time.Hour), lifecycle.WithStartCondition()) }, -1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{StartTimeout: test.timeout})
				test.shape(r)
				r.OnShutdown("db", func(context.Context) error { r.mark("hook"); return nil })
				r.after(100*time.Hour, func() { r.Stop(nil) })
				err := r.Run(t.Context())
				if test.took < 0 {
					if err != nil {
						t.Error(err)
					}
					r.took(lifecycle.PhaseRunning) // fails when it never ran
					return
				}
				wantErr(t, err, context.DeadlineExceeded, test.says)
				r.wantTrail(fmt.Sprintf("%v hook", test.took))
				if !strings.Contains(r.log.String(), test.says) {
					t.Errorf("the log does not say %q:\n%s", test.says, r.log)
				}
			})
		})
	}
}

// Long before the timeout the log says for what the App waits, and less and less often.
func TestStartThatTakesLongIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Go("quick", untilCancelled).Go("cache", untilCancelled, lifecycle.WithStartCondition())
		r.after(10*time.Minute, func() { r.Stop(nil) })
		_ = r.Run(t.Context())
		var got []string
		for line := range strings.Lines(r.log.String()) {
			if _, said, found := strings.Cut(line, `level=WARN msg="still starting" `); found {
				got = append(got, strings.TrimSpace(said))
			}
		}
		var want []string
		for _, after := range []string{"15s", "30s", "1m0s", "2m0s", "4m0s", "8m0s"} {
			want = append(want, fmt.Sprintf(`for=%s waiting_for="unit cache"`, after))
		}
		if !slices.Equal(got, want) {
			t.Errorf("the log:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// cannotStart needs some time to find out that it cannot start.
type cannotStart struct{ *worker.Func }

func (cannotStart) Start(context.Context) error {
	time.Sleep(5 * time.Second)
	return errors.New("it cannot start")
}

// A start that failed restarts nothing any more while it waits for the requests in flight.
func TestFailedStartHoldsRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		r := newRig(t, lifecycle.Config{})
		ln := newPipeListener()
		var stopped, late atomic.Bool
		r.Supervise("fails", func(context.Context) error {
			if stopped.Load() {
				late.Store(true)
			}
			return errors.New("it has failed")
		}, lifecycle.Backoff{Min: s, Max: s})
		r.Serve("http", &http.Server{Handler: untilCut}, lifecycle.WithListener(ln))
		r.Add(cannotStart{worker.NewFunc("last", untilCancelled)})
		began := time.Now()
		r.after(2*s, func() { _ = ln.request() })
		r.after(5*s+time.Millisecond, func() { stopped.Store(true) })
		_ = r.Run(t.Context())
		if took := time.Since(began); took < 10*s {
			t.Errorf("the stop did not wait for the request: it was over after %v", took)
		}
		if late.Load() {
			t.Error("a unit was restarted after the start had failed")
		}
	})
}
