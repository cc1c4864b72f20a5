package call_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result runs fn by Go and returns what done got.
func result(t *testing.T, fn func() error) error {
	t.Helper()
	done := make(chan error, 2)
	call.Go("unit", fn, func(err error) { done <- err })
	err := <-done
	select {
	case again := <-done:
		t.Errorf("done was called again, with %v", again)
	default:
	}
	return err
}

// evil is a value that panics when it is printed.
type evil struct{}

func (evil) Error() string { panic("in Error") }

func TestEveryEndOfAFunctionIsAnError(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name     string
		fn       func() error
		is       error // errors.Is
		panicked bool
		text     string // in the message
	}{
		{name: "nil", fn: func() error { return nil }},
		{name: "error", fn: func() error { return boom }, is: boom, text: "boom"},
		{name: "panic", fn: func() error { panic("ouch") }, panicked: true, text: "unit: panic: ouch"},
		{name: "panic with an error", fn: func() error { panic(boom) }, is: boom, panicked: true, text: "unit: panic: boom"},
		{name: "panic with nil", fn: func() error { panic(nil) }, panicked: true, text: "nil"}, //nolint:govet // that is the test
		{name: "runtime error", fn: func() error { m := map[bool]map[int]int{}; m[true][1] = 1; return nil }, panicked: true, text: "nil map"},
		{name: "unprintable panic", fn: func() error { panic(evil{}) }, panicked: true, text: "PANIC"},
		{name: "Goexit", fn: func() error { runtime.Goexit(); return nil }, is: call.ErrGoexit, text: "unit: called runtime.Goexit"},
		{name: "Goexit while it panics", fn: func() error { defer runtime.Goexit(); panic("ouch") }, is: call.ErrGoexit},
		{name: "panic while it exits", fn: func() error { defer func() { panic("late") }(); runtime.Goexit(); return nil }, panicked: true, text: "late"},
		{name: "panic while it panics", fn: func() error { defer func() { panic("second") }(); panic("first") }, panicked: true, text: "second"},
		{name: "panic with EOF, which is a value that means an end", fn: func() error { panic(io.EOF) }, is: io.EOF, panicked: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := result(t, c.fn)
			if (err == nil) != (c.is == nil && !c.panicked) {
				t.Fatalf("got %v", err)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
			var panicked *call.PanicError
			if errors.As(err, &panicked) != c.panicked {
				t.Fatalf("%#v: a PanicError is %v", err, c.panicked)
			}
			if err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%q does not say %q", err, c.text)
			}
			if c.panicked && (panicked.Name != "unit" || !strings.Contains(string(panicked.Stack), "call_test.go")) {
				t.Errorf("name %q, stack\n%s", panicked.Name, panicked.Stack)
			}
		})
	}
}

func TestDoReturnsPanicsAndErrors(t *testing.T) {
	if err := call.Do("x", func() error { return io.EOF }); err != io.EOF { //nolint:errorlint // the very same
		t.Errorf("got %v", err)
	}
	var panicked *call.PanicError
	if err := call.Do("x", func() error { panic(1) }); !errors.As(err, &panicked) || panicked.Value != 1 || panicked.Unwrap() != nil {
		t.Errorf("got %#v", err)
	}
}

// Wait returns the result of a call that ends in time, or within the moment after
// that. For a later call it returns an error that names the call.
func TestWait(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		takes  time.Duration
		over   time.Duration
		moment time.Duration
		want   time.Duration // how long Wait takes
		left   bool
	}{
		{"it returns in time", time.Second, time.Minute, 0, time.Second, false},
		{"it returns in the moment", 61 * time.Second, time.Minute, 2 * time.Second, 61 * time.Second, false},
		{"it returns late", time.Hour, time.Minute, 2 * time.Second, 62 * time.Second, true},
		{"there is no moment", time.Hour, time.Minute, 0, time.Minute, true},
		{"there is no bound", time.Hour, 0, 0, time.Hour, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var over <-chan struct{}
				if c.over > 0 {
					ctx, cancel := context.WithTimeout(t.Context(), c.over)
					defer cancel()
					over = ctx.Done()
				}
				call := call.Start("slow", func() error { time.Sleep(c.takes); return boom })
				err := call.Wait(over, c.moment)
				if took := time.Since(began); took != c.want {
					t.Errorf("it waited for %v, want %v", took, c.want)
				}
				if left := isAbandoned(err); left != c.left || !left && err != boom { //nolint:errorlint // the very same
					t.Errorf("got %v", err)
				}
				if ended, _ := call.Ended(); ended == c.left {
					t.Errorf("Ended is %v", ended)
				}
				<-call.Done()
				if err := call.Wait(over, 0); err != boom { //nolint:errorlint // the very same
					t.Errorf("when it has ended: %v", err)
				}
			})
		})
	}
}

func isAbandoned(err error) bool {
	var left *call.AbandonedError
	return errors.As(err, &left)
}

// The callback runs once, after the function and before Done closes.
// When the process was suspended while a function had its last moment, the function gets that time again.
func TestAMomentInWhichNothingRanDoesNotCount(t *testing.T) {
	call.StandStill(t)
	for returns, abandoned := range map[time.Duration]bool{2500 * time.Millisecond: false, 3500 * time.Millisecond: true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := call.Within(ctx, "db", time.Second, func() error { time.Sleep(returns); return nil })
			var left *call.AbandonedError
			if errors.As(err, &left) != abandoned {
				t.Errorf("it returns after %v: %v", returns, err)
			}
			time.Sleep(time.Second)
		})
	}
}

func TestTheCallbackComesBeforeTheEnd(t *testing.T) {
	var c call.Call
	var heard []error
	c.Start(context.Background(), "worker", "unit", func() error { return io.EOF }, func(err error) {
		if ended, _ := c.Ended(); ended {
			t.Error("the call has ended before its callback returned")
		}
		heard = append(heard, err)
	})
	<-c.Done()
	if ended, err := c.Ended(); !ended || err != io.EOF || len(heard) != 1 || heard[0] != io.EOF { //nolint:errorlint // the very same
		t.Errorf("ended %v with %v, heard %v", ended, err, heard)
	}
}

func BenchmarkGo(b *testing.B) {
	done := make(chan error)
	for b.Loop() {
		call.Go("unit", func() error { return nil }, func(err error) { done <- err })
		<-done
	}
}

func BenchmarkDo(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = call.Do("unit", func() error { return nil })
	}
}

func BenchmarkStart(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		<-call.Start("unit", func() error { return nil }).Done()
	}
}
