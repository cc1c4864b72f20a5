// Package lifecycletest helps to test what an App does when it stops. A test runs the
// App, with or without a testing/synctest bubble, delivers signals to it that do not
// reach the process, holds a request in flight, and checks the order of events.
//
//	synctest.Test(t, func(t *testing.T) {
//		ln, slow := lifecycletest.NewListener(), lifecycletest.Hold(myHandler)
//		app := lifecycletest.New(t, lifecycle.Config{})
//		app.Serve("http", &http.Server{Handler: slow}, lifecycle.WithListener(ln))
//		app.Start()
//		answer := lifecycletest.Get(t, ln.Client(), "http://app/work")
//		<-slow.Arrived()
//		app.Signal(syscall.SIGTERM)
//		app.Await(lifecycle.PhaseDraining)
//		slow.Release()
//		answer.WantStatus(http.StatusOK)
//		app.WantClean()
//	})
//
// In a bubble a drain of many seconds takes no real time, and a test can compare every
// duration exactly. The bubble replaces a fake clock. Outside of a bubble the same test
// runs in real time.
package lifecycletest

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fsm"
)

// TB is the part of *testing.T that this package needs, so that other test frameworks
// can provide it too.
type TB interface {
	Helper()
	Name() string
	Failed() bool
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
}

// Patience is how long a method waits before it fails the test, in addition to the time
// that the App itself may take for a stop. In a bubble it is the bubble's time.
const Patience = time.Minute

// App is a [lifecycle.App] under test. Make one with [New] or [Wrap], register its
// units, and call Start. When the test ends, the cleanup stops an App that still runs.
// The test fails if goroutines of the App still run after that.
type App struct {
	*lifecycle.App

	t       TB
	signals chan os.Signal
	log     lockedBuffer
	began   time.Time
	label   string // the profiler label of all its goroutines
	started bool
	ended   chan struct{} // closed when Run has returned
	err     error         // Run's error
	reader  *fsm.Subscription

	mu     sync.Mutex // guards events
	events []fsm.Event
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// New returns an App made from cfg for a test. It gets signals only from [App.Signal],
// and its log is shown when the test fails. It has no termination log, and no health
// server unless cfg has an address for one ([App.Ask] works without). opts come after
// these settings and may replace them.
//
// A config that [lifecycle.New] refuses fails the test.
func New(t TB, cfg lifecycle.Config, opts ...lifecycle.Option) *App {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = t.Name()
	}
	if cfg.HealthAddr == "" {
		cfg.HealthAddr = lifecycle.HealthOff
	}
	if cfg.TerminationLog == "" {
		cfg.TerminationLog = "off"
	}
	return Wrap(t, func(given ...lifecycle.Option) (*lifecycle.App, error) {
		return lifecycle.New(cfg, append(given, opts...)...)
	})
}

