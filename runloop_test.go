package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

var quiet = slog.New(slog.DiscardHandler)

// ticks runs a loop for d in a bubble and returns when its ticks began, in
// seconds.
func ticks(t *testing.T, d, interval time.Duration, fn func(n int) error, opts ...LoopOption) (at []float64, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		err = RunLoop(ctx, interval, func(context.Context) error {
			at = append(at, time.Since(began).Seconds())
			return fn(len(at))
		}, append([]LoopOption{WithLoopLogger(quiet)}, opts...)...)
	})
	return at, err
}

func TestRunLoopCountsTheIntervalFromTheEndOfATick(t *testing.T) {
	at, err := ticks(t, 9500*time.Millisecond, time.Second, func(int) error {
		time.Sleep(2 * time.Second) // two intervals: ticks must not overlap or come in a burst
		return nil
	})
	if want := []float64{1, 4, 7}; !slices.Equal(at, want) || err != nil {
		t.Errorf("ticks at %v, error %v; want %v and nil", at, err, want)
	}
}

func TestRunLoopImmediateTick(t *testing.T) {
	at, err := ticks(t, 2500*time.Millisecond, time.Second, func(int) error { return nil }, WithImmediateTick())
	if want := []float64{0, 1, 2}; !slices.Equal(at, want) || err != nil {
		t.Errorf("ticks at %v, error %v; want %v and nil", at, err, want)
	}
}

func TestRunLoopBacksOffAndResets(t *testing.T) {
	boom := errors.New("boom")
	at, err := ticks(t, 39500*time.Millisecond, time.Second, func(n int) error {
		if n <= 5 || n == 7 {
			return boom
		}
		return nil
	}, WithBackoff(10*time.Second), WithImmediateTick())
	// 2, 4, 8, 10, 10 after the five errors, 1 after the success, 2 after the
	// next error, 1 from then on.
	want := []float64{0, 2, 6, 14, 24, 34, 35, 37, 38, 39}
	if !slices.Equal(at, want) || err != nil {
		t.Errorf("ticks at %v, error %v; want %v and nil", at, err, want)
	}
}

func TestRunLoopWithoutBackoffKeepsTheInterval(t *testing.T) {
	at, err := ticks(t, 3500*time.Millisecond, time.Second, func(int) error { return errors.New("boom") })
	if want := []float64{1, 2, 3}; !slices.Equal(at, want) || err != nil {
		t.Errorf("ticks at %v, error %v; want %v and nil", at, err, want)
	}
}

func TestRunLoopBackoffDoesNotOverflow(t *testing.T) {
	l := &loop{interval: math.MaxInt64/2 + 1, maxDelay: math.MaxInt64}
	if got := l.backoff(l.interval); got != math.MaxInt64 {
		t.Errorf("backoff is %v, want the maximum", got)
	}
}

func TestRunLoopStopOnError(t *testing.T) {
	boom := errors.New("boom")
	at, err := ticks(t, time.Minute, time.Second, func(n int) error {
		if n == 3 {
			return boom
		}
		return nil
	}, WithStopOnError())
	if len(at) != 3 || err != boom { //nolint:errorlint // the same value, not wrapped
		t.Errorf("%d ticks, error %v; want 3 and the tick's own error", len(at), err)
	}
}

func TestRunLoopStopsDuringTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		time.AfterFunc(time.Second, func() { cancel(errors.New("SIGTERM")) })
		if err := RunLoop(ctx, time.Hour, func(context.Context) error { return nil }); err != nil {
			t.Errorf("a cancelled loop returned %v, want nil", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("stopped after %v, want 1s", took)
		}
	})
}

func TestRunLoopDoesNotTickUnderADoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // both the timer and the context are ready
		err := RunLoop(ctx, 1, func(context.Context) error {
			t.Error("a tick under a context that was done")
			return nil
		}, WithImmediateTick())
		if err != nil {
			t.Fatalf("returned %v, want nil", err)
		}
	}
}

