package worker_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func TestChildrenStartInOrderAndStopInReverse(t *testing.T) {
	for _, by := range []string{"Stop", "context"} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				slow := d.child("b", nil)
				inner := slow.New
				slow.New = func(name string) (worker.Worker, error) {
					time.Sleep(time.Second) // c waits for b
					return inner(name)
				}
				s := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{d.child("a", nil), slow, d.child("c", nil)}})
				ctx, cancel := context.WithCancelCause(t.Context())
				if err := s.Start(ctx); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if got := d.take(); got != "+a" || s.Status() != worker.StatusStarting {
					t.Errorf("at once %q, it is %s", got, s.Status())
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := d.take(); got != "+b +c" || s.Status() != worker.StatusRunning {
					t.Errorf("then %q, it is %s", got, s.Status())
				}
				if by == "Stop" {
					stop(t, s)
				} else {
					cancel(errBoom)
				}
				<-s.Done()
				if got := d.take(); got != "-c -b -a" {
					t.Errorf("stopped %q", got)
				}
				if got := s.State(); got.Status != worker.StatusStopped || statuses(got) != "a=Stopped b=Stopped c=Stopped" {
					t.Errorf("it is %+v", got)
				}
				cancel(nil)
			})
		})
	}
}

func TestRemoveAndAddOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", end), d.child("b", nil)}})
		if err := s.Add(d.child("a", nil)); !errors.Is(err, worker.ErrNameTaken) {
			t.Errorf("Add of a name that a child has: %v", err)
		}
		synctest.Wait()
		end <- errBoom // then call Remove during the backoff
		synctest.Wait()
		sub := s.Watch(16)
		if err := s.Remove(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if err := s.Remove(t.Context(), "a"); !errors.Is(err, worker.ErrNoChild) {
			t.Errorf("Remove again: %v", err)
		}
		if err := s.Add(d.child("a", nil)); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := d.take(); got != "+a +b !a +a" || d.most != 1 {
			t.Errorf("%q, %d at once", got, d.most)
		}
		if e, _ := sub.Next(t.Context()); e.From != "Pending" || e.To != "Stopped" {
			t.Errorf("the pending one went %s -> %s", e.From, e.To)
		}
		if got := statuses(s.State()); got != "b=Running a=Running" {
			t.Errorf("it is %s", got)
		}
		if err := s.Remove(t.Context(), "b"); err != nil || d.take() != "-b" {
			t.Errorf("Remove of a running child: %v", err)
		}
		sub.Close()
		stop(t, s)
		if err := s.Remove(t.Context(), "a"); !errors.Is(err, worker.ErrSupervisorEnded) {
			t.Errorf("Remove after the end: %v", err)
		}
	})
}

func TestNeverBesideAnAbandonedInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release := make(chan struct{})
		stubborn := worker.FuncSpec("a", func(context.Context) error {
			d.enter("a", 1)
			defer d.enter("a", -1)
			d.note("+a")
			stubbornFunction(release)
			return nil
		})
		stubborn.StopTimeout = 3 * time.Second
		end := make(chan error)
		s := supervise(t, worker.SupervisorConfig{Strategy: worker.OneForAll, Backoff: everySecond, Children: []worker.Spec{stubborn, d.child("b", end)}})
		synctest.Wait()
		end <- errBoom
		time.Sleep(time.Hour)
		synctest.Wait()
		got := s.State()
		if statuses(got) != "a=Pending b=Pending" || got.Children[0].Exit.Status != worker.StatusKilled {
			t.Errorf("it is %s, %+v", statuses(got), got.Children[0])
		}
		if err := s.Remove(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if err := s.Add(stubborn); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := s.State(); statuses(got) != "b=Running a=Pending" || d.most != 1 {
			t.Errorf("after Remove and Add it is %s, %d at once", statuses(got), d.most)
		}
		close(release)
		synctest.Wait()
		if got := d.take(); d.most != 1 || !strings.Contains(got, "!b +b +a") {
			t.Errorf("%q, %d at once", got, d.most)
		}
		stop(t, s)
	})
}

