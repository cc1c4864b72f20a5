package call_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// parkedByTheTest is the function that the test looks for in the stacks.
func parkedByTheTest(ch <-chan struct{}) { <-ch }

func alsoParkedByTheTest(ch <-chan struct{}) { <-ch }

// eventually tries until ok holds: a goroutine may not have come far enough yet.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for range 100_000 {
		if ok() {
			return
		}
		runtime.Gosched()
	}
	t.Error("it never holds")
}

// An abandoned call has the stack of its own goroutine first, and then those of the
// goroutines that it has started.
func TestAbandonFindsTheGoroutinesOfTheCall(t *testing.T) {
	open := make(chan struct{})
	helper := make(chan struct{})
	parked := call.StartAs(t.Context(), "hook", "close the \"db\"", func() error {
		go func() {
			defer close(helper)
			alsoParkedByTheTest(open)
		}()
		parkedByTheTest(open)
		return nil
	})
	other := call.Start("other", func() error { <-open; return nil })
	twin := call.Start("close the \"db\"", func() error { <-open; return nil })

	var left *call.AbandonedError
	eventually(t, func() bool {
		left = parked.Abandon()
		return strings.Contains(left.Stack, "call_test.parkedByTheTest(...)\n\t") && strings.Contains(left.Stack, "alsoParkedByTheTest")
	})
	if first, _, _ := strings.Cut(left.Stack, "\ngoroutine:"); !strings.Contains(first, "parkedByTheTest") || strings.Contains(first, "alsoParked") {
		t.Errorf("its own goroutine is not the first:\n%s", left.Stack)
	}
	if strings.Count(left.Stack, "goroutine:\n") != 2 || !strings.Contains(left.Where, "parkedByTheTest (labels_test.go:") {
		t.Errorf("found %s:\n%s", left.Where, left.Stack)
	}
	for _, c := range []*call.Call{other, twin} {
		eventually(t, func() bool {
			left = c.Abandon()
			return strings.Contains(left.Where, "call_test.TestAbandonFindsTheGoroutinesOfTheCall.func")
		})
		if strings.Contains(left.Stack, "parkedByTheTest") {
			t.Errorf("the stack of another goroutine:\n%s", left.Stack)
		}
	}
	close(open)
	<-helper
	for _, c := range []*call.Call{parked, other, twin} {
		<-c.Done()
		eventually(t, func() bool { // Done is closed a moment before the goroutine has returned
			left := c.Abandon()
			return left.Stack == "" && strings.HasSuffix(left.Error(), "and was abandoned")
		})
	}
}

// A goroutine keeps the labels that its caller has set, and its profile samples are
// found by kind and name.
func TestLabels(t *testing.T) {
	ctx := call.WithLabels(pprof.WithLabels(t.Context(), pprof.Labels("tenant", "acme")), "worker", "poller")
	done := make(chan error, 1)
	call.GoUnder(ctx, "poller", false, func() error {
		var profile strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)
		for _, want := range []string{`"lifecycle.kind":"worker"`, `"lifecycle.name":"poller"`, `"tenant":"acme"`} {
			if !strings.Contains(profile.String(), want) {
				return fmt.Errorf("no goroutine has the label %s", want)
			}
		}
		return nil
	}, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Calls that are abandoned at the same moment share one profile.
func TestAbandonedTogetherIsOneProfile(t *testing.T) {
	open := make(chan struct{})
	parked := call.Start("parked", func() error { parkedByTheTest(open); return nil })
	const n = 20
	waiting, covered, release := call.HoldProfiles()
	var ended sync.WaitGroup
	for range n {
		ended.Go(func() { parked.Abandon() })
	}
	for waiting() < n {
		runtime.Gosched()
	}
	release()
	ended.Wait()
	// Every profile covers the calls that had come before it: the first covers all.
	if got := covered(); got != n {
		t.Errorf("the last profile was taken for %d calls, want one for %d", got, n)
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

// The stack of a call whose panic is not caught is found too.
func TestUncaughtCalls(t *testing.T) {
	results := make(chan error, 1)
	release := make(chan struct{})
	ended := func(err error) { results <- err }
	ctx := call.WithLabels(context.Background(), "worker", "uncaught")
	call.GoUnder(ctx, "a", true, func() error { parkedByTheTest(release); return errBoom }, ended)
	eventually(t, func() bool { return strings.Contains(call.Abandoned("worker", "uncaught").Where, "parkedByTheTest") })
	close(release)
	if err := <-results; err != errBoom { //nolint:errorlint // itself
		t.Errorf("it ended with %v", err)
	}
	call.GoUnder(ctx, "a", true, func() error { runtime.Goexit(); return nil }, ended)
	if err := <-results; !errors.Is(err, call.ErrGoexit) {
		t.Errorf("it ended with %v", err)
	}
}

var errBoom = errors.New("boom")

// For any text of the profile, the stacks come from blocks with the labels.
func FuzzStacksOf(f *testing.F) {
	var profile strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)
	f.Add(profile.String(), "hook", "db")
	f.Add("goroutine profile: total 1\n1 @ 0x1\n# labels: {\"lifecycle.kind\":\"hook\", \"lifecycle.name\":\"db\"}\n#\t0x1\tmain.f+0x2\t/a b/c.go:3\n\n", "hook", "db")
	f.Add("2 @\n# labels: \n#\n\n\n\n# labels: x", "", "")
	f.Fuzz(func(t *testing.T, profile, kind, name string) {
		stacks := call.StacksOf(profile, kind, name)
		if stacks != "" && !strings.Contains(profile, fmt.Sprintf("%q:%q", call.NameLabel, name)) {
			t.Errorf("stacks of %q in %q: %q", name, profile, stacks)
		}
	})
}

// Of calls that are abandoned at the same moment each has its stack, in whatever order they get it.
func TestAbandonedAtOnceHaveEachTheirStack(t *testing.T) {
	open := make(chan struct{})
	defer close(open)
	parked := call.StartAs(t.Context(), "hook", "parked", func() error { parkedByTheTest(open); return nil })
	eventually(t, func() bool { return strings.Contains(parked.Abandon().Where, "parkedByTheTest") })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if left := call.Abandoned("hook", "parked"); left.Where == "" {
					t.Error("no stack")
				}
			}
		})
	}
	all.Wait()
}
