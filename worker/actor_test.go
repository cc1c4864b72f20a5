package worker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func TestActorIsInterruptedOnceAndItsCloseIsClean(t *testing.T) {
	errClosed, errBoom := errors.New("closed by us"), errors.New("boom")
	for _, test := range []struct {
		name    string
		returns error
		want    worker.Status
	}{
		{"nil", nil, worker.StatusStopped},
		{"an error that the caller calls clean", errClosed, worker.StatusStopped},
		{"the cause", errBoom, worker.StatusStopped},
		{"any other error", errors.New("disk full"), worker.StatusFailed},
		{"a clean one and another", errors.Join(errClosed, errors.New("disk full")), worker.StatusFailed},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				quit, interrupts := make(chan struct{}), 0
				a := worker.NewActor("a", func() error { <-quit; return test.returns }, func(cause error) {
					if interrupts++; !errors.Is(cause, errBoom) {
						t.Errorf("the interrupt gets %v", cause)
					}
					close(quit)
				}, func() error { return errBoom }, errClosed)
				if err := a.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := a.Stop(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if interrupts != 1 || a.Status() != test.want {
					t.Errorf("%d interrupts, %s (%v), want 1 and %s", interrupts, a.Status(), a.Err(), test.want)
				}
			})
		})
	}
}

func TestActorThatIsNotStartedIsNotInterrupted(t *testing.T) {
	interrupted := func(error) { t.Error("interrupted") }
	a := worker.NewActor("a", func() error { return nil }, interrupted, nil)
	if err := a.Stop(t.Context()); err != nil || a.Status() != worker.StatusStopped {
		t.Errorf("%v, %s", err, a.Status())
	}
	without := worker.NewActor("without", nil, interrupted, nil)
	if err := without.Start(t.Context()); err == nil || without.Status() != worker.StatusFailed {
		t.Errorf("Start returned %v, it is %s", err, without.Status())
	}
}

func TestActorThatIgnoresItsInterruptIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quit := make(chan struct{})
		a := worker.NewActor("a", func() error { <-quit; return nil }, func(error) {}, nil)
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var abandoned *worker.AbandonedError
		if err := a.Stop(ctx); !errors.As(err, &abandoned) || a.Status() != worker.StatusKilled {
			t.Errorf("Stop returned %v, it is %s", err, a.Status())
		}
		close(quit)
		<-a.Gone()
	})
}

// A Stop beside a Start either prevents it or interrupts the function.
func TestActorIsInterruptedByAStopBesideItsStart(t *testing.T) {
	for range 10_000 {
		quit := make(chan struct{})
		a := worker.NewActor("a", func() error { <-quit; return nil }, func(error) { close(quit) }, nil)
		var both sync.WaitGroup
		both.Go(func() { _ = a.Start(context.Background()) })
		both.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := a.Stop(ctx); err != nil || a.Status() != worker.StatusStopped {
				t.Errorf("Stop returned %v, it is %s", err, a.Status())
			}
		})
		both.Wait()
		if t.Failed() {
			return
		}
	}
}

func TestSecondStopOfAnActorDoesNotWaitForTheInterruptOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quit := make(chan struct{})
		a := worker.NewActor("a", func() error { <-quit; return nil }, func(error) { <-quit }, nil)
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop := func(within time.Duration) (took time.Duration) {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			began := time.Now()
			if err := a.Stop(ctx); err == nil {
				t.Error("Stop returned nil, want the abandoned function")
			}
			return time.Since(began)
		}
		go stop(time.Hour)
		synctest.Wait()
		if took := stop(time.Second); took > 2*time.Second {
			t.Errorf("the second Stop took %v, and its context had a second", took)
		}
		close(quit)
		<-a.Gone()
	})
}
