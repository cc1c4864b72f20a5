package worker_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Workers wait for cancelled work without polling. In a bubble, time passes only
// while every goroutine waits.
func TestWaitAfterACancelDoesNotSpin(t *testing.T) {
	release := make(chan struct{})
	deaf := func(context.Context) error { <-release; return nil }
	kinds := map[string]func() worker.Worker{
		"func":      func() worker.Worker { return worker.NewFunc("w", deaf) },
		"restarter": func() worker.Worker { return worker.NewRestarter("w", deaf, worker.Backoff{}) },
		"container": func() worker.Worker {
			e := newEngine()
			e.took = 2 * time.Hour
			return worker.NewContainer("w", e, worker.ContainerSpec{Image: "img"}, worker.WithContainerGrace(3*time.Hour))
		},
		"supervisor": func() worker.Worker {
			return worker.NewSupervisor("w", worker.SupervisorConfig{Children: []worker.Spec{{
				Name: "child", StopTimeout: 3 * time.Hour, New: func(name string) (worker.Worker, error) { return worker.NewFunc(name, deaf), nil },
			}}})
		},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release = make(chan struct{})
				ctx, cancel := context.WithCancel(context.Background())
				w := kind()
				if err := w.Start(ctx); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				cancel()
				time.Sleep(time.Hour)
				if s := w.State().Status; s != worker.StatusStopping {
					t.Errorf("an hour after the cancel it is %s", s)
				}
				close(release)
				<-w.Done()
			})
		})
	}
}

// A Stop that times out leaves the abandoned goroutine behind, and no goroutine
// of its own.
func TestHundredStopTimeoutsLeakNothing(t *testing.T) {
	release := make(chan struct{})
	deaf := func(context.Context) error { <-release; return nil }
	kinds := map[string]func() worker.Worker{
		"func":      func() worker.Worker { return worker.NewFunc("w", deaf) },
		"restarter": func() worker.Worker { return worker.NewRestarter("w", deaf, worker.Backoff{}) },
		"supervisor": func() worker.Worker {
			return worker.NewSupervisor("w", worker.SupervisorConfig{Children: []worker.Spec{worker.FuncSpec("child", deaf)}})
		},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release = make(chan struct{})
				w := kind()
				if err := w.Start(context.Background()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				before := runtime.NumGoroutine()
				for range 100 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					began := time.Now()
					var left *worker.AbandonedError
					if err := w.Stop(ctx); !errors.As(err, &left) || time.Since(began) > time.Second {
						t.Fatalf("Stop: %v, after %v", err, time.Since(began))
					}
					cancel()
				}
				synctest.Wait()
				if now := runtime.NumGoroutine(); now > before+3 { // the goroutines that wait for the abandoned function
					t.Errorf("%d goroutines before, %d after", before, now)
				}
				close(release)
			})
		})
	}
}

// Readers may come and go while workers change.
func TestWatchingAndChangingAtOnce(t *testing.T) {
	w := worker.NewRestarter("r", func(context.Context) error { return errBoom }, worker.Backoff{Min: 1, Max: 1, MaxRestarts: worker.NoLimit})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for i := range 200 {
				sub := w.Watch(i % 3)
				for range i % 2 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					if _, err := sub.Next(ctx); err != nil {
						t.Error(err)
					}
					cancel()
				}
				sub.Close()
				sub.Close()
			}
		})
	}
	readers.Wait()
	stop(t, w)
}
