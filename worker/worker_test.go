package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

var errBoom = errors.New("boom")

// path runs a worker to its end and returns all its statuses in order.
func path(t *testing.T, w interface {
	worker.Worker
	Watch(int) *fsm.Subscription
}, during func(ctx context.Context, cancel context.CancelFunc)) string {
	t.Helper()
	sub := w.Watch(64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	during(ctx, cancel)
	<-w.Done()
	sub.Close()
	var states []string
	for e := range sub.All(t.Context()) {
		if e.Kind != worker.KindWorker {
			t.Errorf("event of kind %q", e.Kind)
		}
		states = append(states, e.To)
	}
	return strings.Join(states, " ")
}

func TestFuncPassesThroughTheStates(t *testing.T) {
	wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	start := func(w worker.Worker) func(context.Context, context.CancelFunc) {
		return func(ctx context.Context, _ context.CancelFunc) {
			if err := w.Start(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	stop := func(w worker.Worker) func(context.Context, context.CancelFunc) {
		return func(ctx context.Context, _ context.CancelFunc) {
			_ = w.Start(ctx)
			if err := w.Stop(ctx); err != nil {
				t.Errorf("Stop: %v", err)
			}
		}
	}
	tests := []struct {
		name string
		fn   func(context.Context) error
		run  func(worker.Worker) func(context.Context, context.CancelFunc)
		want string
		err  error
	}{
		{"done", func(context.Context) error { return nil }, start, "Starting Running Finished", nil},
		{"failed", func(context.Context) error { return errBoom }, start, "Starting Running Failed", errBoom},
		{"eof", func(context.Context) error { return io.EOF }, start, "Starting Running Failed", io.EOF},
		{"someone else's cancel", func(context.Context) error { return context.Canceled }, start, "Starting Running Failed", context.Canceled},
		{"panic", func(context.Context) error { panic(errBoom) }, start, "Starting Running Failed", errBoom},
		{"goexit", func(context.Context) error { runtime.Goexit(); return nil }, start, "Starting Running Failed", worker.ErrGoexit},
		{"stopped, returns its own cancel", wait, stop, "Starting Running Stopping Stopped", worker.ErrInterrupted},
		{"stopped, returns the cause", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, stop, "Starting Running Stopping Stopped", worker.ErrInterrupted},
		{"stopped, nil", func(ctx context.Context) error { <-ctx.Done(); return nil }, stop, "Starting Running Stopping Stopped", nil},
		{"stopped, then failed", func(ctx context.Context) error { <-ctx.Done(); return errBoom }, stop, "Starting Running Stopping Failed", errBoom},
		{"stopped, too late", func(ctx context.Context) error { <-ctx.Done(); return context.DeadlineExceeded }, stop, "Starting Running Stopping Failed", context.DeadlineExceeded},
		{"context cancelled", wait, func(w worker.Worker) func(context.Context, context.CancelFunc) {
			return func(ctx context.Context, cancel context.CancelFunc) { _ = w.Start(ctx); cancel() }
		}, "Starting Running Stopping Stopped", worker.ErrInterrupted},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := worker.NewFunc("w", test.fn)
				got := path(t, w, func(ctx context.Context, cancel context.CancelFunc) { test.run(w)(ctx, cancel) })
				if got != test.want {
					t.Errorf("went %q, want %q", got, test.want)
				}
				if err := w.Err(); !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
					t.Errorf("Err() = %v, want %v", err, test.err)
				}
				if w.State().Status != w.Status() || w.StopRequested() != strings.Contains(test.want, "Stopping") {
					t.Errorf("State %+v, StopRequested %v", w.State(), w.StopRequested())
				}
			})
		})
	}
}

func TestPanicCarriesNameAndStack(t *testing.T) {
	w := worker.NewFunc("parser", func(context.Context) error { panic("bad byte") })
	_ = w.Start(t.Context())
	<-w.Done()
	var p *worker.PanicError
	if !errors.As(w.Err(), &p) || p.Name != "parser" || p.Value != "bad byte" || !strings.Contains(string(p.Stack), "TestPanicCarriesNameAndStack") {
		t.Errorf("got %#v", w.Err())
	}
}

func TestStartConditionKeepsItStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worker.NewFunc("cache", func(ctx context.Context) error {
			time.Sleep(time.Second)
			worker.MarkStarted(ctx)
			worker.MarkStarted(ctx)
			inner := worker.NewFunc("inner", func(ctx context.Context) error {
				worker.MarkStarted(ctx) // must not mark the outer function
				return nil
			})
			_ = inner.Start(ctx)
			<-inner.Done()
			<-ctx.Done()
			return nil
		}, worker.WithStartCondition())
		_ = w.Start(t.Context())
		synctest.Wait()
		if got := w.Status(); got != worker.StatusStarting {
			t.Errorf("before its mark it is %s", got)
		}
		began := time.Now()
		if _, err := w.Await(t.Context(), func(s worker.Status) bool { return s == worker.StatusRunning }); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(began); got != time.Second {
			t.Errorf("it was running after %v, want 1s", got)
		}
		if got := w.StartedAt().Sub(began); got != time.Second {
			t.Errorf("StartedAt is %v after the start", got)
		}
		_ = w.Stop(t.Context())
		worker.MarkStarted(t.Context()) // a context of no worker
	})
}

