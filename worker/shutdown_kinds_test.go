package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// The StopTimeout of a child: some time, all the time, or none.
func TestStopTimeouts(t *testing.T) {
	tests := map[string]struct {
		timeout, needs, takes time.Duration
		end                   worker.Status
	}{
		"default, in time":   {0, 14 * time.Second, 14 * time.Second, worker.StatusStopped},
		"default, too slow":  {0, time.Minute, 15 * time.Second, worker.StatusKilled},
		"a time":             {time.Second, time.Minute, time.Second, worker.StatusKilled},
		"no limit":           {worker.NoLimit, time.Hour, time.Hour, worker.StatusStopped},
		"brutal kill":        {worker.BrutalKill, time.Minute, 0, worker.StatusKilled},
		"brutal kill, ready": {worker.BrutalKill, 0, 0, worker.StatusKilled},
	}
	for name, test := range tests {
		for _, by := range []string{"StopChild", "Stop", "a stop of the tree in 2 s"} {
			t.Run(name+"/"+by, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					spec := worker.FuncSpec("a", func(ctx context.Context) error {
						<-ctx.Done()
						time.Sleep(test.needs)
						return nil
					})
					spec.StopTimeout = test.timeout
					s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec}})
					synctest.Wait()
					began, takes, end := time.Now(), test.takes, test.end
					var err error
					switch by {
					case "StopChild":
						err = s.StopChild(t.Context(), "a")
					case "Stop":
						err = s.Stop(context.Background())
					default:
						ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
						defer cancel()
						_ = s.Stop(ctx)
						if takes > time.Second {
							takes, end = 1900*time.Millisecond, worker.StatusKilled
						}
					}
					c, _ := s.Child("a")
					if took := time.Since(began); took < takes || took > takes+100*time.Millisecond || c.Status != end {
						if !(test.timeout == worker.BrutalKill && c.Status == worker.StatusStopped) {
							t.Errorf("it took %v, want %v; it is %s, want %s", took, takes, c.Status, end)
						}
					}
					if test.timeout == worker.BrutalKill && by != "StopChild" && (err != nil || s.Status() != worker.StatusStopped) {
						t.Errorf("the supervisor is %s, %v", s.Status(), err)
					}
					_ = s.Stop(context.Background()) // it may say that the child was killed
					<-s.Gone()
				})
			})
		}
	}
}

// The next instance waits until a function that was killed has returned.
func TestBrutalKillLeavesNoSecondInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release := make(chan struct{})
		spec := worker.FuncSpec("a", func(context.Context) error {
			d.enter("a", 1)
			defer d.enter("a", -1)
			stubbornFunction(release)
			return nil
		})
		spec.StopTimeout = worker.BrutalKill
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec}})
		synctest.Wait()
		result := make(chan error, 1)
		go func() { result <- s.RestartChild(t.Context(), "a") }()
		time.Sleep(time.Hour)
		if c, _ := s.Child("a"); c.Status != worker.StatusPending || c.Exit.Status != worker.StatusKilled || !strings.Contains(c.Exit.Error, "stubbornFunction") {
			t.Errorf("it is %+v, %+v", c, c.Exit)
		}
		close(release)
		if err := <-result; err != nil {
			t.Error(err)
		}
		stop(t, s)
		<-s.Gone()
		if d.most != 1 {
			t.Errorf("%d at once", d.most)
		}
	})
}

// A factory must make a new worker each time. One that another owner has is refused, and
// goes on unharmed.
func TestFactoryReturnsTheWorkerOfAnotherOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := worker.NewFunc("a", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		spec := worker.Spec{Name: "a", New: func(string) (worker.Worker, error) { return shared, nil }}
		first := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec}})
		synctest.Wait()
		second := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec}})
		synctest.Wait()
		c, _ := second.Child("a")
		if c.Status != worker.StatusPending || !strings.Contains(c.Exit.Error, "make a: a supervisor already has the worker that New returned, want a new one from each call") {
			t.Errorf("at the second supervisor it is %+v, %+v", c, c.Exit)
		}
		stop(t, second)
		if shared.Status() != worker.StatusRunning || statuses(first.State()) != "a=Running" {
			t.Errorf("the second supervisor has touched it: it is %s", shared.Status())
		}
		stop(t, first)

		started := worker.NewFunc("a", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if err := started.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		spec.New = func(string) (worker.Worker, error) { return started, nil }
		third := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec}})
		if err := third.RestartChild(t.Context(), "a"); !errors.Is(err, worker.ErrNotStartable) || !strings.Contains(err.Error(), "the worker that New returned is Running") {
			t.Errorf("a worker that its maker has started: %v", err)
		}
		stop(t, third)
		if started.Status() != worker.StatusRunning {
			t.Errorf("the supervisor has touched it: it is %s", started.Status())
		}
		stop(t, started)
	})
}
