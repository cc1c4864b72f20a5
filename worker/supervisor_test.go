package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// diary notes what happens to children, in order.
type diary struct {
	mu   sync.Mutex
	text []string
	live map[string]int
	most int // instances of one name at once
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text = append(d.text, fmt.Sprintf(format, args...))
}

func (d *diary) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := strings.Join(d.text, " ")
	d.text = nil
	return text
}

func (d *diary) enter(name string, by int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.live == nil {
		d.live = make(map[string]int)
	}
	d.live[name] += by
	d.most = max(d.most, d.live[name])
}

// child is a spec whose function runs until it is stopped, or ends with what is
// sent to end.
func (d *diary) child(name string, end <-chan error) worker.Spec {
	fn := func(ctx context.Context) error {
		d.enter(name, 1)
		defer d.enter(name, -1)
		select {
		case <-ctx.Done():
			d.note("-%s", name)
			return ctx.Err()
		case err := <-end:
			d.note("!%s", name)
			return err
		}
	}
	return worker.Spec{Name: name, New: func(name string) (worker.Worker, error) {
		d.note("+%s", name)
		return worker.NewFunc(name, fn), nil
	}}
}

func supervise(t *testing.T, cfg worker.SupervisorConfig) *worker.Supervisor {
	t.Helper()
	s := worker.NewSupervisor("tree", cfg)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

var everySecond = worker.Backoff{Min: time.Second, Max: time.Second, Jitter: worker.NoJitter}

func stop(t *testing.T, w worker.Worker) {
	t.Helper()
	if err := w.Stop(context.Background()); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

func statuses(s worker.State) string {
	var b []string
	for _, c := range s.Children {
		b = append(b, c.Name+"="+string(c.Status))
	}
	return strings.Join(b, " ")
}

func TestChildrenStartInOrderAndStopInReverse(t *testing.T) {
	for _, by := range []string{"Stop", "context"} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				slow := d.child("b", nil)
				inner := slow.New
				slow.New = func(name string) (worker.Worker, error) {
					time.Sleep(time.Second) // c waits for it
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

func TestRestartIntensityStopsEverybodyAndFails(t *testing.T) {
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
		for range 50 { // one in 31 s is what it allows for ever
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

func TestFailedFactoryIsAFailedStart(t *testing.T) {
	for kind, fail := range map[string]func(string) (worker.Worker, error){
		"error":      func(string) (worker.Worker, error) { return nil, errBoom },
		"nil":        func(string) (worker.Worker, error) { return nil, nil },
		"typed nil":  func(string) (worker.Worker, error) { var f *worker.Func; return f, nil },
		"panic":      func(string) (worker.Worker, error) { panic(errBoom) },
		"wrong name": func(string) (worker.Worker, error) { return worker.NewFunc("other", nil), nil },
		"used": func(name string) (worker.Worker, error) {
			w := worker.NewFunc(name, func(context.Context) error { return nil })
			return w, w.Stop(context.Background())
		},
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				good, calls := d.child("a", nil), 0
				spec := worker.Spec{Name: "a", New: func(name string) (worker.Worker, error) {
					if calls++; calls < 3 {
						return fail(name)
					}
					return good.New(name)
				}}
				s := worker.NewSupervisor("tree", worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec, d.child("b", nil)}})
				sub := s.Watch(64)
				_ = s.Start(t.Context())
				synctest.Wait()
				if got := s.State(); statuses(got) != "a=Pending b=Running" || got.Status != worker.StatusRunning || got.Children[0].Exit == nil || got.Children[0].Exit.Error == "" {
					t.Errorf("it is %s, %s, %+v", got.Status, statuses(got), got.Children[0])
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if got := s.State(); statuses(got) != "a=Running b=Running" || got.Children[0].Restarts != 2 {
					t.Errorf("it is %s, %+v", statuses(got), got.Children[0])
				}
				stop(t, s)
				sub.Close()
				onlyTableEdges(t, sub)
			})
		})
	}
	t.Run("for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{{Name: "a", New: func(string) (worker.Worker, error) { return nil, errBoom }}}})
			<-s.Done()
			if !errors.Is(s.Err(), worker.ErrRestartIntensity) || !errors.Is(s.Err(), errBoom) {
				t.Errorf("it ended with %v", s.Err())
			}
		})
	})
}

// onlyTableEdges holds all events against the table. An instance begins in
// Created.
func onlyTableEdges(t *testing.T, sub *fsm.Subscription) {
	t.Helper()
	table := worker.Transitions()
	for e := range sub.All(context.Background()) {
		if e.IsGap() {
			t.Fatal("the reader missed events")
		}
		if !table.IsValidTransition(worker.Status(e.From), worker.Status(e.To)) {
			t.Errorf("%s went %s -> %s", e.Name, e.From, e.To)
		}
	}
}

func TestBlockedFactoryHoldsUpNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release, calls := make(chan struct{}), 0
		good := d.child("a", nil)
		spec := worker.Spec{Name: "a", StartTimeout: 2 * time.Second, New: func(name string) (worker.Worker, error) {
			if calls++; calls == 1 {
				<-release
			}
			return good.New(name)
		}}
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{spec, d.child("b", nil)}})
		time.Sleep(time.Second)
		synctest.Wait()
		if got := statuses(s.State()); got != "a=Created b=Created" {
			t.Errorf("in order: %s", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got := s.State()
		if statuses(got) != "a=Pending b=Running" || !strings.Contains(got.Children[0].Reason, "has not returned") || calls != 1 {
			t.Errorf("it is %s, %+v, %d calls", statuses(got), got.Children[0], calls)
		}
		close(release) // what it made late is never started; a new one is
		time.Sleep(time.Second)
		synctest.Wait()
		if got := s.State(); statuses(got) != "a=Running b=Running" || calls != 2 || d.take() != "+b +a +a" {
			t.Errorf("it is %s, %d calls", statuses(got), calls)
		}
		stop(t, s)
	})
}

func TestStopWhileAFactoryBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		made := worker.NewFunc("a", func(context.Context) error { t.Error("it was started"); return nil })
		s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{{Name: "a", New: func(string) (worker.Worker, error) {
			<-release
			return made, nil
		}}}})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		_ = s.Stop(ctx)
		if took := time.Since(began); took > 10*time.Second || !s.Status().Terminal() {
			t.Errorf("Stop took %v, it is %s", took, s.Status())
		}
		close(release)
		<-s.Gone()
		if made.Status() != worker.StatusStopped {
			t.Errorf("what came late is %s", made.Status())
		}
	})
}

func TestRemoveAndAddOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", end), d.child("b", nil)}})
		if err := s.Add(d.child("a", nil)); !errors.Is(err, worker.ErrNameTaken) {
			t.Errorf("Add of a name that is there: %v", err)
		}
		synctest.Wait()
		end <- errBoom // then Remove during the backoff
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
			t.Errorf("Remove of one that runs: %v", err)
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

func TestStopOfATreeIsBoundedAndNamesWhoStays(t *testing.T) {
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
		got := s.State()
		if got.Status != worker.StatusKilled || statuses(got) != "b=Stopped inner=Killed c=Stopped" || statuses(got.Children[1]) != "a=Stopped stubborn=Killed" {
			t.Errorf("it is %s: %s: %s", got.Status, statuses(got), statuses(got.Children[1]))
		}
		select {
		case <-s.Gone():
			t.Error("it is gone while a function of it runs")
		default:
		}
		close(release)
		<-s.Gone()
	})
}

// A lock held across a child's Stop would make State wait for it.
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
		"timeout":      {with(func(s *worker.Spec) { s.StopTimeout = -1 }), "StopTimeout"},
		"period":       {with(func(s *worker.Spec) { s.ProbePeriod = -5 }), "ProbePeriod"},
		"unhealthy":    {with(func(s *worker.Spec) { s.RestartUnhealthy = -5 }), "RestartUnhealthy"},
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

func TestHandoverBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []worker.Handover
		fn := func(ctx context.Context) error {
			h, ok := worker.HandoverFrom(ctx)
			if !ok {
				t.Error("nothing was handed over")
			}
			got = append(got, h)
			return errBoom
		}
		backoff := everySecond
		backoff.MaxRestarts = 3
		var first []worker.Handover
		for range 2 {
			// A tree that is made anew hands the same session down.
			ctx := worker.WithHandover(t.Context(), worker.Handover{Session: "outer"})
			s := worker.NewSupervisor("tree", worker.SupervisorConfig{Backoff: backoff, Children: []worker.Spec{worker.FuncSpec("a", fn)}})
			_ = s.Start(ctx)
			<-s.Done()
			if len(got) != 4 {
				t.Fatalf("%d instances", len(got))
			}
			for i, h := range got {
				if h.Session == "" || h.Session != got[0].Session || h.Restarts != i || (h.Previous == nil) != (i == 0) {
					t.Errorf("instance %d got %+v", i, h)
				}
				if i > 0 && (h.Previous.Status != worker.StatusFailed || h.Previous.Error != "boom") {
					t.Errorf("instance %d got %+v", i, h.Previous)
				}
			}
			if first != nil && first[0].Session != got[0].Session {
				t.Error("another session")
			}
			first, got = got, nil
		}
	})
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

// One cause that ends two children at once is one restart.
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
