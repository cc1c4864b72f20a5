package probe_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var background = context.Background()

func pass(context.Context) error { return nil }

// stuck returns a check that ignores its context until release is called.
func stuck() (fn func(context.Context) error, release func()) {
	ch := make(chan struct{})
	return func(context.Context) error { <-ch; return nil }, func() { close(ch) }
}

// run runs the checks and reports whether all of them have ended.
func run(c ...*probe.Check) bool { return runIn(background, time.Second, c) }

// runIn is run with a context and a time of its own.
func runIn(ctx context.Context, patience time.Duration, checks []*probe.Check) bool {
	probe.Run(ctx, background, patience, checks)
	return !slices.ContainsFunc(checks, func(c *probe.Check) bool {
		_, _, isRunning := c.Status()
		return isRunning
	})
}

// working counts the goroutines that execute checks. It waits a while for the
// number to become want, because some may be about to end.
func working(want int) (n int) {
	for range 10000 {
		if n = strings.Count(string(call.Dump()), "probe.(*Check).start.func1("); n == want {
			break
		}
		runtime.Gosched()
	}
	return n
}

func TestEveryRunIsReported(t *testing.T) {
	boom := errors.New("boom")
	var fail atomic.Bool
	var got []error
	c := probe.New("c", time.Second, func(context.Context) error {
		if fail.Load() {
			return boom
		}
		return nil
	}, func(res probe.Result) { got = append(got, res.Err) })
	for _, f := range []bool{false, true, true, false} {
		fail.Store(f)
		if !run(c) {
			t.Fatal("a check that returns at once has not ended")
		}
	}
	if want := []error{nil, boom, boom, nil}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("reported %v, want %v", got, want)
	}
	if last, _, _ := c.Status(); last.Run != 4 || last.Err != nil {
		t.Errorf("last result is %+v, want run 4 without an error", last)
	}
}

func TestOneGoroutinePerCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn, release := stuck()
		var now, most atomic.Int64
		c := probe.New("c", time.Second, func(ctx context.Context) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			return fn(ctx)
		}, nil)
		for range 50 {
			probe.Start(background, c)
			if runIn(background, 100*time.Millisecond, []*probe.Check{c}) {
				t.Fatal("a stuck check has ended")
			}
		}
		synctest.Wait()
		if n := working(1); n != 1 {
			t.Errorf("%d goroutines for one check, want 1", n)
		}
		release()
		synctest.Wait()
		if most.Load() != 1 {
			t.Errorf("%d runs at a time, want 1", most.Load())
		}
		if last, _, running := c.Status(); running || last.Run != 1 {
			t.Errorf("after it returned: run %d, running %v; want run 1, ended", last.Run, running)
		}
	})
}

func TestConcurrentCallersShareOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		c := probe.New("c", time.Second, func(context.Context) error {
			runs.Add(1)
			time.Sleep(100 * time.Millisecond)
			return nil
		}, nil)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if !run(c) {
					t.Error("the run has not ended for one of its callers")
				}
			})
		}
		wg.Wait()
		if runs.Load() != 1 {
			t.Errorf("100 callers made %d runs, want 1", runs.Load())
		}
	})
}

func TestCallerDoesNotCancelTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := probe.New("c", time.Second, func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(500 * time.Millisecond):
				return nil
			}
		}, nil)
		ctx, hangUp := context.WithCancel(background)
		time.AfterFunc(100*time.Millisecond, hangUp)
		began := time.Now()
		if runIn(ctx, time.Second, []*probe.Check{c}) {
			t.Error("the run has ended for a caller who left before")
		}
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("the caller waited %v, want 100ms", took)
		}
		if !c.Wait(background) {
			t.Error("Wait says that the run has not ended")
		}
		if last, _, _ := c.Status(); last.Err != nil || last.Took != 500*time.Millisecond {
			t.Errorf("the run ended with %v after %v, want nil after 500ms", last.Err, last.Took)
		}
	})
}

func TestSlowCheckHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn, release := stuck()
		checks := []*probe.Check{
			probe.New("stuck", time.Hour, fn, nil),
			probe.New("slow", time.Hour, func(context.Context) error { time.Sleep(300 * time.Millisecond); return nil }, nil),
			probe.New("slow too", time.Hour, func(context.Context) error { time.Sleep(300 * time.Millisecond); return nil }, nil),
			probe.New("quick", time.Hour, pass, nil),
		}
		began := time.Now()
		if runIn(background, 400*time.Millisecond, checks) {
			t.Error("all checks have ended, want the stuck one not to")
		}
		if took := time.Since(began); took != 400*time.Millisecond {
			t.Errorf("waited %v, want 400ms", took)
		}
		for _, c := range checks[1:] {
			if last, _, _ := c.Status(); last.Run != 1 || last.Err != nil {
				t.Errorf("a check after a stuck one: %+v, want run 1 passed", last)
			}
		}
		release()
	})
}

func TestOverdueRunIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fn, release := stuck()
		c := probe.New("c", 200*time.Millisecond, fn, nil)
		began := time.Now()
		for range 3 {
			if run(c) {
				t.Fatal("a stuck check has ended")
			}
		}
		if took := time.Since(began); took != 200*time.Millisecond {
			t.Errorf("three callers in a row waited %v, want the timeout of 200ms once", took)
		}
		if _, took, running := c.Status(); !running || took != 200*time.Millisecond {
			t.Errorf("running %v for %v, want true for 200ms", running, took)
		}
		release()
		synctest.Wait()
		last, _, _ := c.Status()
		if late := new(probe.TimeoutError); !errors.As(last.Err, &late) || late.Err != nil {
			t.Errorf("a late nil is %v, want a timeout error around nil", last.Err)
		}
	})
}

func TestContextHasTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		base := context.WithValue(background, key{}, "value")
		var seen context.Context
		c := probe.New("c", 200*time.Millisecond, func(ctx context.Context) error {
			seen = ctx
			if dl, ok := ctx.Deadline(); !ok || time.Until(dl) != 200*time.Millisecond {
				t.Errorf("deadline in %v (%v), want 200ms", time.Until(dl), ok)
			}
			if ctx.Value(key{}) != "value" || ctx.Err() != nil {
				t.Errorf("value %v, error %v; want the base's value and none", ctx.Value(key{}), ctx.Err())
			}
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-child.Done()
			if child.Value(key{}) != "value" {
				t.Error("the value is gone once the context has a timer")
			}
			return child.Err()
		}, nil)
		probe.Run(background, base, time.Second, []*probe.Check{c})
		synctest.Wait()
		last, _, _ := c.Status()
		if late := new(probe.TimeoutError); !errors.As(last.Err, &late) || !errors.Is(last.Err, context.DeadlineExceeded) {
			t.Errorf("result %v, want a timeout around the deadline error", last.Err)
		}
		if seen.Err() == nil {
			t.Error("the context has not ended with its run")
		}
	})
}

func TestContextAskedLateHasEnded(t *testing.T) {
	var seen context.Context
	c := probe.New("c", time.Hour, func(ctx context.Context) error { seen = ctx; return nil }, nil)
	run(c)
	if !errors.Is(seen.Err(), context.Canceled) {
		t.Errorf("error after the run is %v, want canceled", seen.Err())
	}
	select {
	case <-seen.Done():
	default:
		t.Error("Done of a context whose run has ended is open")
	}
	if !errors.Is(seen.Err(), context.Canceled) {
		t.Errorf("error after Done is %v, want canceled", seen.Err())
	}
}

func TestContextEndsWithItsBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, cancel := context.WithCancel(background)
		c := probe.New("c", time.Hour, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil)
		probe.Start(base, c)
		synctest.Wait()
		cancel()
		if !c.Wait(background) {
			t.Fatal("the run did not end with its base")
		}
		quick := probe.New("c", time.Hour, func(ctx context.Context) error { return ctx.Err() }, nil)
		probe.Run(background, base, time.Second, []*probe.Check{quick})
		if last, _, _ := quick.Status(); !errors.Is(last.Err, context.Canceled) {
			t.Errorf("under an ended base a check sees %v, want canceled", last.Err)
		}
	})
}

func TestPanicAndGoexitAreResults(t *testing.T) {
	cause := errors.New("cause")
	checks := []*probe.Check{
		probe.New("panics", time.Minute, func(context.Context) error { panic(cause) }, nil),
		probe.New("exits", time.Minute, func(context.Context) error { runtime.Goexit(); return nil }, nil),
		probe.New("panics too", time.Minute, func(context.Context) error { panic("again") }, nil),
		probe.New("passes", time.Minute, pass, nil),
	}
	for range 3 { // a check that panicked runs again
		if !runIn(background, time.Minute, checks) {
			t.Fatal("not all runs have ended")
		}
	}
	errs := make([]error, len(checks))
	for i, c := range checks {
		last, _, _ := c.Status()
		if errs[i] = last.Err; last.Run != 3 {
			t.Errorf("check %d ran %d times, want 3", i, last.Run)
		}
	}
	var p *call.PanicError
	if !errors.As(errs[0], &p) || p.Name != "panics" || !errors.Is(errs[0], cause) || len(p.Stack) == 0 {
		t.Errorf("a panic is %v, want a panic error with the check's name, its cause and a stack", errs[0])
	}
	if !errors.Is(errs[1], call.ErrGoexit) || errs[1].Error() != "exits: called runtime.Goexit" {
		t.Errorf("a Goexit is %v, want ErrGoexit with the check's name", errs[1])
	}
	if !errors.As(errs[2], &p) || p.Name != "panics too" {
		t.Errorf("a second panic in a batch is %v, want a panic error", errs[2])
	}
	if errs[3] != nil {
		t.Errorf("a check after those is %v, want nil", errs[3])
	}
}

func TestClosedCheckDoesNotRun(t *testing.T) {
	var runs atomic.Int64
	c := probe.New("c", time.Minute, func(context.Context) error { runs.Add(1); return nil }, nil)
	run(c)
	c.Close()
	run(c)
	probe.Start(background, c)
	if runs.Load() != 1 {
		t.Errorf("%d runs, want the one before Close", runs.Load())
	}
	if !c.Wait(background) {
		t.Error("Wait without a run says that one has not ended")
	}
}

func TestRunUnderContention(t *testing.T) {
	checks := make([]*probe.Check, 20)
	var busy [20]atomic.Int64
	for i := range checks {
		checks[i] = probe.New("c", time.Minute, func(context.Context) error {
			if busy[i].Add(1) != 1 {
				t.Error("two runs of a check at a time")
			}
			if i%7 == 0 {
				runtime.Gosched()
			}
			busy[i].Add(-1)
			if i == 11 {
				panic("eleven")
			}
			return nil
		}, func(probe.Result) {})
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				probe.Run(background, background, time.Minute, checks[(g+i)%10:])
			}
		})
	}
	wg.Wait()
}

func TestRound(t *testing.T) {
	for d, want := range map[time.Duration]string{
		3234 * time.Millisecond:    "3.2s",
		15123456 * time.Nanosecond: "15.1ms",
		1510 * time.Nanosecond:     "1.5µs",
		42:                         "42ns",
		0:                          "0s",
	} {
		if got := probe.Round(d).String(); got != want {
			t.Errorf("Round(%d) = %s, want %s", d, got, want)
		}
	}
}
