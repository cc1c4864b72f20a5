package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// The event of a worker that waits for a restart says why, until when, and how often it
// has failed.
func TestBackoffIsATypedEvent(t *testing.T) {
	waits := map[string]func(fail func(context.Context) error) (worker.Worker, *fsm.Subscription){
		"supervisor": func(fail func(context.Context) error) (worker.Worker, *fsm.Subscription) {
			s := worker.NewSupervisor("tree", worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{worker.FuncSpec("a", fail)}})
			return s, s.Watch(64)
		},
		"restarter": func(fail func(context.Context) error) (worker.Worker, *fsm.Subscription) {
			r := worker.NewRestarter("a", fail, everySecond)
			return r, r.Watch(64)
		},
		"dynamic": func(fail func(context.Context) error) (worker.Worker, *fsm.Subscription) {
			d := worker.NewDynamic("tree", worker.DynamicConfig{Template: worker.Spec{Name: "a", Restart: worker.Always}, Backoff: everySecond}, func(ctx context.Context, _ int) error { return fail(ctx) })
			sub := d.Watch(64)
			go func() {
				_, _ = d.Await(context.Background(), func(s worker.Status) bool { return s == worker.StatusRunning })
				_, _ = d.Add(0)
			}()
			return d, sub
		},
	}
	for name, grow := range waits {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runs := 0
				w, sub := grow(func(ctx context.Context) error {
					if runs++; runs <= 3 {
						return fmt.Errorf("run %d: %w", runs, errBoom)
					}
					<-ctx.Done()
					return nil
				})
				if err := w.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				stop(t, w)
				seen, resumed := 0, 0
				for _, e := range drained(t, sub) {
					var wait *worker.BackoffError
					switch {
					case e.To == string(worker.StatusPending):
						seen++
						if !errors.As(e.Cause, &wait) || !strings.HasPrefix(wait.Name, "a") || wait.Wait != time.Second || !wait.Due.Equal(e.At.Add(time.Second)) || wait.Failures != seen ||
							!errors.Is(wait, errBoom) || wait.Error() != fmt.Sprintf("backoff after: run %d: boom", seen) {
							t.Errorf("wait %d: %+v, cause %T %v", seen, wait, e.Cause, e.Cause)
						}
					case e.From == string(worker.StatusPending) && e.To == string(worker.StatusStarting):
						resumed++
					case errors.As(e.Cause, &wait):
						t.Errorf("%s -> %s has a backoff as its cause", e.From, e.To)
					}
				}
				if seen != 3 || resumed != 3 {
					t.Errorf("%d waits, %d ends of a wait", seen, resumed)
				}
			})
		})
	}
}

// The event of a worker that did not stop in time is its change to Killed.
func TestStopTimeoutIsATypedEvent(t *testing.T) {
	t.Run("function", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			spec := worker.FuncSpec("a", func(context.Context) error { stubbornFunction(release); return nil })
			spec.StopTimeout = time.Second
			s := worker.NewSupervisor("tree", worker.SupervisorConfig{Children: []worker.Spec{spec}})
			sub := s.Watch(64)
			_ = s.Start(t.Context())
			synctest.Wait()
			_ = s.Stop(context.Background())
			close(release)
			<-s.Gone()
			var abandoned *worker.AbandonedError
			if cause := killed(t, sub, "a"); !errors.As(cause, &abandoned) || abandoned.Name != "a" || !strings.Contains(abandoned.Stack, "stubbornFunction") {
				t.Errorf("the cause is %T %v", cause, cause)
			}
		})
	})
	t.Run("process", func(t *testing.T) {
		out := newLines()
		p := worker.NewProcess("a", helperCommand("ignore", out), worker.WithGrace(10*time.Millisecond))
		sub := p.Watch(64)
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		out.await(t, "ready")
		_ = p.Stop(t.Context())
		<-p.Gone()
		var by *worker.KilledError
		var exit *exec.ExitError
		if cause := killed(t, sub, "a"); !errors.As(cause, &by) || by.Name != "a" || !errors.As(by, &exit) || !strings.HasPrefix(by.Error(), "a: did not stop when asked and was killed: ") {
			t.Errorf("the cause is %T %v", cause, cause)
		}
	})
}

