package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Cases of OTP's supervisor_SUITE that no other test has. docs/internals/otp.md lists all.

// A stop ends in order although children end by themselves meanwhile, in every way.
func TestChildrenThatEndDuringTheStop(t *testing.T) {
	for _, strategy := range []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne} {
		t.Run(string(strategy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				s := worker.NewSupervisor("tree", worker.SupervisorConfig{Strategy: strategy, Children: []worker.Spec{d.child("first", nil)}})
				for i, policy := range []worker.Restart{worker.Always, worker.OnFailure, worker.Never, worker.Temporary} {
					for j, end := range []error{nil, errBoom, worker.ErrDoNotRestart, worker.ErrTerminate} {
						spec := worker.FuncSpec(fmt.Sprint("c", i, j), func(ctx context.Context) error {
							select {
							case <-time.After(30 * time.Second): // the stop waits for the last child then
								return end
							case <-ctx.Done():
								return ctx.Err()
							}
						})
						spec.Restart = policy
						if err := s.Add(spec); err != nil {
							t.Fatal(err)
						}
					}
				}
				last := worker.FuncSpec("last", func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(time.Minute)
					return nil
				})
				last.StopTimeout = worker.NoLimit
				if err := s.Add(last); err != nil {
					t.Fatal(err)
				}
				if err := s.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				began := time.Now()
				stop(t, s)
				if s.Status() != worker.StatusStopped || time.Since(began) != time.Minute || d.take() != "+first -first" {
					t.Errorf("it is %s, %v, after %v", s.Status(), s.Err(), time.Since(began))
				}
				for _, c := range s.State().Children {
					if !c.Status.Terminal() || c.Restarts > 0 {
						t.Errorf("%s is %s after %d restarts", c.Name, c.Status, c.Restarts)
					}
				}
			})
		})
	}
}

// Each child of a Dynamic stops in its own way.
func TestDynamicChildrenStopInTheirOwnWay(t *testing.T) {
	for _, policy := range []worker.Restart{worker.Always, worker.OnFailure, worker.Temporary} {
		for _, timeout := range []time.Duration{0, time.Second, worker.BrutalKill} {
			t.Run(fmt.Sprint(policy, "/", timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					type end struct {
						takes time.Duration
						err   error
					}
					d := dynamic(t, worker.DynamicConfig{Template: worker.Spec{Restart: policy, StopTimeout: timeout}}, func(ctx context.Context, how end) error {
						<-ctx.Done()
						time.Sleep(how.takes)
						return how.err
					})
					want := map[string]worker.Status{
						add(t, d, end{}): worker.StatusStopped, add(t, d, end{err: context.Canceled}): worker.StatusStopped,
						add(t, d, end{err: errBoom}): worker.StatusFailed, add(t, d, end{takes: time.Hour}): worker.StatusKilled,
					}
					synctest.Wait()
					err := d.Stop(context.Background())
					if status := d.Status(); timeout == worker.BrutalKill && (err != nil || status != worker.StatusStopped) || timeout != worker.BrutalKill && status != worker.StatusKilled {
						t.Errorf("it is %s, %v", status, err)
					}
					for _, c := range d.State().Children {
						if c.Status != want[c.Name] && !(timeout == worker.BrutalKill && c.Status == worker.StatusKilled) {
							t.Errorf("%s is %s, want %s", c.Name, c.Status, want[c.Name])
						}
					}
					<-d.Gone()
				})
			})
		}
	}
}

// When a start fails while others are restarted with it, the strategy decides again.
func TestStartThatFailsDuringARestart(t *testing.T) {
	for strategy, want := range map[worker.Strategy]string{
		worker.OneForAll:  "!a -b +a b:boom -a +a +b",
		worker.RestForOne: "!a -b +a b:boom +b",
	} {
		t.Run(string(strategy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				end := make(chan error)
				good, starts := d.child("b", nil), 0
				spec := worker.Spec{Name: "b", New: func(name string) (worker.Worker, error) {
					if starts++; starts == 2 {
						d.note("b:boom")
						return nil, errBoom
					}
					return good.New(name)
				}}
				s := supervise(t, worker.SupervisorConfig{Strategy: strategy, Backoff: everySecond, Children: []worker.Spec{d.child("a", end), spec}})
				synctest.Wait()
				d.take()
				end <- errBoom
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := d.take(); got != want || statuses(s.State()) != "a=Running b=Running" || d.most != 1 {
					t.Errorf("%q, want %q; it is %s", got, want, statuses(s.State()))
				}
				stop(t, s)
			})
		})
	}
}

