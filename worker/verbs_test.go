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

// A child that StopChild has stopped keeps its place, its name and its spec.
func TestStopChildKeepsTheSpec(t *testing.T) {
	for _, strategy := range []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne} {
		t.Run(string(strategy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				end := make(chan error)
				s := supervise(t, worker.SupervisorConfig{Strategy: strategy, Backoff: everySecond, Children: []worker.Spec{d.child("a", end), d.child("b", nil), d.child("c", nil)}})
				synctest.Wait()
				d.take()
				for range 2 { // the second finds it stopped
					if err := s.StopChild(t.Context(), "b"); err != nil {
						t.Fatal(err)
					}
				}
				if got := statuses(s.State()); got != "a=Running b=Stopped c=Running" || d.take() != "-b" {
					t.Errorf("it is %s", got)
				}
				if err := s.Add(d.child("b", nil)); !errors.Is(err, worker.ErrNameTaken) {
					t.Errorf("Add of its name: %v", err)
				}
				end <- errBoom // it is not started again with others
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := statuses(s.State()); got != "a=Running b=Stopped c=Running" || strings.Contains(d.take(), "b") {
					t.Errorf("after the restart of a it is %s", got)
				}
				if err := s.RestartChild(t.Context(), "b"); err != nil {
					t.Fatal(err)
				}
				if got := statuses(s.State()); got != "a=Running b=Running c=Running" || d.take() != "+b" {
					t.Errorf("in the end it is %s", got)
				}
				stop(t, s)
				if got := d.take(); got != "-c -b -a" {
					t.Errorf("it kept its place, but the stop is %q", got)
				}
			})
		})
	}
}

func TestStopChildEndsTheWaitForARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", end)}})
		end <- errBoom
		synctest.Wait()
		if err := s.StopChild(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := statuses(s.State()); got != "a=Stopped" || d.take() != "+a !a" {
			t.Errorf("it is %s", got)
		}
		// The factory of a start in progress is given up.
		spec := d.child("slow", nil)
		inner := spec.New
		spec.New = func(name string) (worker.Worker, error) { time.Sleep(time.Hour); return inner(name) }
		spec.StartTimeout, spec.StopTimeout = 2*time.Hour, time.Second
		if err := s.Add(spec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		began := time.Now()
		if err := s.StopChild(t.Context(), "slow"); err != nil || time.Since(began) != time.Second {
			t.Errorf("StopChild of a starting child took %v, %v", time.Since(began), err)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if got := d.take(); got != "+slow" || d.most != 1 || d.live["slow"] != 0 {
			t.Errorf("%q, %d at once", got, d.most)
		}
		stop(t, s)
	})
}

// The history forgets children that are done, and none that was stopped by name.
func TestStoppedChildIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		done := worker.FuncSpec("done", func(context.Context) error { return nil })
		done.Restart = worker.Never
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{d.child("stopped", nil), done}})
		synctest.Wait()
		for _, name := range []string{"stopped", "done"} {
			if err := s.StopChild(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 3000 {
			spec := worker.FuncSpec(fmt.Sprint("n", i), func(context.Context) error { return nil })
			spec.Restart = worker.Never
			if err := s.Add(spec); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if c, ok := s.Child("stopped"); !ok || c.Status != worker.StatusStopped {
			t.Errorf("the stopped one is %+v, %v", c, ok)
		}
		if c, ok := s.Child("done"); !ok || c.Status != worker.StatusFinished {
			t.Errorf("the finished one that was stopped by name is %+v, %v", c, ok)
		}
		if _, ok := s.Child("n0"); ok {
			t.Error("one that is done is still there")
		}
		stop(t, s)
	})
}

// RestartChild starts a child in every state, and needs no policy for it.
func TestRestartChild(t *testing.T) {
	for _, policy := range []worker.Restart{worker.Always, worker.OnFailure, worker.Never} {
		for before, prepare := range map[string]func(t *testing.T, s *worker.Supervisor, end chan<- error){
			"running": func(*testing.T, *worker.Supervisor, chan<- error) {},
			"ended":   func(_ *testing.T, _ *worker.Supervisor, end chan<- error) { end <- worker.ErrDoNotRestart },
			"failed":  func(_ *testing.T, _ *worker.Supervisor, end chan<- error) { end <- errBoom },
			"stopped": func(t *testing.T, s *worker.Supervisor, _ chan<- error) { _ = s.StopChild(t.Context(), "a") },
		} {
			t.Run(fmt.Sprint(policy, "/", before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var d diary
					end := make(chan error)
					spec := d.child("a", end)
					spec.Restart = policy
					s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec, d.child("b", nil)}})
					synctest.Wait()
					prepare(t, s, end)
					synctest.Wait()
					began := time.Now()
					if err := s.RestartChild(t.Context(), "a"); err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // until its function has begun
					if got := statuses(s.State()); got != "a=Running b=Running" || d.most != 1 || d.live["a"] != 1 || !time.Now().Equal(began) {
						t.Errorf("it is %s, %d at once, after %v", got, d.most, time.Since(began))
					}
					if c, _ := s.Child("a"); c.Restarts != 1 || c.Exit == nil {
						t.Errorf("a is %+v", c)
					}
					stop(t, s)
				})
			})
		}
	}
}

func TestRestartChildTellsOfAFailedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		var fails atomic.Bool
		good := d.child("a", nil)
		spec := worker.Spec{Name: "a", New: func(name string) (worker.Worker, error) {
			if fails.Load() {
				return nil, errBoom
			}
			return good.New(name)
		}}
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec}})
		synctest.Wait()
		d.take() // its first start
		fails.Store(true)
		if err := s.RestartChild(t.Context(), "a"); !errors.Is(err, errBoom) {
			t.Errorf("RestartChild: %v", err)
		}
		fails.Store(false)
		time.Sleep(time.Second) // its policy tries again
		synctest.Wait()
		if got := statuses(s.State()); got != "a=Running" || d.take() != "-a +a" {
			t.Errorf("it is %s", got)
		}
		stop(t, s)
	})
}

// Every caller of a verb gets an answer when another verb, or the end of the supervisor,
// crosses it.
func TestVerbsThatCross(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		slow := d.child("slow", nil)
		inner := slow.New
		slow.New = func(name string) (worker.Worker, error) { time.Sleep(30 * time.Second); return inner(name) }
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{d.child("a", nil)}})
		if err := s.Add(slow); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cross := func(first, second func(context.Context, string) error, want error) {
			t.Helper()
			result := make(chan error, 1)
			go func() { result <- first(t.Context(), "slow") }()
			synctest.Wait()
			if err := second(t.Context(), "slow"); err != nil {
				t.Errorf("the second verb: %v", err)
			}
			if err := <-result; (err == nil) != (want == nil) || want != nil && !strings.Contains(err.Error(), want.Error()) {
				t.Errorf("the first verb: %v, want %v", err, want)
			}
		}
		cross(s.RestartChild, s.RestartChild, nil)
		cross(s.RestartChild, s.StopChild, errors.New("stopped before it started"))
		cross(s.RestartChild, s.Remove, errors.New("stopped before it started"))
		if err := s.Add(slow); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		cross(s.StopChild, s.RestartChild, nil)
		cross(s.RestartChild, func(ctx context.Context, _ string) error { return s.Stop(ctx) }, errors.New(""))
		for verb, call := range map[string]func(context.Context, string) error{"stop": s.StopChild, "restart": s.RestartChild} {
			if err := call(t.Context(), "a"); !errors.Is(err, worker.ErrSupervisorEnded) {
				t.Errorf("%s after the end: %v", verb, err)
			}
		}
		<-s.Gone() // a factory sleeps
	})
}

func TestVerbsNameWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		s := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{d.child("a", nil)}})
		for verb, call := range map[string]func(context.Context, string) error{"stop": s.StopChild, "restart": s.RestartChild} {
			if err := call(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), verb+" child a of tree: the supervisor does not run: it is Created") {
				t.Errorf("%s before Start: %v", verb, err)
			}
		}
		if err := s.Replace(d.child("b", nil)); !errors.Is(err, worker.ErrNoChild) {
			t.Errorf("Replace before Start: %v", err)
		}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for verb, err := range map[string]error{
			"stop child b of tree":    s.StopChild(t.Context(), "b"),
			"restart child b of tree": s.RestartChild(t.Context(), "b"),
			"replace child b of tree": s.Replace(d.child("b", nil)),
		} {
			if !errors.Is(err, worker.ErrNoChild) || !strings.Contains(err.Error(), verb) {
				t.Errorf("%s: %v", verb, err)
			}
		}
		if err := s.Replace(worker.Spec{Name: "a"}); err == nil || !strings.Contains(err.Error(), "New is nil") {
			t.Errorf("Replace by a spec without New: %v", err)
		}
		if _, ok := s.Child("b"); ok {
			t.Error("there is a child b")
		}
		if _, ok := s.ChildSpec("b"); ok {
			t.Error("there is a spec of b")
		}
		s.HoldRestarts()
		if err := s.RestartChild(t.Context(), "a"); !errors.Is(err, worker.ErrSupervisorEnded) {
			t.Errorf("restart while it drains: %v", err)
		}
		stop(t, s)
	})
}

