package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// restarter starts a Restarter whose runs return what end gives, and nil or an error when
// their context ends.
func restarter(t *testing.T, b worker.Backoff, end <-chan error, onStop error) (r *worker.Restarter, live, runs *atomic.Int64) {
	t.Helper()
	live, runs = new(atomic.Int64), new(atomic.Int64)
	r = worker.NewRestarter("r", func(ctx context.Context) error {
		runs.Add(1)
		defer live.Add(-1)
		if live.Add(1) > 1 {
			t.Error("two runs at the same time")
		}
		select {
		case <-ctx.Done():
			return onStop
		case err := <-end:
			return err
		}
	}, b)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return r, live, runs
}

// Restart begins the next run without a wait, with each result of the run, and leaves the
// budget alone.
func TestRestarterRestartsOnRequest(t *testing.T) {
	for what, onStop := range map[string]error{"nil": nil, "the context's error": context.Canceled, "an error": errBoom} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := steady()
				b.MaxRestarts, b.Window = 1, time.Hour
				end := make(chan error)
				r, live, runs := restarter(t, b, end, onStop)
				began := time.Now()
				for range 5 { // more than the budget
					if err := r.Restart(t.Context()); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if s := r.State(); s.Status != worker.StatusRunning || s.Restarts != 5 || s.Reason != "" || runs.Load() != 6 || live.Load() != 1 || time.Since(began) != 0 {
					t.Errorf("after %v: %d runs, %d live, %+v", time.Since(began), runs.Load(), live.Load(), s)
				}
				// A failure of its own waits, and Restart ends the wait.
				end <- errBoom
				synctest.Wait()
				if s := r.State(); s.Children[0].Status != worker.StatusPending || !s.Due.Equal(time.Now().Add(time.Second)) {
					t.Errorf("after a failure it is %+v", s)
				}
				err := r.Restart(t.Context())
				synctest.Wait()
				if err != nil || runs.Load() != 7 || time.Since(began) != 0 {
					t.Errorf("while it waits: %v, %d runs", err, runs.Load())
				}
				_ = r.Stop(t.Context())
				if err := r.Restart(t.Context()); !errors.Is(err, worker.ErrNotRestartable) || !strings.Contains(err.Error(), string(r.Status())) {
					t.Errorf("after the stop: %v", err)
				}
			})
		})
	}
}

// A function that has its reasons to end still ends.
func TestRestartKeepsTheLastWord(t *testing.T) {
	for _, word := range []error{worker.ErrDoNotRestart, worker.ErrTerminate} {
		synctest.Test(t, func(t *testing.T) {
			r, _, runs := restarter(t, steady(), nil, word)
			if err := r.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "ended in place of a restart") {
				t.Errorf("%v: Restart returns %v", word, err)
			}
			if !r.Status().Terminal() || runs.Load() != 1 {
				t.Errorf("%v: it is %s after %d runs", word, r.Status(), runs.Load())
			}
		})
	}
}

// A run that does not return keeps the next one from beginning; when it returns, the next
// one begins, also after the caller has gone.
func TestRestartWaitsForTheFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		r := worker.NewRestarter("r", func(ctx context.Context) error {
			if runs.Add(1) == 1 {
				<-ctx.Done()
				time.Sleep(time.Hour)
				return nil
			}
			<-ctx.Done()
			return nil
		}, steady())
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Restart(ctx); !errors.Is(err, context.DeadlineExceeded) || runs.Load() != 1 {
			t.Errorf("while the function does not return: %v, %d runs", err, runs.Load())
		}
		if s := r.State(); s.Status != worker.StatusRunning || s.Children[0].Status != worker.StatusStopping {
			t.Errorf("meanwhile it is %+v", s)
		}
		time.Sleep(2 * time.Hour)
		if s := r.State(); runs.Load() != 2 || s.Restarts != 1 || s.Children[0].Status != worker.StatusRunning {
			t.Errorf("in the end %d runs: %+v", runs.Load(), s)
		}
		stop(t, r)
	})
}

// Once the App drains nothing begins any more.
func TestRestartAfterHoldRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, runs := restarter(t, steady(), nil, nil)
		r.HoldRestarts()
		if err := r.Restart(t.Context()); !errors.Is(err, worker.ErrNotRestartable) || runs.Load() != 1 || r.Status() != worker.StatusRunning {
			t.Errorf("got %v, %d runs, %s", err, runs.Load(), r.Status())
		}
		stop(t, r)
		if err := worker.NewRestarter("new", nil, steady()).Restart(t.Context()); !errors.Is(err, worker.ErrNotRestartable) {
			t.Errorf("before Start: %v", err)
		}
	})
}