// A restart of several children counts once, and every strategy has the limit.
func TestRestartIntensityInEveryStrategy(t *testing.T) {
	for _, strategy := range []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne} {
		t.Run(string(strategy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				limit := everySecond
				limit.MaxRestarts, limit.Window = 2, time.Hour
				a, b := make(chan error), make(chan error)
				s := supervise(t, worker.SupervisorConfig{Strategy: strategy, Backoff: limit, Children: []worker.Spec{d.child("a", a), d.child("b", b), d.child("c", nil)}})
				for i, end := range []chan error{a, b, a} {
					synctest.Wait()
					if s.Status() != worker.StatusRunning {
						t.Fatalf("before failure %d it is %s", i+1, s.Status())
					}
					end <- errBoom
					time.Sleep(2 * time.Second)
				}
				<-s.Done()
				if s.Status() != worker.StatusFailed || !errors.Is(s.Err(), worker.ErrRestartIntensity) {
					t.Errorf("it is %s, %v", s.Status(), s.Err())
				}
				for _, c := range s.State().Children {
					if !c.Status.Terminal() {
						t.Errorf("%s is %s", c.Name, c.Status)
					}
				}
			})
		})
	}
}

// A worker that another part of the program stops has ended, but has not failed.
func TestChildThatIsStoppedFromOutside(t *testing.T) {
	for policy, want := range map[worker.Restart]string{
		worker.Always: "a=Running", worker.OnFailure: "a=Stopped", worker.Never: "a=Stopped", worker.Temporary: "",
	} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made := make(chan worker.Worker, 10)
				spec := worker.Spec{Name: "a", Restart: policy, New: func(name string) (worker.Worker, error) {
					w := worker.NewFunc(name, idle)
					made <- w
					return w, nil
				}}
				s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec}})
				synctest.Wait()
				stop(t, <-made)
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := statuses(s.State()); got != want {
					t.Errorf("it is %q, want %q", got, want)
				}
				stop(t, s)
			})
		})
	}
}

// Children that fail again and again can be stopped between two starts, and so can their
// supervisor.
func TestVerbsDuringARestartLoop(t *testing.T) {
	t.Run("rest for one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var d diary
			fails := worker.FuncSpec("b", func(context.Context) error { return errBoom })
			loop := everySecond
			loop.MaxRestarts = worker.NoLimit
			s := supervise(t, worker.SupervisorConfig{Strategy: worker.RestForOne, Backoff: loop, Children: []worker.Spec{d.child("a", nil), fails, d.child("c", nil)}})
			time.Sleep(10*time.Second + time.Second/2)
			if got := statuses(s.State()); got != "a=Running b=Pending c=Pending" {
				t.Errorf("it is %s", got)
			}
			if err := s.Add(fails); !errors.Is(err, worker.ErrNameTaken) {
				t.Errorf("Add: %v", err)
			}
			if err := s.StopChild(t.Context(), "b"); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			if got := statuses(s.State()); got != "a=Running b=Stopped c=Running" { // c waited for b alone
				t.Errorf("it is %s", got)
			}
			if err := s.RestartChild(t.Context(), "b"); err != nil {
				t.Error(err)
			}
			time.Sleep(10 * time.Second)
			stop(t, s)
		})
	})
	t.Run("dynamic", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			loop := everySecond
			loop.MaxRestarts = worker.NoLimit
			d := dynamic(t, worker.DynamicConfig{Template: worker.Spec{Restart: worker.Always}, Backoff: loop}, func(_ context.Context, err error) error { return err })
			first, second, third := add(t, d, errBoom), add(t, d, errBoom), add(t, d, worker.ErrDoNotRestart)
			time.Sleep(10*time.Second + time.Second/2)
			if got := d.Counts(); got != (worker.Counts{Specs: 2, Workers: 2}) {
				t.Errorf("%+v", got)
			}
			if _, ok := d.Child(third); ok {
				t.Error("the one that is not to be restarted is still there")
			}
			if spec, ok := d.ChildSpec(first); !ok || spec.Restart != worker.Always || spec.StartTimeout != time.Minute {
				t.Errorf("its spec is %+v, %v", spec, ok)
			}
			if err := d.StopChild(t.Context(), first); err != nil {
				t.Error(err)
			}
			if err := d.RestartChild(t.Context(), second); err != nil { // its argument is there
				t.Error(err)
			}
			if got := names(d.State()); strings.Join(got, " ") != second {
				t.Errorf("there are %v", got)
			}
			stop(t, d)
		})
	})
}
