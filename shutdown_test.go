package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

func TestShutdownRunsHooksLastInFirstOut(t *testing.T) {
	var order []string
	s := lifecycle.NewShutdown(nil)
	for _, name := range []string{"db", "cache", "server"} {
		s.Add(name, func(context.Context) error { order = append(order, name); return nil })
	}
	if err := s.Run(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	if got := strings.Join(order, " "); got != "server cache db" {
		t.Errorf("ran %s", got)
	}
}

func TestShutdownGoesOnAfterErrors(t *testing.T) {
	var ran []string
	s := lifecycle.NewShutdown(nil)
	s.Add("fine", func(context.Context) error { ran = append(ran, "fine"); return nil })
	s.Add("fails", func(context.Context) error { return errBoom })
	s.Add("panics", func(context.Context) error { panic("oh no") })
	s.Add("exits", func(context.Context) error { runtime.Goexit(); return nil })
	err := s.Run(t.Context(), time.Minute)
	wantErr(t, err, errBoom, "shutdown hook fails: boom", "shutdown hook panics: panic: oh no", "shutdown hook exits")
	wantErr(t, err, lifecycle.ErrGoexit)
	var p *lifecycle.PanicError
	if !errors.As(err, &p) || len(p.Stack) == 0 {
		t.Errorf("the panic has no stack: %v", err)
	}
	if len(ran) != 1 {
		t.Error("the hook behind them did not run")
	}
}

func TestShutdownRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		s := lifecycle.NewShutdown(nil)
		s.Add("h", func(context.Context) error { calls++; time.Sleep(time.Second); return errBoom })
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := s.Run(t.Context(), time.Minute); !errors.Is(err, errBoom) {
					t.Errorf("a Run returned %v", err)
				}
			})
		}
		wg.Wait()
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
}

func TestShutdownRefusesSenselessAndLateHooks(t *testing.T) {
	s := lifecycle.NewShutdown(nil)
	s.Add("", func(context.Context) error { return nil })
	s.Add("nil", nil)
	s.Add("adds", func(context.Context) error {
		s.Add("late", func(context.Context) error { t.Error("a late hook ran"); return nil })
		return nil
	})
	wantErr(t, s.Run(t.Context(), time.Minute), nil, "has no name", `"nil" has no function`, `"late" was added after`)
}

func TestShutdownContextIsDetachedWithDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "kept"))
		cancel()
		s := lifecycle.NewShutdown(nil)
		s.Add("h", func(ctx context.Context) error {
			deadline, ok := ctx.Deadline()
			if ctx.Err() != nil || ctx.Value(key{}) != "kept" || !ok || time.Until(deadline) != time.Minute {
				t.Errorf("err %v, value %v, %v left", ctx.Err(), ctx.Value(key{}), time.Until(deadline))
			}
			return nil
		})
		if err := s.Run(ctx, time.Minute); err != nil {
			t.Error(err)
		}
	})
}

