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

// steady returns a backoff without jitter.
func steady() worker.Backoff {
	return worker.Backoff{Min: time.Second, Max: 10 * time.Second, Jitter: worker.NoJitter, MaxRestarts: worker.NoLimit}
}

// starts runs fn in a Restarter until it ends and returns when each run began.
func starts(t *testing.T, b worker.Backoff, fn func(n int) error) ([]time.Duration, *worker.Restarter) {
	t.Helper()
	began, at := time.Now(), []time.Duration(nil)
	r := worker.NewRestarter("r", func(context.Context) error {
		at = append(at, time.Since(began))
		return fn(len(at))
	}, b)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-r.Done()
	return at, r
}

func TestRestarterWaitsLongerAfterEachFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at, r := starts(t, steady(), func(n int) error {
			if n == 7 {
				return nil
			}
			return errBoom
		})
		want := "[0s 1s 3s 7s 15s 25s 35s]" // 1, 2, 4, 8, then 10 at most
		if got := fmt.Sprint(at); got != want {
			t.Errorf("started at %s, want %s", got, want)
		}
		if s := r.State(); s.Status != worker.StatusFinished || s.Restarts != 6 || len(s.Children) != 1 || s.Children[0].Status != worker.StatusFinished {
			t.Errorf("it is %+v", s)
		}
	})
}

func TestRestarterForgivesOnlyAfterHealthyUptime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := steady()
		b.ResetAfter = time.Minute
		at, _ := starts(t, b, func(n int) error {
			switch n {
			case 3:
				time.Sleep(time.Minute - 1) // not long enough
			case 4:
				time.Sleep(time.Minute)
			case 5:
				return nil
			}
			return errBoom
		})
		for i, want := range []time.Duration{0, time.Second, 3 * time.Second, 3*time.Second + time.Minute - 1 + 4*time.Second, 7*time.Second + 2*time.Minute - 1 + time.Second} {
			if at[i] != want {
				t.Errorf("start %d at %v, want %v", i, at[i], want)
			}
		}
	})
}

func TestRestarterJitterStaysInBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := steady()
		b.Min, b.Max, b.Factor, b.Jitter = 10*time.Second, 20*time.Second, 1, 0.2
		at, _ := starts(t, b, func(n int) error {
			if n == 200 {
				return nil
			}
			return errBoom
		})
		moved := false
		for i := 1; i < len(at); i++ {
			d := at[i] - at[i-1]
			if d < 8*time.Second || d > 12*time.Second {
				t.Fatalf("wait %d was %v, want 8s to 12s", i, d)
			}
			moved = moved || d != 10*time.Second
		}
		if !moved {
			t.Error("every wait was the same: there is no jitter")
		}
	})
}

func TestRestarterGivesUpWhenTheBudgetIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := steady()
		b.MaxRestarts, b.Window = 3, time.Minute
		at, r := starts(t, b, func(int) error { return errBoom })
		if len(at) != 4 {
			t.Errorf("%d runs, want the first and 3 restarts", len(at))
		}
		if !errors.Is(r.Err(), worker.ErrRestartBudget) || !errors.Is(r.Err(), errBoom) || r.Status() != worker.StatusFailed {
			t.Errorf("it is %s: %v", r.Status(), r.Err())
		}
		// Restarts that are further apart than the window never add up.
		b.Window = 500 * time.Millisecond
		at, _ = starts(t, b, func(n int) error {
			if n == 20 {
				return nil
			}
			return errBoom
		})
		if len(at) != 20 {
			t.Errorf("%d runs, want 20", len(at))
		}
	})
}

func TestRestarterSentinels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tests := []struct {
			err    error
			status worker.Status
			want   error
		}{
			{fmt.Errorf("nothing left: %w", worker.ErrDoNotRestart), worker.StatusFinished, nil},
			{fmt.Errorf("disk is full: %w", worker.ErrTerminate), worker.StatusFailed, worker.ErrTerminate},
			{nil, worker.StatusFinished, nil},
		}
		for _, test := range tests {
			at, r := starts(t, steady(), func(int) error { return test.err })
			if len(at) != 1 || r.Status() != test.status || !errors.Is(r.Err(), test.want) || (r.Err() == nil) != (test.want == nil) {
				t.Errorf("%v: %d runs, %s, %v", test.err, len(at), r.Status(), r.Err())
			}
		}
	})
}

func TestRestarterRestartsAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at, _ := starts(t, steady(), func(n int) error {
			if n == 1 {
				panic("first")
			}
			return nil
		})
		if len(at) != 2 {
			t.Errorf("%d runs, want 2", len(at))
		}
	})
}

func TestRestarterShowsItsPendingChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := worker.NewRestarter("r", func(context.Context) error { return errBoom }, steady())
		_ = r.Start(t.Context())
		synctest.Wait()
		s := r.State()
		if s.Status != worker.StatusRunning || s.Children[0].Status != worker.StatusPending {
			t.Fatalf("it is %+v", s)
		}
		if c := s.Children[0]; !strings.Contains(c.Reason, "boom") || !c.Due.Equal(time.Now().Add(time.Second)) {
			t.Errorf("pending for %q until %v", c.Reason, c.Due)
		}
		began := time.Now()
		if err := r.Stop(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("Stop: %v after %v", err, time.Since(began))
		}
		// A failure that was about to be retried is not the result.
		if s := r.State(); s.Status != worker.StatusStopped || s.Children[0].Status != worker.StatusStopped || s.Error != "" {
			t.Errorf("it is %+v", s)
		}
	})
}

func TestHoldRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Log("a present run is the last one")
		fail := make(chan struct{})
		r := worker.NewRestarter("r", func(context.Context) error { <-fail; return errBoom }, steady())
		_ = r.Start(t.Context())
		r.HoldRestarts()
		r.HoldRestarts()
		synctest.Wait()
		if r.Status() != worker.StatusRunning {
			t.Fatalf("holding ended it: %s", r.Status())
		}
		close(fail)
		<-r.Done()
		if r.Status() != worker.StatusFailed || r.State().Restarts != 0 {
			t.Errorf("it is %+v", r.State())
		}

		t.Log("a run that waits never starts")
		r = worker.NewRestarter("r", func(context.Context) error { return errBoom }, steady())
		_ = r.Start(t.Context())
		synctest.Wait()
		r.HoldRestarts()
		<-r.Done()
		if r.Status() != worker.StatusStopped || r.State().Children[0].Status != worker.StatusStopped {
			t.Errorf("it is %+v", r.State())
		}
	})
}

func TestRestarterHasItsChildsOpinion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, fn := range map[string]func(context.Context) error{
			"stops":         func(ctx context.Context) error { <-ctx.Done(); return nil },
			"gives it back": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"fails":         func(ctx context.Context) error { <-ctx.Done(); return errBoom },
			"panics":        func(ctx context.Context) error { <-ctx.Done(); panic("late") },
			"hangs":         func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Hour); return nil },
		} {
			r := worker.NewRestarter("r", fn, steady())
			_ = r.Start(t.Context())
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_ = r.Stop(ctx)
			cancel()
			if s := r.State(); s.Status != s.Children[0].Status || !s.Status.Terminal() {
				t.Errorf("%s: restarter %s, child %s", name, s.Status, s.Children[0].Status)
			}
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestRestarterStopAgainstRestartRace(t *testing.T) {
	b := worker.Backoff{Min: time.Microsecond, Max: time.Microsecond, MaxRestarts: worker.NoLimit}
	for range 200 {
		r := worker.NewRestarter("r", func(context.Context) error { return errBoom }, b)
		_ = r.Start(context.Background())
		time.Sleep(10 * time.Microsecond)
		if err := r.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if s := r.State(); !s.Status.Terminal() || !s.Children[0].Status.Terminal() {
			t.Fatalf("after Stop it is %+v", s)
		}
	}
}

func TestBackoffValidateNamesTheField(t *testing.T) {
	if err := (worker.Backoff{}).Validate(); err != nil {
		t.Errorf("the zero backoff: %v", err)
	}
	if err := (worker.Backoff{Min: time.Hour}).Validate(); err != nil {
		t.Errorf("a Min above the default Max: %v", err)
	}
	for field, b := range map[string]worker.Backoff{
		"Min":         {Min: -1},
		"Max":         {Min: 2, Max: 1},
		"Factor":      {Factor: 0.5},
		"Jitter":      {Jitter: 1.5},
		"ResetAfter":  {ResetAfter: -1},
		"MaxRestarts": {MaxRestarts: -2},
		"Window":      {Window: -1},
	} {
		err := b.Validate()
		if err == nil || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: %v", field, err)
		}
		r := worker.NewRestarter("r", func(context.Context) error { return nil }, b)
		if err := r.Start(t.Context()); err == nil {
			t.Errorf("%s: a Restarter started with it", field)
		}
	}
}

func ExampleNewRestarter() {
	attempts := 0
	r := worker.NewRestarter("poller", func(context.Context) error {
		attempts++
		if attempts < 3 {
			return errors.New("connection refused")
		}
		return nil
	}, worker.Backoff{Min: time.Millisecond})
	_ = r.Start(context.Background())
	<-r.Done()
	fmt.Println(r.State().Status, "after", r.State().Restarts, "restarts")
	// Output: Finished after 2 restarts
}

func ExampleNewFunc() {
	w := worker.NewFunc("clock", func(ctx context.Context) error {
		<-ctx.Done() // work until asked to stop
		return ctx.Err()
	})
	_ = w.Start(context.Background())
	_ = w.Stop(context.Background())
	fmt.Println(w.Status(), "-", w.Err())
	// Output: Stopped - interrupted: context canceled
}

func BenchmarkFuncLife(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		w := worker.NewFunc("w", func(context.Context) error { return nil })
		_ = w.Start(context.Background())
		<-w.Done()
	}
}