func TestStopIsSafeAtAnyTime(t *testing.T) {
	t.Run("before Start", func(t *testing.T) {
		ran := false
		w := worker.NewFunc("w", func(context.Context) error { ran = true; return nil })
		for range 2 {
			if err := w.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := w.Start(t.Context()); !errors.Is(err, worker.ErrNotStartable) {
			t.Errorf("Start after Stop: %v", err)
		}
		if ran || w.Status() != worker.StatusStopped {
			t.Errorf("ran %v, status %s", ran, w.Status())
		}
	})
	t.Run("twice", func(t *testing.T) {
		w := worker.NewFunc("w", func(ctx context.Context) error { <-ctx.Done(); return nil })
		_ = w.Start(t.Context())
		if err := w.Start(t.Context()); !errors.Is(err, worker.ErrNotStartable) {
			t.Errorf("second Start: %v", err)
		}
		for range 3 {
			if err := w.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("from everywhere, against Start", func(t *testing.T) {
		for range 100 {
			w := worker.NewFunc("w", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					if i == 3 {
						_ = w.Start(context.Background())
					} else {
						_ = w.Stop(context.Background())
					}
				})
			}
			wg.Wait()
			if got := w.Status(); got != worker.StatusStopped {
				t.Fatalf("it is %s", got)
			}
		}
	})
}

func stubbornFunction(release <-chan struct{}) { <-release }

func TestStopAbandonsWhatWillNotReturn(t *testing.T) {
	for _, kind := range []string{"func", "restarter"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				fn := func(context.Context) error { stubbornFunction(release); return errBoom }
				var w worker.Worker = worker.NewFunc("stubborn", fn)
				if kind == "restarter" {
					w = worker.NewRestarter("stubborn", fn, worker.Backoff{})
				}
				_ = w.Start(t.Context())
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				began := time.Now()
				err := w.Stop(ctx)
				if got := time.Since(began); got != 3*time.Second {
					t.Errorf("Stop took %v, want its 3s", got)
				}
				var a *worker.AbandonedError
				if !errors.As(err, &a) || a.Name != "stubborn" || !strings.Contains(a.Where, "stubbornFunction") || !strings.Contains(a.Stack, "goroutine:\n") {
					t.Errorf("got %#v", err)
				}
				<-w.Done()
				if got := w.State(); got.Status != worker.StatusKilled || !strings.Contains(got.Error, "abandoned") {
					t.Errorf("it is %+v", got)
				}
				if err := w.Stop(ctx); !errors.As(err, &a) {
					t.Errorf("a second Stop says %v", err)
				}
				close(release) // a late return must change nothing
				synctest.Wait()
				if got := w.State().Status; got != worker.StatusKilled || errors.Is(w.Err(), errBoom) {
					t.Errorf("the late return changed the worker to %s, %v", got, w.Err())
				}
			})
		})
	}
}

func TestCompletionIsReplayable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := worker.NewFunc("w", func(context.Context) error { time.Sleep(time.Second); return errBoom })
		_ = w.Start(t.Context())
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				<-w.Done()
				if !errors.Is(w.Err(), errBoom) {
					t.Errorf("a waiter sees %v", w.Err())
				}
			})
		}
		wg.Wait()
		<-w.Done()
		if !errors.Is(w.Err(), errBoom) || w.DeriveFinalStatus() != worker.StatusFailed {
			t.Error("a late caller gets another answer")
		}
	})
}

func TestCauseSaysWhy(t *testing.T) {
	cause := make(chan error, 1)
	fn := func(ctx context.Context) error { <-ctx.Done(); cause <- context.Cause(ctx); return nil }
	w := worker.NewFunc("w", fn)
	_ = w.Start(t.Context())
	_ = w.Stop(t.Context())
	if got := <-cause; !errors.Is(got, worker.ErrStopRequested) {
		t.Errorf("after Stop the cause is %v", got)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	w = worker.NewFunc("w", fn)
	_ = w.Start(ctx)
	cancel(errBoom)
	if got := <-cause; !errors.Is(got, errBoom) {
		t.Errorf("after the context's cancel the cause is %v", got)
	}
	<-w.Done()
}

func TestTimeToStartIsNotUptime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := steady()
		b.ResetAfter = 10 * time.Second
		var at []time.Time
		r := worker.NewRestarter("r", func(ctx context.Context) error {
			at = append(at, time.Now())
			time.Sleep(time.Minute) // longer than ResetAfter, but it never started
			if len(at) == 4 {
				return worker.ErrDoNotRestart
			}
			return errBoom
		}, b, worker.WithStartCondition())
		_ = r.Start(t.Context())
		<-r.Done()
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			if got := at[i+1].Sub(at[i]) - time.Minute; got != want {
				t.Errorf("wait %d was %v, want %v", i, got, want)
			}
		}
	})
}

// The text of a function's context names the worker, and is read without a race.
func TestContextHasAName(t *testing.T) {
	s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{worker.FuncSpec("child", func(ctx context.Context) error {
		for range 100 {
			if text := fmt.Sprint(ctx); !strings.Contains(text, "child") {
				t.Errorf("it is %q", text)
			}
		}
		<-ctx.Done()
		return nil
	})}})
	stop(t, s)
}