func TestStopOfATreeIsBoundedAndNamesStuckChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release := make(chan struct{})
		stubborn := worker.FuncSpec("stubborn", func(context.Context) error { stubbornFunction(release); return nil })
		stubborn.StopTimeout = time.Hour
		tree := worker.Spec{Name: "inner", New: func(name string) (worker.Worker, error) {
			return worker.NewSupervisor(name, worker.SupervisorConfig{Children: []worker.Spec{d.child("a", nil), stubborn}}), nil
		}}
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{d.child("b", nil), tree, d.child("c", nil)}})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		err := s.Stop(ctx)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Stop took %v", took)
		}
		var left *worker.AbandonedError
		if !errors.As(err, &left) || !strings.Contains(err.Error(), "stubborn") || !strings.Contains(err.Error(), "stubbornFunction") {
			t.Errorf("Stop: %v", err)
		}
		synctest.Wait() // the Stop of each level ends at the same instant
		got := s.State()
		if got.Status != worker.StatusKilled || statuses(got) != "b=Stopped inner=Killed c=Stopped" || statuses(got.Children[1]) != "a=Stopped stubborn=Killed" {
			t.Errorf("it is %s: %s: %s", got.Status, statuses(got), statuses(got.Children[1]))
		}
		select {
		case <-s.Gone():
			t.Error("the supervisor is gone while a function runs")
		default:
		}
		close(release)
		<-s.Gone()
	})
}

// Under an App the end of the context arrives before Stop with its deadline. A child that is
// stopping by then still leaves half of the time for those before it, on every level.
func TestDeadlineThatComesAfterTheStopHasBegun(t *testing.T) {
	asked := func(together bool) (after time.Duration) {
		release := make(chan struct{})
		defer close(release)
		var began time.Time
		patient := worker.FuncSpec("patient", func(ctx context.Context) error {
			<-ctx.Done()
			after = time.Since(began)
			return nil
		})
		stubborn := worker.FuncSpec("stubborn", func(context.Context) error { stubbornFunction(release); return nil })
		stubborn.StopTimeout = time.Hour
		inner := worker.Spec{Name: "inner", New: func(name string) (worker.Worker, error) {
			cfg := worker.SupervisorConfig{StopTogether: together, Children: []worker.Spec{patient, stubborn}}
			return worker.NewSupervisor(name, cfg), nil
		}}
		s := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{inner}})
		ctx, cancel := context.WithCancel(context.Background())
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		began = time.Now()
		cancel()
		synctest.Wait()
		stopping, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var left *worker.AbandonedError
		if err := s.Stop(stopping); !errors.As(err, &left) || time.Since(began) > 10*time.Second {
			t.Errorf("together %v: Stop returned %v after %v", together, err, time.Since(began))
		}
		return after
	}
	synctest.Test(t, func(t *testing.T) {
		if got := asked(false); got < 4*time.Second || got > 6*time.Second {
			t.Errorf("the patient child was asked after %v, want about half of 10s", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if got := asked(true); got != 0 {
			t.Errorf("together, the patient child was asked after %v, want 0s", got)
		}
	})
}

// A child that is done leaves its part of the time to those that live.
func TestLastChildThatLivesHasTheWholeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := worker.FuncSpec("done", func(context.Context) error { return nil })
		done.Restart = worker.OnFailure
		slow := worker.FuncSpec("slow", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(8 * time.Second)
			return nil
		})
		slow.StopTimeout = time.Hour
		s := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{done, slow}})
		if err := s.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stopping, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Stop(stopping); err != nil {
			t.Errorf("Stop returned %v, want nil: the slow child needs 8s of 10s", err)
		}
		<-s.Gone()
	})
}

// If the supervisor held a lock during a child's Stop, State would have to wait.
func TestStateDoesNotWaitForAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		slow := worker.FuncSpec("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(5 * time.Second); return nil })
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{d.child("a", nil), slow}})
		synctest.Wait()
		go s.Stop(context.Background())
		synctest.Wait()
		began := time.Now()
		if got := s.State(); got.Status != worker.StatusStopping || statuses(got) != "a=Running slow=Stopping" || time.Since(began) != 0 {
			t.Errorf("after %v it is %s: %s", time.Since(began), got.Status, statuses(got))
		}
		<-s.Done()
	})
}

func TestSupervisorStopStartStop(t *testing.T) {
	s := worker.NewSupervisor("tree", worker.SupervisorConfig{})
	stop(t, s)
	if err := s.Start(t.Context()); !errors.Is(err, worker.ErrNotStartable) {
		t.Errorf("Start after Stop: %v", err)
	}
	stop(t, s)
	var wg sync.WaitGroup
	for range 50 {
		var d diary
		s := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{d.child("a", nil)}})
		for i := range 4 {
			wg.Go(func() {
				if i == 2 {
					_ = s.Start(context.Background())
				} else {
					_ = s.Stop(context.Background())
				}
			})
		}
		wg.Wait()
		if s.Status() != worker.StatusStopped {
			t.Fatalf("it is %s, %v", s.Status(), s.Err())
		}
	}
}

