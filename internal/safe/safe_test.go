package safe_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/safe"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result runs fn by Go and returns what done got.
func result(t *testing.T, fn func() error) error {
	t.Helper()
	done := make(chan error, 2)
	safe.Go("unit", fn, nil, func(err error) { done <- err })
	err := <-done
	select {
	case again := <-done:
		t.Errorf("done was called again, with %v", again)
	default:
	}
	return err
}

// evil is a value that cannot even be printed.
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
		{name: "Goexit", fn: func() error { runtime.Goexit(); return nil }, is: safe.ErrGoexit, text: "unit: called runtime.Goexit"},
		{name: "Goexit while it panics", fn: func() error { defer runtime.Goexit(); panic("ouch") }, is: safe.ErrGoexit},
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
			var panicked *safe.PanicError
			if errors.As(err, &panicked) != c.panicked {
				t.Fatalf("%#v: a PanicError is %v", err, c.panicked)
			}
			if err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%q does not say %q", err, c.text)
			}
			if c.panicked && (panicked.Name != "unit" || !strings.Contains(string(panicked.Stack), "safe_test.go")) {
				t.Errorf("name %q, stack\n%s", panicked.Name, panicked.Stack)
			}
		})
	}
}

func TestDoReturnsPanicsAndErrors(t *testing.T) {
	if err := safe.Do("x", func() error { return io.EOF }); err != io.EOF { //nolint:errorlint // the very same
		t.Errorf("got %v", err)
	}
	var panicked *safe.PanicError
	if err := safe.Do("x", func() error { panic(1) }); !errors.As(err, &panicked) || panicked.Value != 1 || panicked.Unwrap() != nil {
		t.Errorf("got %#v", err)
	}
}

// parkedByTheTest is what the stacks of the test are looked for by.
func parkedByTheTest(ch <-chan struct{}) { <-ch }

func TestStackFindsOneGoroutine(t *testing.T) {
	ids, open := make(chan uint64, 2), make(chan struct{})
	var ended sync.WaitGroup
	ended.Add(2)
	safe.Go("parked", func() error { parkedByTheTest(open); return nil }, func(id uint64) { ids <- id }, func(error) { ended.Done() })
	safe.Go("other", func() error { <-open; return nil }, func(id uint64) { ids <- id }, func(error) { ended.Done() })
	var stacks []string
	for range 2 {
		id := <-ids
		for { // it has told its id before it comes to where it parks
			stack := safe.StackOf(safe.Dump(), id)
			if strings.Contains(stack, "safe_test") {
				stacks = append(stacks, stack)
				break
			}
			runtime.Gosched()
		}
		// That one may be a moment old, and be from before it came there.
		if got := safe.Stack(id); !strings.HasPrefix(got, fmt.Sprintf("goroutine %d ", id)) {
			t.Errorf("Stack(%d) is %q", id, got)
		}
	}
	close(open)
	ended.Wait()
	for _, stack := range stacks {
		if strings.Count(stack, "goroutine ") > 2 { // its own, and "created by … in goroutine n"
			t.Errorf("more than one goroutine:\n%s", stack)
		}
	}
	if !strings.Contains(strings.Join(stacks, ""), "parkedByTheTest") {
		t.Errorf("no stack shows the function:\n%s", strings.Join(stacks, "\n\n"))
	}
	for _, id := range []uint64{0, 1 << 62} {
		if got := safe.Stack(id); got != "" {
			t.Errorf("Stack(%d) is %q", id, got)
		}
	}
}

func TestGoroutineIDIsTheOneInTheStack(t *testing.T) {
	id := safe.GoroutineID()
	if id == 0 || !strings.Contains(safe.StackOf(safe.Dump(), id), t.Name()) {
		t.Errorf("goroutine %d has the stack\n%s", id, safe.StackOf(safe.Dump(), id))
	}
	other := make(chan uint64)
	go func() { other <- safe.GoroutineID() }()
	if got := <-other; got == id || got == 0 {
		t.Errorf("another goroutine has the id %d, and this one %d", got, id)
	}
}

func TestDumpIsBounded(t *testing.T) {
	const n = 40_000 // of some 250 bytes and more each
	open := make(chan struct{})
	var ended sync.WaitGroup
	for range n {
		ended.Go(func() { parkedByTheTest(open) })
	}
	dump := safe.Dump()
	close(open)
	ended.Wait()
	if len(dump) != safe.MaxDump {
		t.Errorf("the dump has %d bytes, want it cut at %d", len(dump), safe.MaxDump)
	}
	if dump := safe.Dump(); len(dump) >= safe.MaxDump || !strings.Contains(string(dump), t.Name()) {
		t.Errorf("a dump of few goroutines has %d bytes", len(dump))
	}
}

func FuzzStackOf(f *testing.F) {
	f.Add(safe.Dump(), uint64(1))
	f.Add([]byte("goroutine 7 [running]:\nmain.main()\n\ngoroutine 71 [select]:\nx"), uint64(7))
	f.Add([]byte("\n\n\n\ngoroutine 7 "), uint64(7))
	f.Add([]byte("goroutine 18446744073709551615 [x"), ^uint64(0))
	f.Add([]byte(nil), uint64(0))
	f.Fuzz(func(t *testing.T, dump []byte, id uint64) {
		stack := safe.StackOf(dump, id)
		if stack == "" {
			return
		}
		if !strings.Contains(string(dump), stack) || strings.Contains(stack, "\n\n") || !strings.HasPrefix(stack, "goroutine ") {
			t.Errorf("StackOf(%q, %d) is %q", dump, id, stack)
		}
	})
}

func BenchmarkGo(b *testing.B) {
	done := make(chan error)
	for b.Loop() {
		safe.Go("unit", func() error { return nil }, nil, func(err error) { done <- err })
		<-done
	}
}

func BenchmarkDo(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = safe.Do("unit", func() error { return nil })
	}
}

func BenchmarkGoroutineID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		safe.GoroutineID()
	}
}

// An answer that does not come is waited for once, and counts again once it came.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a safe.Answers
		release := make(chan struct{})
		calls := 0
		slow := func() int { calls++; <-release; return 7 }
		began := time.Now()
		if _, err := safe.Ask(&a, "State", slow); !errors.Is(err, safe.ErrNoAnswer) || time.Since(began) != safe.AnswerIn {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		for range 3 {
			if _, err := safe.Ask(&a, "State", slow); !errors.Is(err, safe.ErrNoAnswer) || time.Since(began) != safe.AnswerIn {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		if n, err := safe.Ask(&a, "Err", func() int { return 5 }); n != 5 || err != nil {
			t.Errorf("another question: %d, %v", n, err)
		}
		close(release)
		synctest.Wait()
		if n, err := safe.Ask(&a, "State", slow); n != 7 || err != nil || calls != 2 {
			t.Errorf("once it has answered: %d, %v, %d calls", n, err, calls)
		}
		if _, err := safe.Ask(&a, "State", func() int { panic("boom") }); err == nil || !strings.Contains(err.Error(), "State: panic: boom") {
			t.Errorf("a panic: %v", err)
		}
		if _, err := safe.Ask(&a, "State", func() int { runtime.Goexit(); return 0 }); !errors.Is(err, safe.ErrGoexit) {
			t.Errorf("Goexit: %v", err)
		}
	})
}
