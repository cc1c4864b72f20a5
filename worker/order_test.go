package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// failing makes the first starts of spec fail.
func failing(spec worker.Spec, times int) worker.Spec {
	good := spec.New
	spec.New = func(name string) (worker.Worker, error) {
		if times--; times >= 0 {
			return nil, errBoom
		}
		return good(name)
	}
	return spec
}

// The next child starts once the one before it runs, even when that one needs
// several attempts.
func TestFailedStartHoldsUpTheNext(t *testing.T) {
	for _, strategy := range []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne} {
		t.Run(string(strategy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				never := d.child("c", nil)
				never.Restart = worker.Never
				s := supervise(t, worker.SupervisorConfig{Strategy: strategy, Backoff: everySecond, Children: []worker.Spec{
					failing(d.child("a", nil), 2), failing(d.child("b", nil), 1), never,
				}})
				for _, step := range []struct {
					after time.Duration
					want  string
				}{{0, ""}, {time.Second, ""}, {time.Second, "+a"}} {
					time.Sleep(step.after)
					synctest.Wait()
					if strategy == worker.OneForAll && step.want == "+a" {
						step.want = "+a -a" // because b does not start
					}
					if got := d.take(); got != step.want || s.Status() != worker.StatusStarting {
						t.Errorf("%q, it is %s, %s", got, s.Status(), statuses(s.State()))
					}
				}
				time.Sleep(time.Second)
				synctest.Wait()
				want := "+b +c"
				if strategy == worker.OneForAll {
					want = "+a +b +c"
				}
				if got := d.take(); got != want || statuses(s.State()) != "a=Running b=Running c=Running" || s.Status() != worker.StatusRunning {
					t.Errorf("at last %q, it is %s, %s", got, s.Status(), statuses(s.State()))
				}
				stop(t, s)
			})
		})
	}
}

// A child that is given up holds up nothing.
func TestChildThatIsGivenUpHoldsUpNothing(t *testing.T) {
	for name, test := range map[string]struct {
		shape func(*worker.Spec)
		act   func(*testing.T, *worker.Supervisor)
		want  string
	}{
		"never restarted": {shape: func(spec *worker.Spec) { spec.Restart = worker.Never }, want: "+b"},
		"removed": {act: func(t *testing.T, s *worker.Supervisor) {
			if err := s.Remove(t.Context(), "a"); err != nil {
				t.Error(err)
			}
		}, want: "+b"},
		"held by a drain": {act: func(_ *testing.T, s *worker.Supervisor) { s.HoldRestarts() }},
		"stopped":         {act: func(t *testing.T, s *worker.Supervisor) { stop(t, s) }},
		"added to": {act: func(t *testing.T, s *worker.Supervisor) { // a later child waits for no other
			if err := s.Add(worker.FuncSpec("late", func(ctx context.Context) error { <-ctx.Done(); return nil })); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if got := statuses(s.State()); got != "a=Pending b=Created late=Running" {
				t.Error(got)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				spec := failing(d.child("a", nil), 1000)
				if test.shape != nil {
					test.shape(&spec)
				}
				s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec, d.child("b", nil)}})
				synctest.Wait()
				if test.act != nil {
					if got := d.take(); got != "" {
						t.Errorf("at first %q", got)
					}
					test.act(t, s)
				}
				synctest.Wait()
				if got := d.take(); got != test.want {
					t.Errorf("%q, want %q", got, test.want)
				}
				stop(t, s)
			})
		})
	}
}

// With StopTogether the stop of a supervisor takes as long as its slowest child, and not
// as long as all of them.
func TestStopTogether(t *testing.T) {
	for _, together := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			slow := func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second)
				return nil
			}
			var all []worker.Spec
			for _, name := range []string{"a", "b", "c"} {
				all = append(all, worker.FuncSpec(name, slow))
			}
			s := supervise(t, worker.SupervisorConfig{StopTogether: together, Children: all})
			synctest.Wait()
			began, want := time.Now(), 3*time.Second
			if together {
				want = time.Second
			}
			stop(t, s)
			if took := time.Since(began); took != want || statuses(s.State()) != "a=Stopped b=Stopped c=Stopped" {
				t.Errorf("together: %v: it took %v, %s", together, took, statuses(s.State()))
			}
		})
	}
}

// A function that ends while its start is under way, because the failure of another child
// stops it, is restarted with that child, whichever of the two the supervisor hears of
// first.
func TestStopOfAStartingFunctionIsHeard(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			end := make(chan error)
			var d diary
			slow := worker.Spec{Name: "b", New: func(name string) (worker.Worker, error) {
				return worker.NewFunc(name, func(ctx context.Context) error { <-ctx.Done(); return nil }, worker.WithStartCondition()), nil
			}}
			s := supervise(t, worker.SupervisorConfig{Strategy: worker.OneForAll, Backoff: everySecond, Children: []worker.Spec{d.child("a", end), slow}})
			synctest.Wait()
			end <- errBoom
			synctest.Wait()
			if got := statuses(s.State()); got != "a=Pending b=Pending" {
				t.Errorf("it is %s", got)
			}
			stop(t, s)
		})
	}
}