// hooks runs hooks that take the given times, in this order. It returns the time that
// each hook had, how long all took, and the error.
func hooks(t *testing.T, grace time.Duration, obedient bool, minSlice time.Duration, takes ...time.Duration) (had []string, took time.Duration, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		began := time.Now()
		s := lifecycle.NewShutdown(nil)
		s.ReserveForEach(minSlice)
		for i := len(takes) - 1; i >= 0; i-- {
			s.Add(fmt.Sprint("h", i), func(ctx context.Context) error {
				deadline, _ := ctx.Deadline()
				mu.Lock()
				had = append(had, fmt.Sprintf("h%d at %v had %v", i, time.Since(began), time.Until(deadline)))
				mu.Unlock()
				timer := time.NewTimer(takes[i])
				defer timer.Stop()
				if !obedient {
					<-timer.C
					return nil
				}
				select {
				case <-timer.C:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}
		err = s.Run(t.Context(), grace)
		took = time.Since(began)
		time.Sleep(time.Hour) // until the abandoned hooks return
	})
	return had, took, err
}

func TestSlowHookCannotStarveTheOnesBehindIt(t *testing.T) {
	had, took, err := hooks(t, 10*time.Second, true, 2*time.Second,
		time.Hour, 500*time.Millisecond, time.Hour)
	want := "[h0 at 0s had 6s h1 at 6s had 2s h2 at 6.5s had 3.5s]"
	if got := fmt.Sprint(had); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	wantErr(t, err, context.DeadlineExceeded, "hook h0", "hook h2")
	if took != 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestHookThatIgnoresItsContextIsAbandoned(t *testing.T) {
	had, took, err := hooks(t, 10*time.Second, false, 2*time.Second, time.Hour/2, 0, 0)
	if len(had) != 3 {
		t.Errorf("ran %v", had)
	}
	wantErr(t, err, nil, "shutdown hook h0: did not return in time and was abandoned in ", "shutdown_test.go")
	if took > 7*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestWithoutMinSliceTheRestIsSkippedAndReported(t *testing.T) {
	had, took, err := hooks(t, 10*time.Second, true, 0, time.Hour, 0, 0)
	if got := fmt.Sprint(had); got != "[h0 at 0s had 10s]" {
		t.Errorf("got %s", got)
	}
	wantErr(t, err, lifecycle.ErrHookSkipped, "hook h1: skipped", "hook h2: skipped")
	if took != 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestAppKeepsASliceForEveryHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{ShutdownGrace: 8 * time.Second, HookSlice: 4 * time.Second, UnitSlice: time.Second, MinSlice: time.Second})
		r.Go("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(3 * time.Second); return nil })
		r.OnShutdown("db", func(context.Context) error { r.mark("db"); return nil }).
			OnShutdown("flush", func(ctx context.Context) error { <-ctx.Done(); r.mark("flush"); return ctx.Err() })
		r.signalAfter(time.Second, syscall.SIGTERM)
		wantErr(t, r.Run(t.Context()), context.DeadlineExceeded, "hook flush")
		r.wantTrail("8s flush", "8s db") // T0 is at 1s, 8 s of grace
		rep := r.Report()
		if len(rep.Hooks) != 2 || rep.Hooks[0].Result != lifecycle.ResultFailed || rep.Hooks[0].Took != 4*time.Second || rep.Hooks[1].Result != lifecycle.ResultOK {
			t.Errorf("the report says %v", rep.Hooks)
		}
	})
}

func ExampleShutdown() {
	s := lifecycle.NewShutdown(nil)
	s.Add("database", func(context.Context) error { fmt.Println("database closed"); return nil })
	s.Add("server", func(context.Context) error { fmt.Println("server stopped"); return errors.New("one request was cut") })
	fmt.Println(s.Run(context.Background(), 10*time.Second))
	// Output:
	// server stopped
	// database closed
	// shutdown hook server: one request was cut
}

func TestMinSliceThatDoesNotFitIsAnEqualShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lifecycle.NewShutdown(nil)
		s.ReserveForEach(10 * time.Second)
		var had []time.Duration
		for i := range 5 {
			s.Add(fmt.Sprint(i), func(ctx context.Context) error {
				end, _ := ctx.Deadline()
				had = append(had, time.Until(end))
				<-ctx.Done()
				return nil
			})
		}
		if err := s.Run(t.Context(), 30*time.Second); err != nil {
			t.Error(err)
		}
		for _, d := range had {
			if d != 6*time.Second {
				t.Errorf("of 30 s the five hooks had %v, want 6 s each", had)
				break
			}
		}
	})
}

// A log whose handler panics does not keep the hooks from running.
func TestShutdownOutlivesItsLog(t *testing.T) {
	var ran []string
	s := lifecycle.NewShutdown(slog.New(panickingHandler{slog.DiscardHandler}))
	s.Add("db", func(context.Context) error { ran = append(ran, "db"); return nil })
	s.Add("", nil)
	s.Add("server", func(context.Context) error { ran = append(ran, "server"); return errBoom })
	wantErr(t, s.Run(t.Context(), time.Minute), errBoom, "no name")
	s.Add("late", func(context.Context) error { return nil })
	if len(ran) != 2 {
		t.Errorf("ran %v, want both hooks", ran)
	}
}

type panickingHandler struct{ slog.Handler }

func (panickingHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (panickingHandler) Handle(context.Context, slog.Record) error { panic("no disk") }

func TestZeroShutdown(t *testing.T) {
	var s lifecycle.Shutdown
	ran := 0
	s.Add("db", func(context.Context) error { ran++; return errBoom })
	s.Add("", nil)
	for range 2 {
		wantErr(t, s.Run(t.Context(), time.Minute), errBoom, "db", "has no name")
	}
	if ran != 1 {
		t.Errorf("the hook ran %d times", ran)
	}
}
