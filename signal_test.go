package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// outcomeOf runs an App whose window is an hour and whose hook does not end,
// sends it SIGTERM after each of the waits, and says how it went.
func outcomeOf(t *testing.T, debounce time.Duration, waits ...time.Duration) string {
	t.Helper()
	var r recorder
	signals := make(chan os.Signal)
	a := r.of(testApp(t, Config{DrainInterval: time.Hour, DrainWait: WaitAlways, ShutdownGrace: time.Hour, SignalDebounce: debounce}, signals))
	release := make(chan struct{})
	a.OnShutdown("slow", func(context.Context) error { <-release; return nil })
	ended := make(chan error)
	go func() { ended <- a.Run(context.Background()) }()
	<-a.Reached(PhaseRunning)
	for _, d := range waits {
		time.Sleep(d)
		signals <- syscall.SIGTERM
	}
	synctest.Wait()
	said := fmt.Sprint(a.Phase(), " ", &r)
	a.forced.exit = func(int) {}
	close(release)
	<-ended
	return said
}

func TestSignalsWithinTheDebounceAreOne(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		debounce time.Duration
		waits    []time.Duration
		want     string
	}{
		{"one", 0, []time.Duration{0}, "draining []"},
		{"two within 250 ms", 0, []time.Duration{0, 250 * ms}, "draining []"},
		{"two, further apart", 0, []time.Duration{0, 251 * ms}, "stopping []"},
		{"an impatient hand", 0, []time.Duration{0, 200 * ms, 200 * ms}, "stopping []"},
		{"forty at 5 Hz", 0, append([]time.Duration{0}, slices.Repeat([]time.Duration{200 * ms}, 39)...), "killed [143]"},
		{"a burst that is over in 250 ms", 0, append([]time.Duration{0}, slices.Repeat([]time.Duration{5 * ms}, 50)...), "draining []"},
		{"three", 0, []time.Duration{0, time.Second, time.Second}, "killed [143]"},
		{"two, each delivered twice", 0, []time.Duration{0, ms, time.Second, ms}, "stopping []"},
		{"two, each delivered twice, 250 ms apart", 0, []time.Duration{0, 250 * ms, time.Second, 250 * ms}, "stopping []"},
		{"five", 0, []time.Duration{0, time.Second, time.Second, time.Second, time.Second}, "killed [143]"},
		{"configured", time.Minute, []time.Duration{0, 59 * time.Second, time.Second}, "draining []"},
		{"configured, a minute and more after the one that counted", time.Minute, []time.Duration{0, 59 * time.Second, 2 * time.Second}, "stopping []"},
		{"off", Off, []time.Duration{0, 0}, "stopping []"},
		{"off, three", Off, []time.Duration{0, 0, 0}, "killed [143]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := outcomeOf(t, c.debounce, c.waits...); got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
			})
		})
	}
}