// Replace leaves the instance alone; the policy holds at once, New from the next start.
func TestReplaceWhileTheChildRuns(t *testing.T) {
	for _, when := range []string{"before Start", "at the next start", "at once"} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				end := make(chan error)
				s := worker.NewSupervisor("tree", worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", end)}})
				started := func() {
					if err := s.Start(t.Context()); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if when != "before Start" {
					started()
				}
				next := worker.FuncSpec("a", func(ctx context.Context) error {
					d.note("+new")
					<-ctx.Done()
					return nil
				})
				next.Restart = worker.OnFailure
				if err := s.Replace(next); err != nil {
					t.Fatal(err)
				}
				if spec, ok := s.ChildSpec("a"); !ok || spec.Restart != worker.OnFailure || spec.StartTimeout != time.Minute {
					t.Errorf("the spec is %+v, %v", spec, ok)
				}
				want := "+a !a +new"
				switch when {
				case "before Start":
					started()
					want = "+new"
				case "at the next start":
					end <- errBoom
					time.Sleep(time.Second)
				default:
					if err := s.RestartChild(t.Context(), "a"); err != nil {
						t.Fatal(err)
					}
					want = "+a -a +new"
				}
				synctest.Wait()
				if got := d.take(); got != want {
					t.Errorf("%q, want %q", got, want)
				}
				stop(t, s)
			})
		})
	}
	t.Run("policy", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var d diary
			end := make(chan error)
			s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{d.child("a", end)}})
			synctest.Wait()
			next := d.child("a", end)
			next.Restart = worker.Temporary
			if err := s.Replace(next); err != nil {
				t.Fatal(err)
			}
			end <- errBoom
			synctest.Wait()
			if got := s.State().Children; len(got) != 0 {
				t.Errorf("it has %+v", got)
			}
			stop(t, s)
		})
	})
}

func TestCountsAndChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		tree := worker.Spec{Name: "tree", New: func(name string) (worker.Worker, error) {
			return worker.NewSupervisor(name, worker.SupervisorConfig{Children: []worker.Spec{d.child("x", nil), d.child("y", nil)}}), nil
		}}
		end := make(chan error)
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", nil), tree, d.child("b", end), d.child("c", nil)}})
		synctest.Wait()
		if got := s.Counts(); got != (worker.Counts{Specs: 4, Active: 4, Supervisors: 1, Workers: 3}) {
			t.Errorf("%+v", got)
		}
		end <- errBoom
		synctest.Wait() // until b waits for its restart
		_ = s.StopChild(t.Context(), "c")
		_ = s.StopChild(t.Context(), "tree")
		if got := s.Counts(); got != (worker.Counts{Specs: 4, Active: 1, Supervisors: 1, Workers: 3}) {
			t.Errorf("%+v", got)
		}
		for _, want := range s.State().Children {
			if got, ok := s.Child(want.Name); !ok || got.Name != want.Name || got.Status != want.Status || len(got.Children) != len(want.Children) {
				t.Errorf("%s is %+v, want %+v", want.Name, got, want)
			}
		}
		stop(t, s)
	})
}

// answers returns what a verb has returned, and fails the test when it has not.
func answers(t *testing.T, what string, reply <-chan error) error {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-reply:
		return err
	default:
		t.Errorf("%s does not return", what)
		return nil
	}
}

func ask(verb func() error) <-chan error {
	reply := make(chan error, 1)
	go func() { reply <- verb() }()
	synctest.Wait()
	return reply
}

// The verbs of a supervisor that has ended do not wait for a function that was abandoned.
func TestVerbsAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		spec := worker.FuncSpec("a", func(context.Context) error { <-free; return nil })
		spec.StopTimeout = time.Second
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec}})
		_ = s.Stop(t.Context())
		<-s.Done()
		for what, verb := range map[string]func() error{
			"StopChild":    func() error { return s.StopChild(context.Background(), "a") },
			"Remove":       func() error { return s.Remove(context.Background(), "a") },
			"RestartChild": func() error { return s.RestartChild(context.Background(), "a") },
			"Replace":      func() error { return s.Replace(spec) },
			"Add":          func() error { return s.Add(spec) },
		} {
			if err := answers(t, what, ask(verb)); !errors.Is(err, worker.ErrSupervisorEnded) {
				t.Errorf("%s: %v", what, err)
			}
		}
		close(free)
		<-s.Gone()
	})
}

// StopChild returns when the child has stopped, also when another caller has it started
// again and that start has to wait.
func TestStopChildBesideRestartChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := worker.FuncSpec("a", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return nil })
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec}})
		synctest.Wait()
		stopped := ask(func() error { return s.StopChild(context.Background(), "a") })
		restarted := ask(func() error { return s.RestartChild(context.Background(), "a") })
		s.HoldRestarts()
		time.Sleep(time.Minute)
		if err := answers(t, "StopChild", stopped); err != nil {
			t.Error(err)
		}
		if err := answers(t, "RestartChild", restarted); !errors.Is(err, worker.ErrSupervisorEnded) {
			t.Error(err)
		}
		stop(t, s)
	})
}
