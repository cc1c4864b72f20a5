package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// A start that takes longer than ResetAfter and times out is a failure like any other: the
// next wait is longer.
func TestTimeOfAStartIsNoUptime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := worker.Spec{Name: "never", StartTimeout: time.Hour, New: func(name string) (worker.Worker, error) {
			waits := func(ctx context.Context) error { <-ctx.Done(); return nil }
			return worker.NewFunc(name, waits, worker.WithStartCondition()), nil
		}}
		backoff := worker.Backoff{Min: time.Second, Jitter: worker.NoJitter, ResetAfter: time.Minute}
		s := supervise(t, worker.SupervisorConfig{Backoff: backoff, Children: []worker.Spec{never}})
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			time.Sleep(time.Hour)
			synctest.Wait()
			child := s.State().Children[0]
			if got := time.Until(child.Due); child.Status != worker.StatusPending || got != want {
				t.Fatalf("it is %s for %v, want %v", child.Status, got, want)
			}
			time.Sleep(want)
		}
		stop(t, s)
	})
}

func TestStrategies(t *testing.T) {
	tests := []struct {
		strategy worker.Strategy
		want     string
	}{
		{"", "!b +b"},
		{worker.OneForOne, "!b +b"},
		{worker.OneForAll, "!b -d -c -a +a +b +c"},
		{worker.RestForOne, "!b -d -c +b +c"},
	}
	for _, test := range tests {
		t.Run(string(test.strategy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				end := make(chan error)
				never, done := d.child("d", nil), worker.FuncSpec("e", func(context.Context) error { return nil })
				never.Restart, done.Restart = worker.Never, worker.OnFailure
				s := supervise(t, worker.SupervisorConfig{
					Strategy: test.strategy, Backoff: everySecond,
					Children: []worker.Spec{d.child("a", nil), d.child("b", end), d.child("c", nil), never, done},
				})
				synctest.Wait()
				if got := d.take(); got != "+a +b +c +d" {
					t.Fatalf("start %q", got)
				}
				end <- errBoom
				synctest.Wait()
				first := d.take()
				b := s.State().Children[1]
				if b.Status != worker.StatusPending || !b.Due.Equal(time.Now().Add(time.Second)) || !strings.Contains(b.Reason, "boom") {
					t.Errorf("b is %+v", b)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := first + " " + d.take(); got != test.want {
					t.Errorf("%q, want %q", got, test.want)
				}
				want := "a=Running b=Running c=Running d=Stopped e=Finished"
				if test.strategy == "" || test.strategy == worker.OneForOne {
					want = "a=Running b=Running c=Running d=Running e=Finished"
				}
				got := s.State()
				if statuses(got) != want || got.Children[1].Restarts != 1 || got.Children[1].Exit.Error != "boom" {
					t.Errorf("it is %s, want %s; b %+v", statuses(got), want, got.Children[1])
				}
				stop(t, s)
			})
		})
	}
}

func TestRestartPolicies(t *testing.T) {
	ends := map[string]error{"nil": nil, "boom": errBoom, "do not restart": worker.ErrDoNotRestart}
	tests := []struct {
		policy worker.Restart
		end    string
		again  bool
	}{
		{"", "nil", true}, {"", "boom", true}, {"", "do not restart", false},
		{worker.Always, "nil", true}, {worker.Always, "boom", true}, {worker.Always, "do not restart", false},
		{worker.OnFailure, "nil", false}, {worker.OnFailure, "boom", true}, {worker.OnFailure, "do not restart", false},
		{worker.Never, "nil", false}, {worker.Never, "boom", false},
	}
	for _, strategy := range []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne} {
		for _, test := range tests {
			t.Run(fmt.Sprint(strategy, "/", test.policy, "/", test.end), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var d diary
					end := make(chan error)
					spec := d.child("a", end)
					spec.Restart = test.policy
					s := supervise(t, worker.SupervisorConfig{Strategy: strategy, Backoff: everySecond, Children: []worker.Spec{spec}})
					synctest.Wait()
					end <- ends[test.end]
					synctest.Wait()
					if got := d.take(); got != "+a !a" {
						t.Errorf("without a backoff: %q", got)
					}
					time.Sleep(time.Minute)
					synctest.Wait()
					if got := d.take(); got == "+a" != test.again {
						t.Errorf("then %q", got)
					}
					if s.Status() != worker.StatusRunning {
						t.Errorf("it is %s", s.Status())
					}
					stop(t, s)
				})
			})
		}
	}
}

func TestRestartIntensityStopsEveryChildAndFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		backoff := everySecond
		backoff.MaxRestarts, backoff.Window = 3, time.Hour
		s := supervise(t, worker.SupervisorConfig{Backoff: backoff, Children: []worker.Spec{d.child("a", nil), d.child("b", end), d.child("c", nil)}})
		synctest.Wait()
		for range 4 {
			end <- errBoom
		}
		<-s.Done()
		if got := d.take(); got != "+a +b +c !b +b !b +b !b +b !b -c -a" {
			t.Errorf("%q", got)
		}
		if s.Status() != worker.StatusFailed || !errors.Is(s.Err(), worker.ErrRestartIntensity) || !errors.Is(s.Err(), errBoom) {
			t.Errorf("it is %s, %v", s.Status(), s.Err())
		}
		if err := s.Add(d.child("x", nil)); !errors.Is(err, worker.ErrSupervisorEnded) {
			t.Errorf("Add: %v", err)
		}
	})
}

func TestRestartIntensityIsASlidingWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		backoff := everySecond
		backoff.MaxRestarts, backoff.Window = 2, time.Minute
		s := supervise(t, worker.SupervisorConfig{Backoff: backoff, Children: []worker.Spec{d.child("a", end)}})
		for range 50 { // one restart in 31 s never exceeds the limit
			end <- errBoom
			time.Sleep(31 * time.Second)
		}
		if s.Status() != worker.StatusRunning {
			t.Errorf("it is %s, %v", s.Status(), s.Err())
		}
		stop(t, s)
	})
}

func TestEscalationIsTheParentsToDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		inner := everySecond
		inner.MaxRestarts = 1
		tree := worker.Spec{Name: "inner", New: func(name string) (worker.Worker, error) {
			return worker.NewSupervisor(name, worker.SupervisorConfig{Backoff: inner, Children: []worker.Spec{d.child("a", nil), d.child("b", end)}}), nil
		}}
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{tree, d.child("c", nil)}})
		synctest.Wait()
		end <- errBoom
		end <- errBoom
		synctest.Wait()
		if got := d.take(); got != "+a +b +c !b +b !b -a" {
			t.Errorf("%q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := d.take(); got != "+a +b" {
			t.Errorf("a new tree %q", got)
		}
		if got := s.State(); statuses(got) != "inner=Running c=Running" || statuses(got.Children[0]) != "a=Running b=Running" || got.Children[0].Restarts != 1 {
			t.Errorf("it is %+v", got)
		}
		stop(t, s)
	})
}

func TestTerminateEndsTheSupervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{d.child("a", nil), d.child("b", end)}})
		end <- fmt.Errorf("data is corrupt: %w", worker.ErrTerminate)
		<-s.Done()
		if s.Status() != worker.StatusFailed || !errors.Is(s.Err(), worker.ErrTerminate) || d.take() != "+a +b !b -a" {
			t.Errorf("it is %s, %v", s.Status(), s.Err())
		}
	})
}

func TestZeroBackoffDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts atomic.Int32
		spec := worker.FuncSpec("a", func(context.Context) error { starts.Add(1); return errBoom })
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec}})
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if starts.Load() != 1 {
			t.Errorf("%d starts in 300 ms", starts.Load())
		}
		<-s.Done()
		if starts.Load() != 11 {
			t.Errorf("%d starts in all, want the first and ten restarts", starts.Load())
		}
	})
}

func TestStoppedWhilePendingNeverStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", end)}})
		synctest.Wait()
		end <- errBoom
		synctest.Wait()
		stop(t, s)
		time.Sleep(time.Minute)
		if got := statuses(s.State()); got != "a=Stopped" || d.take() != "+a !a" {
			t.Errorf("it is %s", got)
		}
	})
}

func TestHoldRestartsInATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		a, b := make(chan error), make(chan error)
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", a), d.child("b", b)}})
		synctest.Wait()
		a <- errBoom
		synctest.Wait()
		s.HoldRestarts()
		synctest.Wait()
		b <- errBoom
		time.Sleep(time.Minute)
		if got := d.take(); got != "+a +b !a !b" || statuses(s.State()) != "a=Stopped b=Failed" {
			t.Errorf("%q, it is %s", got, statuses(s.State()))
		}
		stop(t, s)
	})
}

// When one cause ends two children at once, that counts as one restart.
func TestChildrenThatFailAtOnceAreRestartedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := make(chan struct{})
		fn := func(ctx context.Context) error {
			if h, _ := worker.HandoverFrom(ctx); h.Restarts == 0 {
				<-fail
				return errBoom
			}
			<-ctx.Done()
			return ctx.Err()
		}
		var specs []worker.Spec
		for i := range 100 {
			specs = append(specs, worker.FuncSpec(fmt.Sprint(i), fn))
		}
		s := worker.NewSupervisor("s", worker.SupervisorConfig{
			Strategy: worker.OneForAll,
			Backoff:  worker.Backoff{Min: time.Second, Max: time.Second, Jitter: worker.NoJitter, MaxRestarts: 1, Window: time.Hour},
			Children: specs,
		})
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(fail)
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if got := s.Status(); got != worker.StatusRunning {
			t.Errorf("it is %s: %v", got, s.Err())
		}
		_ = s.Stop(context.Background())
	})
}

func TestTerminateIsContained(t *testing.T) {
	for _, contain := range []bool{false, true} {
		for _, policy := range []worker.Restart{worker.Always, worker.OnFailure, worker.Never} {
			t.Run(fmt.Sprint(policy, " ", contain), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var d diary
					end := make(chan error)
					branch := worker.Spec{Name: "branch", Restart: policy, New: func(name string) (worker.Worker, error) {
						return worker.NewSupervisor(name, worker.SupervisorConfig{
							ContainTerminate: contain,
							Children:         []worker.Spec{d.child("b", nil), d.child("c", end)},
						}), nil
					}}
					root := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", nil), branch}})
					synctest.Wait()
					end <- fmt.Errorf("data is corrupt: %w", worker.ErrTerminate)
					time.Sleep(time.Minute)
					synctest.Wait()
					want, status := "+a +b +c !c -b -a", worker.StatusFailed
					if contain {
						want, status = "+a +b +c !c -b", worker.StatusRunning
					}
					if got := d.take(); got != want || root.Status() != status || errors.Is(root.Err(), worker.ErrTerminate) == contain {
						t.Errorf("%q, it is %s, %v", got, root.Status(), root.Err())
					}
					if got := root.State().Children[1]; got.Status != worker.StatusFailed || !strings.Contains(got.Error, "data is corrupt") {
						t.Errorf("the branch is %+v", got)
					}
					stop(t, root)
				})
			})
		}
	}
}