// killed returns the cause of the event in which the named worker was Killed.
func killed(t *testing.T, sub *fsm.Subscription, name string) error {
	t.Helper()
	for _, e := range drained(t, sub) {
		if e.Name == name && e.To == string(worker.StatusKilled) {
			return e.Cause
		}
	}
	t.Fatalf("%s was not killed", name)
	return nil
}

// panicsIn runs in a helper process.
func panicsIn(kind string) {
	kind, option, _ := strings.Cut(kind, ":")
	through := option != "caught"
	var opts []worker.FuncOption
	if through {
		opts = []worker.FuncOption{worker.PassThroughPanics()}
	}
	fn := func(context.Context) error { panicking(); return nil }
	cfg := worker.SupervisorConfig{PassThroughPanics: through, Children: []worker.Spec{worker.FuncSpec("a", fn)}}
	var w worker.Worker
	switch kind {
	case "func":
		w = worker.NewFunc("a", fn, opts...)
	case "goexit":
		w = worker.NewFunc("a", func(context.Context) error { runtime.Goexit(); return nil }, opts...)
	case "restarter":
		w = worker.NewRestarter("a", fn, worker.Backoff{Min: time.Millisecond, MaxRestarts: 1}, opts...)
	case "supervised":
		w = worker.NewSupervisor("tree", cfg)
	case "restarter in a tree":
		cfg.Children = []worker.Spec{{Name: "a", New: func(name string) (worker.Worker, error) {
			return worker.NewRestarter(name, fn, worker.Backoff{}), nil
		}}}
		w = worker.NewSupervisor("tree", cfg)
	case "dynamic":
		w = worker.NewDynamic("tree", worker.DynamicConfig{PassThroughPanics: through}, func(ctx context.Context, _ int) error { return fn(ctx) })
	}
	sub := w.(interface {
		Watch(buffer int) *fsm.Subscription
	}).Watch(64)
	if err := w.Start(context.Background()); err != nil {
		fmt.Println(err)
	}
	if d, ok := w.(*worker.Dynamic[int]); ok {
		_, _ = d.Add(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for e := range sub.All(ctx) {
		if e.To == string(worker.StatusFailed) {
			return
		}
	}
}

//go:noinline
func panicking() { panic("out of order") }

func TestPassThroughPanics(t *testing.T) {
	for _, kind := range []string{"func", "restarter", "supervised", "restarter in a tree", "dynamic"} {
		t.Run(kind, func(t *testing.T) {
			out, err := helperCommand("panics:"+kind, nil).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Fatalf("it ended with %v: %s", err, out)
			}
			for _, want := range []string{"panic: out of order", "goroutine ", "worker_test.panicking("} {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in %s", want, out)
				}
			}
			if strings.Contains(string(out), "goes on") {
				t.Errorf("it went on: %s", out)
			}
			if out, err := helperCommand("panics:"+kind+":caught", nil).CombinedOutput(); err != nil || !strings.Contains(string(out), "goes on") {
				t.Errorf("without the option: %v, %s", err, out)
			}
		})
	}
	t.Run("Goexit is no panic", func(t *testing.T) {
		out, err := helperCommand("panics:goexit", nil).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "goes on") {
			t.Errorf("%v, %s", err, out)
		}
	})
}

// A panic of a function that waits for the end of a worker ends neither the process nor the
// functions that wait with it.
func TestFunctionOfOnEndThatPanics(t *testing.T) {
	w := worker.NewFunc("f", func(context.Context) error { return nil })
	var told []string
	w.OnEnd(func() { told = append(told, "first") })
	w.OnEnd(func() { panic("boom") })
	called := make(chan struct{})
	w.OnEnd(func() {
		told = append(told, "last")
		close(called)
	})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-called:
	case <-time.After(time.Minute):
		t.Fatal("the last function was not called")
	}
	w.OnEnd(func() { panic("late") })
	if w.Status() != worker.StatusFinished || len(told) != 2 {
		t.Errorf("it is %s, and told %v", w.Status(), told)
	}
}
