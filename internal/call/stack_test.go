package call_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// parkedByTheTest is the function that the test looks for in the stacks.
func parkedByTheTest(ch <-chan struct{}) { <-ch }

func TestAbandonFindsTheGoroutineOfTheCall(t *testing.T) {
	open := make(chan struct{})
	parked := call.Start("parked", func() error { parkedByTheTest(open); return nil })
	other := call.Start("other", func() error { <-open; return nil })
	for _, c := range []*call.Call{parked, other} {
		var left *call.AbandonedError
		for left == nil || !strings.Contains(left.Stack, "stack_test.go:") || !strings.Contains(left.Stack, "chan receive") {
			left = c.Abandon() // the goroutine may not have reached its select yet
			runtime.Gosched()
		}
		if strings.Count(left.Stack, "goroutine ") > 2 { // its own line, and "created by … in goroutine n"
			t.Errorf("more than one goroutine:\n%s", left.Stack)
		}
		if inPark := strings.Contains(left.Stack, "parkedByTheTest"); inPark != (c == parked) {
			t.Errorf("%v: the stack of another goroutine:\n%s", left, left.Stack)
		}
	}
	close(open)
	end := time.Now().Add(time.Minute)
	for _, c := range []*call.Call{parked, other} {
		<-c.Done()
		left := c.Abandon()
		for left.Stack != "" && time.Now().Before(end) {
			runtime.Gosched() // Done is closed a moment before the goroutine has returned
			left = c.Abandon()
		}
		if left.Stack != "" || !strings.HasSuffix(left.Error(), "and was abandoned") {
			t.Errorf("of a call that has ended: %v\n%s", left, left.Stack)
		}
	}
	if got := call.Stack(0); got != "" {
		t.Errorf("Stack(0) is %q", got)
	}
}

// Calls that are abandoned at the same moment share one dump.
func TestAbandonedTogetherIsOneDump(t *testing.T) {
	open := make(chan struct{})
	parked := call.Start("parked", func() error { parkedByTheTest(open); return nil })
	const n = 20
	waiting, covered, release := call.HoldDumps()
	var ended sync.WaitGroup
	for range n {
		ended.Go(func() { parked.Abandon() })
	}
	for waiting() < n {
		runtime.Gosched()
	}
	release()
	ended.Wait()
	// Every dump covers the calls that had come before it: the first covers all.
	if got := covered(); got != n {
		t.Errorf("the last dump was taken for %d calls, want one dump for %d", got, n)
	}
	close(open)
	<-parked.Done()
}

func TestDumpIsBounded(t *testing.T) {
	const n = 40_000 // at least about 250 bytes each
	open := make(chan struct{})
	var ended sync.WaitGroup
	for range n {
		ended.Go(func() { parkedByTheTest(open) })
	}
	dump := call.Dump()
	close(open)
	ended.Wait()
	if len(dump) != call.MaxDump {
		t.Errorf("the dump has %d bytes, want it cut at %d", len(dump), call.MaxDump)
	}
	if dump := call.Dump(); len(dump) >= call.MaxDump || !strings.Contains(string(dump), t.Name()) {
		t.Errorf("a dump of few goroutines has %d bytes", len(dump))
	}
}

func FuzzStacks(f *testing.F) {
	f.Add(call.Dump(), uint64(1))
	const run = "github.com/pleme-io/lifecycle-go/internal/call.run("
	f.Add([]byte("goroutine 7 [running]:\nmain.main()\n"+run+"0x2a, {0x1, 0x2})\n\ngoroutine 71 [select]:\n"+run+"0x2b?, ...)"), uint64(42))
	f.Add([]byte("x\n"+run+"0x"), uint64(0))
	f.Add([]byte("\n\n\n\nx\n"+run+"0xffffffffffffffffff)"), ^uint64(0))
	f.Add([]byte("goroutine 7 [running]:\n"+run+"...)"), uint64(7))
	f.Add([]byte(nil), uint64(0))
	f.Fuzz(func(t *testing.T, dump []byte, number uint64) {
		stack := call.Stacks(dump)[number]
		if stack == "" {
			return
		}
		if !strings.Contains(string(dump), stack) || strings.Contains(stack, "\n\n") || !strings.Contains(stack, fmt.Sprintf("%s0x%x", run, number)) {
			t.Errorf("the stack in %q of %d is %q", dump, number, stack)
		}
	})
}