// The drain may begin while a run ends for a restart: it is then the last one.
func TestHoldRestartsDuringARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		r := worker.NewRestarter("r", func(ctx context.Context) error {
			runs.Add(1)
			<-ctx.Done()
			time.Sleep(time.Minute)
			return nil
		}, steady())
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		result := make(chan error, 1)
		go func() { result <- r.Restart(t.Context()) }()
		time.Sleep(time.Second)
		r.HoldRestarts()
		if err := <-result; err == nil || runs.Load() != 1 || !r.Status().Terminal() || r.Err() != nil {
			t.Errorf("got %v, %d runs, %s, %v", err, runs.Load(), r.Status(), r.Err())
		}
	})
}

// A path leads to a function, or to a child of a supervisor at any depth.
func TestRestartUnitByItsPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		inner := d.child("leaf", nil)
		tree := worker.Spec{Name: "inner", New: func(name string) (worker.Worker, error) {
			return worker.NewSupervisor(name, worker.SupervisorConfig{Children: []worker.Spec{inner}}), nil
		}}
		slow := worker.FuncSpec("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return nil })
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{d.child("a", nil), tree, slow}})
		synctest.Wait()
		d.take()
		for path, want := range map[string]string{"s/a": "-a +a", "s/inner/leaf": "-leaf +leaf", "s/inner": "-leaf +leaf"} {
			if err := worker.RestartUnit(t.Context(), s, "s", path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			synctest.Wait()
			if got := d.take(); got != want {
				t.Errorf("%s: %q, want %q", path, got, want)
			}
		}
		for path, want := range map[string]error{"s": worker.ErrNotRestartable, "": worker.ErrNoChild, "a": worker.ErrNoChild, "s/b": worker.ErrNoChild, "s/a/x": worker.ErrNoChild, "s/inner/x": worker.ErrNoChild, "s/inner/leaf/x": worker.ErrNoChild} {
			if err := worker.RestartUnit(t.Context(), s, "s", path); !errors.Is(err, want) {
				t.Errorf("%q: %v, want %v", path, err, want)
			}
		}
		go func() { _ = s.StopChild(context.Background(), "slow") }()
		synctest.Wait()
		if err := worker.RestartUnit(t.Context(), s, "s", "s/slow"); !errors.Is(err, worker.ErrNotRestartable) || !strings.Contains(err.Error(), "Stopping already") {
			t.Errorf("while it stops: %v", err)
		}
		stop(t, s)
		if err := worker.RestartUnit(t.Context(), s, "s", "s/a"); !errors.Is(err, worker.ErrSupervisorEnded) {
			t.Errorf("after the end: %v", err)
		}
		f := worker.NewFunc("f", func(context.Context) error { return nil })
		if err := worker.RestartUnit(t.Context(), f, "f", "f"); !errors.Is(err, worker.ErrNotRestartable) || !strings.Contains(err.Error(), "nothing supervises it") {
			t.Errorf("a function: %v", err)
		}
		r, _, _ := restarter(t, steady(), nil, nil)
		if err := worker.RestartUnit(t.Context(), r, "r", "r/r"); !errors.Is(err, worker.ErrNotRestartable) || !strings.Contains(err.Error(), "restart that") {
			t.Errorf("a run: %v", err)
		}
		stop(t, r)
	})
}

// Restarts at the moment at which a run ends by itself end no worker.
func TestRestartsBesideCrashes(t *testing.T) {
	crash := make(chan struct{})
	r := worker.NewRestarter("r", func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-crash:
			return errBoom
		}
	}, worker.Backoff{Min: time.Microsecond, Max: time.Microsecond, MaxRestarts: worker.NoLimit})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	over := make(chan struct{})
	all.Go(func() {
		for {
			select {
			case crash <- struct{}{}:
			case <-over:
				return
			}
		}
	})
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 2000 {
				_ = r.Restart(t.Context()) // a run that crashes at once is an error
			}
		})
	}
	callers.Wait()
	close(over)
	all.Wait()
	if s := r.Status(); s.Terminal() {
		t.Errorf("the worker is %s: %v", s, r.Err())
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