// Wrap returns an App that the program's own code makes. build must pass the options to
// [lifecycle.New]; they set the signals and the log. build chooses the configuration
// itself. In a bubble the health server must be off, because a bubble cannot have real
// sockets.
func Wrap(t TB, build func(...lifecycle.Option) (*lifecycle.App, error)) *App {
	t.Helper()
	// The buffer has room for more signals than a test sends at once; the App takes
	// them one by one.
	a := &App{t: t, signals: make(chan os.Signal, 64), began: time.Now(), ended: make(chan struct{})}
	log := slog.New(slog.NewTextHandler(&a.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	app, err := build(lifecycle.WithSignals(a.signals), lifecycle.WithLogger(log))
	if err != nil {
		t.Fatalf("lifecycletest: the App cannot be made: %v", err)
	}
	if app == nil {
		t.Fatalf("lifecycletest: build has returned neither an App nor an error")
	}
	a.App = app
	a.reader = app.Events().Subscribe(1 << 16)
	t.Cleanup(a.cleanup)
	return a
}

// Start calls Run in a goroutine and waits until the App runs. It fails the test when
// the App ends instead. To stop an App while it starts, use [App.Launch].
func (a *App) Start() {
	a.t.Helper()
	a.Launch()
	a.Await(lifecycle.PhaseRunning)
}

// apps numbers the Apps of this process.
var apps atomic.Uint64

// Launch calls Run in a goroutine and returns at once.
func (a *App) Launch() {
	a.t.Helper()
	if a.started {
		a.t.Fatalf("lifecycletest: the App was started before; it runs once")
	}
	a.started = true
	a.label = strconv.FormatUint(apps.Add(1), 10)
	go labelled(context.Background(), a.label, func(ctx context.Context) {
		defer close(a.ended)
		a.err = a.Run(ctx)
	})
}

// Signal delivers a signal to the App only.
func (a *App) Signal(sig os.Signal) {
	a.t.Helper()
	select {
	case <-a.ended:
		a.fatal("signal %v comes too late: the App has ended in phase %s", sig, a.Phase())
	default:
	}
	select {
	case a.signals <- sig:
	default:
		a.fatal("signal %v: %d others wait already", sig, cap(a.signals))
	}
}

// Await waits until the App has entered a phase. When the App ends without it, Await
// fails the test and shows the events so far.
func (a *App) Await(p lifecycle.Phase) {
	a.t.Helper()
	reached := a.Reached(p)
	if reached == nil {
		a.t.Fatalf("lifecycletest: there is no phase %q", p)
	}
	select {
	case <-reached:
	case <-a.ended:
	case <-time.After(a.patience()):
		a.fatal("the App did not come to phase %s in %v: it is in phase %s", p, a.patience(), a.Phase())
	}
	select {
	case <-reached: // also when it has ended meanwhile
		a.awaitEvent(p)
	default:
		a.fatal("the App never came to phase %s: it ended in phase %s with: %v", p, a.Phase(), a.err)
	}
}

// awaitEvent waits for the event of a phase that the App has entered. It comes a moment
// later, and a test that has awaited the phase may ask for the event.
func (a *App) awaitEvent(p lifecycle.Phase) {
	is := func(e fsm.Event) bool { return e.IsGap() || e.Kind == lifecycle.KindApp && e.To == string(p) }
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	if p == lifecycle.PhaseCreated || slices.ContainsFunc(a.events, is) {
		return
	}
	for e := range a.reader.All(ctx) {
		a.events = append(a.events, e)
		if is(e) {
			return
		}
	}
}

// Wait waits until Run has returned, and returns its error. It does not stop the App.
func (a *App) Wait() error {
	a.t.Helper()
	if !a.started {
		a.t.Fatalf("lifecycletest: the App was not started")
	}
	select {
	case <-a.ended:
	case <-time.After(a.patience()):
		a.fatal("the App did not end in %v: it is in phase %s; was it asked to stop?", a.patience(), a.Phase())
	}
	return a.err
}

// WantClean waits until Run has returned and fails the test when it returned an
// error, cut requests or left anything behind.
func (a *App) WantClean() {
	a.t.Helper()
	if err := a.Wait(); err != nil {
		a.errorf("Run returned: %v", err)
	}
	if n := a.Report().CutRequests; n > 0 {
		a.errorf("%d requests were cut", n)
	}
	for _, text := range a.Report().Left {
		a.errorf("left behind: %s", text)
	}
}

func (a *App) patience() time.Duration {
	cfg := a.Config()
	return max(cfg.DrainInterval, cfg.DrainMax, 0) + cfg.ShutdownGrace + Patience
}

// Ask requests a path of the health planes, such as "/readyz", and returns the status
// and the body. It needs no health server.
func (a *App) Ask(path string) (status int, body string) {
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// WantReady fails the test unless /readyz says that the App is ready, or is not, as want
// says.
func (a *App) WantReady(want bool) {
	a.t.Helper()
	status, body := a.Ask("/readyz")
	if (status == http.StatusOK) != want {
		a.errorf("/readyz is %d %s, want ready to be %v", status, strings.TrimSpace(body), want)
	}
}

// Log returns what the App has logged so far. A line may come a moment after its event.
// When Run has returned the log is complete.
func (a *App) Log() string { return a.log.String() }

// cleanup stops the App and looks for goroutines that it has left running.
func (a *App) cleanup() {
	a.t.Helper()
	defer a.reader.Close()
	if !a.started {
		return
	}
	a.Stop(nil)
	select {
	case <-a.ended:
		if left := leftBehind(a.label); left != "" {
			a.errorf("goroutines that the App began are left after it has ended:\n%s", left)
		}
	case <-time.After(a.patience()):
		a.errorf("the App did not end in %v after the test: it is in phase %s; its goroutines:\n%s",
			a.patience(), a.Phase(), labelledStacks(a.label))
	}
	if a.t.Failed() {
		a.t.Logf("lifecycletest: what happened:\n%s\nthe App's log:\n%s", a.Timeline(), a.Log())
	}
}

func (a *App) errorf(format string, args ...any) {
	a.t.Helper()
	a.t.Errorf("lifecycletest: "+format, args...)
}

func (a *App) fatal(format string, args ...any) {
	a.t.Helper()
	a.t.Fatalf("lifecycletest: "+format, args...)
}