func TestSupervisorConfigIsValidated(t *testing.T) {
	ok := worker.FuncSpec("a", func(context.Context) error { return nil })
	with := func(change func(*worker.Spec)) worker.SupervisorConfig {
		spec := ok
		change(&spec)
		return worker.SupervisorConfig{Children: []worker.Spec{spec}}
	}
	tests := map[string]struct {
		cfg  worker.SupervisorConfig
		says string
	}{
		"name twice":   {worker.SupervisorConfig{Children: []worker.Spec{ok, ok}}, `child "a": there is a child of that name`},
		"no name":      {with(func(s *worker.Spec) { s.Name = "" }), "name is empty"},
		"no factory":   {with(func(s *worker.Spec) { s.New = nil }), "New is nil"},
		"strategy":     {worker.SupervisorConfig{Strategy: "some-for-some"}, `want "one-for-one"`},
		"policy":       {with(func(s *worker.Spec) { s.Restart = "sometimes" }), `want "always"`},
		"backoff":      {worker.SupervisorConfig{Backoff: worker.Backoff{Min: -1}}, "Min is -1ns"},
		"child budget": {with(func(s *worker.Spec) { s.Backoff.MaxRestarts = 3 }), "belong to the supervisor's"},
		"timeout":      {with(func(s *worker.Spec) { s.StopTimeout = -5 }), "StopTimeout is -5ns, want more than 0, NoLimit or BrutalKill"},
		"period":       {with(func(s *worker.Spec) { s.ProbePeriod = -5 }), "ProbePeriod"},
		"unhealthy":    {with(func(s *worker.Spec) { s.RestartUnhealthy = -5 }), "RestartUnhealthy"},

		"temporary and unhealthy":   {with(func(s *worker.Spec) { s.Restart, s.RestartUnhealthy = worker.Temporary, 3 }), `child "a": RestartUnhealthy is 3, but a Temporary child is never restarted`},
		"temporary and backoff":     {with(func(s *worker.Spec) { s.Restart, s.Backoff.Min = worker.Temporary, 1 }), `child "a": it has a Backoff, but a Temporary child is never restarted`},
		"auto shutdown":             {worker.SupervisorConfig{AutoShutdown: "sometimes"}, `AutoShutdown is "sometimes", want "never"`},
		"significant without use":   {with(func(s *worker.Spec) { s.Restart, s.Significant = worker.OnFailure, true }), `child "a": it is Significant, but its supervisor's AutoShutdown is "never"; want`},
		"significant and permanent": {with(func(s *worker.Spec) { s.Significant = true }), `child "a": it is Significant, but is restarted after every end; want a Restart of "on-failure"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := worker.NewSupervisor("tree", test.cfg)
			err := s.Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.says) || s.Status() != worker.StatusFailed {
				t.Errorf("Start: %v, it is %s", err, s.Status())
			}
		})
	}
	var d diary
	s := worker.NewSupervisor("tree", worker.SupervisorConfig{})
	if err := s.Add(d.child("a", nil)); err != nil {
		t.Error(err)
	}
	if err := s.Add(d.child("a", nil)); !errors.Is(err, worker.ErrNameTaken) {
		t.Errorf("Add twice: %v", err)
	}
	if err := s.Add(worker.Spec{Name: "b"}); err == nil {
		t.Error("Add of a spec without New")
	}
	if err := s.Add(d.child("b", nil)); err != nil {
		t.Error(err)
	}
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Error(err)
	}
	_, _ = s.Await(t.Context(), func(s worker.Status) bool { return s == worker.StatusRunning })
	stop(t, s)
	if statuses(s.State()) != "b=Stopped" {
		t.Errorf("it is %s", statuses(s.State()))
	}
}

func TestProcessesInATree(t *testing.T) {
	out := newLines()
	backoff := worker.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	s := supervise(t, worker.SupervisorConfig{Backoff: backoff, Children: []worker.Spec{
		worker.CommandSpec("child", func() *exec.Cmd { return helperCommand("handover", out) }),
	}})
	out.await(t, "second: previous exit 5, restarts 1")
	stop(t, s)
	got := s.State().Children[0]
	if got.Status != worker.StatusStopped || got.Kind != "process" || got.Restarts != 1 || got.PID == 0 {
		t.Errorf("it is %+v", got)
	}
}
