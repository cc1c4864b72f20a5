package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// coded is an error that asks for an exit status.
type coded int

func (c coded) Error() string { return fmt.Sprint("asks for ", int(c)) }
func (c coded) ExitCode() int { return int(c) }

func TestExitCode(t *testing.T) {
	plain := errors.New("plain")
	term := &SignalError{syscall.SIGTERM}
	abandoned := &AbandonedError{Name: "unit"}
	for _, c := range []struct {
		name string
		err  error
		want int
	}{
		{"nil", nil, 0},
		{"plain", plain, 1},
		{"signal", term, 143},
		{"interrupt", &SignalError{os.Interrupt}, 130},
		{"no signal", &SignalError{}, 1},
		{"coded", coded(7), 7},
		{"lowest", coded(1), 1},
		{"highest", coded(255), 255},
		{"zero is not a status for an error", coded(0), 1},
		{"too high for one", coded(256), 1},
		{"a child that a signal ended", coded(-1), 1},
		{"abandoned", abandoned, ExitStuck},
		{"wrapped", fmt.Errorf("run: %w", coded(7)), 7},
		{"primary is coded", errors.Join(coded(7), plain), 7},
		{"primary is plain", errors.Join(plain, coded(7)), 1},
		{"primary is plain, and something was abandoned", errors.Join(plain, abandoned), 1},
		{"primary was abandoned", errors.Join(fmt.Errorf("unit x: %w", abandoned), plain), ExitStuck},
		{"a signal, and something was abandoned", errors.Join(term, abandoned), 143},
		{"wrapped around a join", fmt.Errorf("run: %w", errors.Join(plain, coded(7))), 1},
		{"joins in joins", errors.Join(errors.Join(coded(3), coded(7)), plain), 3},
		{"a join with nil", errors.Join(nil, coded(7), nil), 7},
		{"one thing, told by two errors", fmt.Errorf("%w: %w", ErrRestartBudget, coded(7)), 7},
		{"one thing, as primary", errors.Join(fmt.Errorf("%w: %w", plain, coded(7)), coded(9)), 7},
		{"a wrong configuration", Config{ShutdownGrace: Off}.Validate(), ExitConfig},
		{"a panic with a coded error", &PanicError{Name: "x", Value: coded(7)}, 7},
		{"a panic", &PanicError{Name: "x", Value: "ouch"}, 1},
		{"an outer status beats an inner one", fmt.Errorf("x: %w", errors.Join(coded(5), term)), 5},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%s: ExitCode(%v) is %d, want %d", c.name, c.err, got, c.want)
		}
	}
}

func TestSignalErrorNamesTheSignal(t *testing.T) {
	if got := (&SignalError{syscall.SIGTERM}).Error(); got != "received signal: terminated" {
		t.Errorf("got %q", got)
	}
	if got := (&SignalError{}).Error(); got != "received signal: <nil>" { // it does not panic
		t.Errorf("got %q", got)
	}
}

// recorder takes the exit and the dump of an App that dies in a test.
type recorder struct {
	mu    sync.Mutex
	codes []int
	dump  bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dump.Write(p)
}

func (r *recorder) exit(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.codes = append(r.codes, code)
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.codes)
}

func (r *recorder) of(a *App) *App {
	a.forced.exit, a.forced.stderr = r.exit, r
	return a
}

func TestWatchdogCountsFromTheStopAndDiesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		signals := make(chan os.Signal)
		a := r.of(testApp(t, Config{DrainInterval: 3 * time.Second, ShutdownGrace: 4 * time.Second, SignalDebounce: Off}, signals))
		events := a.Events().Subscribe(64)
		defer events.Close()
		a.upgrade.turn <- struct{}{} // an upgrade that does not end
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		time.Sleep(time.Hour)
		a.Stop(nil)
		time.Sleep(9*time.Second - 1) // 3 + 4 + 2 of margin
		synctest.Wait()
		if got := r.String(); got != "[]" {
			t.Fatalf("exit %v before the budget is over", got)
		}
		time.Sleep(1)
		synctest.Wait()
		if got := r.String(); got != "[70]" {
			t.Fatalf("exit %v, want one with 70", got)
		}
		if got := r.dump.String(); !strings.Contains(got, "giving up on an upgrade; exit status 70") || !strings.Contains(got, "serveUntilStop") {
			t.Errorf("the dump is\n%s", got)
		}
		select {
		case <-a.Reached(PhaseKilled):
		default:
			t.Error("phase killed was not reached")
		}
		if a.Phase() != PhaseKilled || a.EnteredAt(PhaseKilled).IsZero() || a.Report().Phase != PhaseKilled {
			t.Errorf("it is %s", a.Phase())
		}
		var last fsm.Event
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for e := range events.All(ctx) {
			if e.Kind == KindApp {
				last = e
			}
		}
		if last.To != string(PhaseKilled) || last.Cause == nil {
			t.Errorf("the last event is %+v", last)
		}
		for range 5 { // the App is about to exit: these signals change nothing
			signals <- syscall.SIGTERM
		}
		synctest.Wait()
		if got := r.String(); got != "[70]" {
			t.Errorf("exit %v, want one with 70", got)
		}
		<-a.upgrade.turn // a real os.Exit would have ended the process by now
		<-ended
	})
}

func TestWatchdogIsDisarmedWhenRunReturns(t *testing.T) {
	for name, test := range map[string]struct {
		cfg   Config
		setup func(*App)
	}{
		"a clean stop":          {setup: func(a *App) { a.Go("work", func(context.Context) error { a.Stop(nil); return nil }) }},
		"a failure":             {setup: func(a *App) { a.Go("work", func(context.Context) error { return errors.New("boom") }) }},
		"a failure to start":    {Config{HealthAddr: "127.0.0.1:999999"}, func(*App) {}},
		"refused registrations": {setup: func(a *App) { a.Go("", nil) }},
	} {
		for _, signalled := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", signalled ", signalled), func(t *testing.T) {
				for range 20 { // Run and the watchdog race
					synctest.Test(t, func(t *testing.T) {
						signals := make(chan os.Signal, 1)
						a := testApp(t, test.cfg, signals) // an exit fails the test
						test.setup(a)
						if signalled {
							signals <- syscall.SIGTERM
						}
						_ = a.Run(context.Background())
						time.Sleep(time.Hour)
						select {
						case <-a.stop.requested.Signaled():
						default:
							t.Error("Run has returned and the stop has not begun")
						}
					})
				}
			})
		}
	}
}

// stubborn is a writer that blocks.
type stubborn struct{ release <-chan struct{} }

func (s stubborn) Write(p []byte) (int, error) { <-s.release; return len(p), nil }

func TestDumpIsGivenOneSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		release := make(chan struct{})
		a := r.of(testApp(t, Config{}, nil))
		a.forced.stderr = stubborn{release}
		began := time.Now()
		a.die("because", 3)
		if took := time.Since(began); took != time.Second || r.String() != "[3]" {
			t.Errorf("exit %v after %v", &r, took)
		}
		close(release)
	})
}

func BenchmarkExitCode(b *testing.B) {
	err := fmt.Errorf("run: %w", errors.Join(fmt.Errorf("unit x: %w", errors.New("boom")), &SignalError{os.Interrupt}))
	b.ReportAllocs()
	for b.Loop() {
		ExitCode(err)
	}
}