func TestRunLoopCancelledDuringATick(t *testing.T) {
	cause, flush := errors.New("SIGTERM"), errors.New("flush failed")
	for name, tc := range map[string]struct{ err, want error }{
		"nil":           {nil, nil},
		"context error": {fmt.Errorf("query: %w", context.Canceled), nil},
		"cause":         {cause, nil},
		"own error":     {flush, flush},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				returned := false
				err := RunLoop(ctx, time.Second, func(ctx context.Context) error {
					cancel(cause)
					time.Sleep(time.Second) // the loop waits for its tick
					returned = true
					return tc.err
				}, WithStopOnError())
				if !returned {
					t.Error("the loop returned before its tick")
				}
				if err != tc.want { //nolint:errorlint // the same value, not wrapped
					t.Errorf("returned %v, want %v", err, tc.want)
				}
			})
		})
	}
}

func TestRunLoopPanicAndGoexitAreErrorsOfTheTick(t *testing.T) {
	at, err := ticks(t, time.Minute, time.Second, func(n int) error {
		switch n {
		case 1:
			panic("boom")
		case 2:
			runtime.Goexit()
		}
		return errors.New("third")
	}, WithBackoff(8*time.Second))
	if want := []float64{1, 3, 7, 15, 23, 31, 39, 47, 55}; !slices.Equal(at, want) || err != nil {
		t.Errorf("ticks at %v, error %v; want %v and nil: both count as errors", at, err, want)
	}
	_, err = ticks(t, time.Minute, time.Second, func(int) error { panic("boom") }, WithStopOnError())
	if p := new(call.PanicError); !errors.As(err, &p) || p.Value != "boom" || len(p.Stack) == 0 {
		t.Errorf("returned %v, want a panic error with its stack", err)
	}
	_, err = ticks(t, time.Minute, time.Second, func(int) error { runtime.Goexit(); return nil }, WithStopOnError())
	if !errors.Is(err, call.ErrGoexit) {
		t.Errorf("returned %v, want ErrGoexit", err)
	}
}

func TestRunLoopLogsErrorsAndTheRecovery(t *testing.T) {
	var buf bytes.Buffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	_, _ = ticks(t, 10*time.Second, time.Second, func(n int) error {
		if n == 1 {
			return errors.New("boom")
		}
		return nil
	}, WithLoopLogger(log), WithBackoff(time.Minute))
	for _, want := range []string{"loop tick failed", "error=boom", "next_in=2s", "succeeded again"} {
		if strings.Count(buf.String(), want) != 1 {
			t.Errorf("the log has not exactly one %q:\n%s", want, buf.String())
		}
	}
}

func TestRunLoopTellsAllFaults(t *testing.T) {
	err := RunLoop(t.Context(), 0, nil, nil)
	for _, want := range []string{"the interval is 0s, want more than 0", "the function is nil", "option 1 is nil"} {
		if err == nil || strings.Count(err.Error(), "lifecycle: invalid loop: "+want) != 1 {
			t.Errorf("the error does not say once %q: %v", want, err)
		}
	}
}

func TestRunLoopRefuses(t *testing.T) {
	called := func(context.Context) error { t.Error("called"); return nil }
	for name, err := range map[string]error{
		"zero interval":     RunLoop(t.Context(), 0, called, WithImmediateTick()),
		"negative interval": RunLoop(t.Context(), -time.Second, called, WithImmediateTick()),
		"nil function":      RunLoop(t.Context(), time.Second, nil),
		"nil option":        RunLoop(t.Context(), time.Second, called, nil),
		"low maximum":       RunLoop(t.Context(), time.Second, called, WithImmediateTick(), WithBackoff(time.Millisecond)),
	} {
		if !errors.Is(err, ErrInvalidLoop) {
			t.Errorf("%s: %v, want ErrInvalidLoop", name, err)
		}
	}
}