func TestGivenSignals(t *testing.T) {
	for name, test := range map[string]struct {
		signals []os.Signal // sent before Run
		closed  bool
		stops   bool
	}{
		"none":                      {nil, false, false},
		"none, and closed":          {nil, true, false},
		"one":                       {[]os.Signal{os.Interrupt}, false, true},
		"one, and closed":           {[]os.Signal{syscall.SIGTERM}, true, true},
		"any other":                 {[]os.Signal{syscall.SIGQUIT}, false, true},
		"nil is not a signal":       {[]os.Signal{nil, nil}, false, false},
		"a hangup asks for nothing": {[]os.Signal{syscall.SIGHUP}, false, false},
		"behind both of these":      {[]os.Signal{nil, syscall.SIGHUP, os.Interrupt}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal, 3)
				for _, s := range test.signals {
					signals <- s
				}
				if test.closed {
					close(signals)
				}
				a := testApp(t, Config{DrainInterval: Off}, signals)
				a.OnReload("config", func(context.Context) error { return nil })
				ended := make(chan error)
				go func() { ended <- a.Run(context.Background()) }()
				time.Sleep(time.Hour)
				synctest.Wait()
				if a.isStopping() != test.stops {
					t.Errorf("it is %s", a.Phase())
				}
				a.Stop(nil)
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestOnlyTheFirstReasonToStopCounts(t *testing.T) {
	for range 200 {
		signals := make(chan os.Signal, 1)
		a := testApp(t, Config{DrainInterval: Off, SignalDebounce: time.Hour}, signals)
		ctx, cancel := context.WithCancelCause(context.Background())
		var first atomic.Int32
		boom := errors.New("boom")
		a.Go("work", func(ctx context.Context) error {
			<-ctx.Done()
			if context.Cause(ctx) == nil || errors.Is(context.Cause(ctx), context.Canceled) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			return ctx.Err()
		})
		var all sync.WaitGroup
		all.Go(func() { cancel(boom) })
		all.Go(func() { signals <- syscall.SIGTERM })
		for range 4 {
			all.Go(func() { a.Stop(boom) })
			all.Go(func() {
				if a.requestStop(stopRequest{reason: "test"}) {
					first.Add(1)
				}
			})
		}
		err := a.Run(ctx)
		all.Wait()
		if first.Load() > 1 || a.Report().Reason == "" || err != nil && !errors.Is(err, boom) {
			t.Fatalf("%d were first, reason %q, result %v", first.Load(), a.Report().Reason, err)
		}
		cancel(nil)
	}
}

// The cause given to Stop before Run is what Run returns first, even when more comes with
// its beginning.
func TestStopBeforeRunComesFirst(t *testing.T) {
	early, late := errors.New("early"), errors.New("late")
	for range 50 {
		signals := make(chan os.Signal, 1)
		signals <- syscall.SIGTERM
		a := testApp(t, Config{DrainInterval: Off}, signals)
		a.Stop(early)
		a.Stop(late)
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(late)
		err := a.Run(ctx)
		if err == nil || err.Error() != "early\nlate" || a.Report().Reason != "App.Stop was called: early" {
			t.Fatalf("result %q, reason %q", err, a.Report().Reason)
		}
	}
}

// A program may have a SignalContext and give it to Run: whichever sees the
// signal first, it is a signal.
func TestParentThatASignalCancelledIsThatSignal(t *testing.T) {
	for _, cause := range []error{
		&SignalError{syscall.SIGTERM},
		fmt.Errorf("wrapped: %w", &SignalError{syscall.SIGTERM}),
	} {
		a := testApp(t, Config{DrainInterval: Off, ExitOnSignal: true}, nil)
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() { <-a.Reached(PhaseRunning); cancel(cause) }()
		if code := ExitCode(a.Run(ctx)); code != 143 {
			t.Errorf("exit status %d for a parent that ended with %v", code, cause)
		}
	}
}

// R5: what this package does to signals it does in Run and SignalContext, and
// never by being imported.
func TestNothingHappensOnImport(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					t.Errorf("%s has an init function", name)
				}
			case *ast.GenDecl:
				ast.Inspect(d, func(n ast.Node) bool {
					if sel, ok := n.(*ast.SelectorExpr); ok {
						if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "signal" {
							t.Errorf("%s calls signal.%s when it is imported", name, sel.Sel.Name)
						}
					}
					return true
				})
			}
		}
	}
}

// An App whose registrations were refused has no drain window that a signal could skip: the second
// one ends a hook that hangs. Its error has the reason of the stop that came first, and the refusals.
func TestRefusedRegistrationsBehindAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		signals := make(chan os.Signal)
		a := r.of(testApp(t, Config{ShutdownGrace: time.Hour}, signals))
		a.Go("", nil)
		release := make(chan struct{})
		a.OnShutdown("stuck", func(context.Context) error { <-release; return nil })
		errFirst := errors.New("the licence has expired")
		a.Stop(errFirst)
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		for range 2 {
			time.Sleep(time.Second)
			signals <- syscall.SIGTERM
		}
		synctest.Wait()
		if got := r.String(); got != "[143]" {
			t.Errorf("after two signals the exits are %s, want one of 143", got)
		}
		close(release)
		err := <-ended
		if !errors.Is(err, errFirst) || !strings.HasPrefix(err.Error(), errFirst.Error()) {
			t.Errorf("the error does not begin with the reason of the stop: %v", err)
		}
		if !strings.Contains(err.Error(), `Go: the function is nil`) {
			t.Errorf("the error does not have the refusals: %v", err)
		}
	})
}
