package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/asynclog"
)

// ErrAlreadyRun is returned by the second [App.Run]: an App lives once.
var ErrAlreadyRun = errors.New("app was run before")

// App is the one owner of a process's life. Register what it consists of, in
// any order and chained, then call [App.Run] once. What is wrong with a
// registration, a name that is used twice or a missing function, is collected,
// and Run returns it and starts nothing.
//
// An App is made by [New]; its zero value is of no use. All methods may be
// called concurrently.
type App struct {
	cfg      Config // what reload:"live" marks is written under mu until T0, and read freely from then on
	log      *slog.Logger
	queue    *asynclog.Queue // between the log and the App
	reg      *Registry
	hooks    *Shutdown
	phases   *fsm.Machine[Phase]
	events   fsm.Dispatcher
	setups   []func(*App) error      // of options, for New
	extra    map[string]http.Handler // what the health server serves beside the planes
	pipe     chan os.Signal          // takes SIGPIPE while the App goes down, and is never read
	stderr   io.Writer               // of dumps
	exit     func(int)
	terminal func() bool
	token    func() (string, error) // of operators; nil when there is none

	given        <-chan os.Signal // signals in place of the process's
	signalsGiven bool             // there is such a channel, and the process is left alone

	draining   chan struct{} // closed at T0
	stopping   chan struct{} // closed at T0, before draining: what waits inside the App watches it
	skip       chan struct{} // closed to end the drain window early
	skipOnce   sync.Once
	windowOver chan struct{} // closed at the window's end

	reloading   chan struct{} // holds a token while a reload runs
	reloadAsked chan struct{} // holds a token while one is asked for

	notifier  atomic.Pointer[notifier] // nil without a service manager
	watchdog  atomic.Pointer[time.Timer]
	doing     atomic.Pointer[string] // what the App waits for, for last words
	cancelled atomic.Bool            // units have been told to stop
	dying     atomic.Bool            // the process is being ended by force

	words        sync.Mutex  // held while the termination log is written, and for nothing else; guards what is written
	hasLog       atomic.Bool // there is a termination log
	wordsTurn    atomic.Uint64
	wordsWritten uint64 // the turn of what stands there
	wordsSaid    string // and what that is

	// Set by Run, in its goroutine, before anything that reads them starts.
	unitsCtx     context.Context
	cancelUnits  context.CancelCauseFunc
	reloadCtx    context.Context // ends with the drain window
	cancelReload context.CancelFunc
	health       *healthServer
	healthEnded  chan struct{} // closed when its serve has returned
	windowEnd    time.Time

	mu       sync.Mutex // guards what follows; sealed things are read freely once Run has begun
	sealed   bool
	errs     []error // refused registrations that Run returns
	late     []error // refused registrations that came after Run had begun
	names    map[string]bool
	claimed  map[any]string // servers and listeners, and the unit that has each
	units    []*unit
	servers  []*server
	drainers []hook
	reloads  []hook
	early    *stopRequest // made before Run
	request  *stopRequest // the first, set at T0
	further  []error      // of later requests
	t0       time.Time
	window   string
	drained  []Outcome
	reloaded []Outcome     // the last ones
	reloadsN []ReloadCount // of all
	cut      int
	left     []string // what was not waited for at the end
	result   error
}

// Option shapes an [App] as it is made.
type Option func(*App)

// WithLogger sets the logger. Defaults to slog.Default. The App writes through a
// queue: a log that is slow or stuck loses lines and never delays a stop.
func WithLogger(log *slog.Logger) Option {
	return func(a *App) {
		if log != nil {
			a.log = log
		}
	}
}

// WithMetrics serves h at /metrics on the health address.
func WithMetrics(h http.Handler) Option {
	return func(a *App) {
		if isNil(h) {
			a.errs = append(a.errs, errors.New("WithMetrics: the handler is nil"))
			return
		}
		a.extra["/metrics"] = h
	}
}

// WithSetup calls fn with the App as the last thing that [New] does, when nothing
// is wrong with it: whoever reads the App's events or its [App.Status], such as
// metrics and traces, begins there. An error of fn is that of New, and functions
// given after it are not called; what those before it have done stays. More than
// one may be given.
func WithSetup(fn func(*App) error) Option {
	return func(a *App) {
		if fn == nil {
			a.errs = append(a.errs, errors.New("WithSetup: the function is nil"))
			return
		}
		a.setups = append(a.setups, fn)
	}
}

// WithSignals takes the signals from ch in place of those of the process, which
// is then not touched: SIGHUP reloads, any other is a request to stop. Run reads
// ch, from its beginning to its end, so that what was sent to a buffered one
// before is kept; a nil or closed channel gives no signals. None counts as
// Ctrl-C at a terminal. It is for tests, and for a program that has handlers of
// its own.
func WithSignals(ch <-chan os.Signal) Option {
	return func(a *App) {
		a.given, a.signalsGiven = ch, true
		a.terminal = func() bool { return false }
	}
}

// New returns an App. It returns an error that names every field of cfg that
// makes no sense and every sum that does not fit; see [Config.Validate].
func New(cfg Config, opts ...Option) (*App, error) {
	cfg = cfg.WithDefaults()
	a := &App{
		cfg:         cfg,
		log:         slog.Default(),
		extra:       make(map[string]http.Handler),
		stderr:      os.Stderr,
		exit:        exitProcess,
		terminal:    atTerminal,
		pipe:        make(chan os.Signal, 1),
		draining:    make(chan struct{}),
		stopping:    make(chan struct{}),
		skip:        make(chan struct{}),
		windowOver:  make(chan struct{}),
		reloading:   make(chan struct{}, 1),
		reloadAsked: make(chan struct{}, 1),
		names:       make(map[string]bool),
	}
	for _, opt := range opts {
		if opt != nil {
			opt(a)
		}
	}
	a.mountStatusz()
	a.errs = append(a.errs, a.mountAdmin())
	if err := errors.Join(append([]error{cfg.Validate()}, a.errs...)...); err != nil {
		return nil, err
	}
	a.phases = fsm.MustNew(KindApp, cfg.Name, phases, PhaseCreated, &a.events, fsm.WithTimeline())
	a.events.SetOwner(a.phases.ID())
	a.log, a.queue = asynclog.New(a.log)
	a.hooks = NewShutdown(a.log)
	a.hooks.now = a.nowDoing
	a.hooks.events = &a.events
	a.reg = NewRegistry(WithProbeTimeout(cfg.ProbeTimeout), WithProbeEvents(&a.events))
	for _, setup := range a.setups {
		if err := setup(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// FromConfig is [New] under the name that fleets know it by.
func FromConfig(cfg Config, opts ...Option) (*App, error) { return New(cfg, opts...) }

// Config returns the App's configuration, with its defaults filled in and
// without the AdminToken.
func (a *App) Config() Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cfg
}

// Registry returns the App's health registry, for liveness and startup checks
// and for everything that [App.Probe] does not do.
func (a *App) Registry() *Registry { return a.reg }

// Probe registers a readiness probe: a dependency without which the App cannot
// serve. Checks of the process itself belong into Registry().RegisterLiveness,
// and nothing that depends on others does.
func (a *App) Probe(name string, p Probe, opts ...ProbeOption) *App {
	if a.lateFor("probe", name) {
		return a
	}
	_ = a.reg.RegisterReadiness(name, p, opts...) // collected there, returned by Run
	return a
}

// OnShutdown puts a hook on the stack of what is closed last, after every unit
// has returned: LIFO, each exactly once, all within ShutdownGrace, whatever
// failed before. Hooks run also when the App never got to run, because what they
// close was mostly opened before.
func (a *App) OnShutdown(name string, fn func(context.Context) error) *App {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.registerLocked("shutdown hook", name, fn == nil) {
		a.hooks.Add(name, fn)
	}
	return a
}

// registerLocked notes the name of a thing of some kind. It reports false, and
// keeps the reason, when the thing is to be refused.
func (a *App) registerLocked(kind, name string, missing bool) bool {
	switch key := kind + " " + name; {
	case a.sealed:
		a.lateLocked(kind, name)
	case missing:
		a.errs = append(a.errs, fmt.Errorf("%s %q: nil where a function or value is needed", kind, name))
	case name == "":
		a.errs = append(a.errs, fmt.Errorf("a %s has no name", kind))
	case a.names[key]:
		a.errs = append(a.errs, fmt.Errorf("%s %q is registered twice: names must differ", kind, name))
	default:
		a.names[key] = true
		return true
	}
	return false
}

// refuse notes why a thing cannot be registered.
func (a *App) refuse(kind, name string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sealed {
		a.lateLocked(kind, name)
		return
	}
	a.errs = append(a.errs, fmt.Errorf("%s %q: %w", kind, name, err))
}

func (a *App) lateFor(kind, name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sealed {
		a.lateLocked(kind, name)
	}
	return a.sealed
}

// lateLocked refuses what comes after Run has begun: it would be half in the
// choreography and half out of it.
func (a *App) lateLocked(kind, name string) {
	err := fmt.Errorf("%s %q was registered after Run had begun, and is ignored", kind, name)
	a.late = append(a.late, err)
	a.log.Error("registration refused: Run has begun", "kind", kind, "name", name)
}

// Stop asks the App to stop, and returns at once: the drain begins. A nil cause
// is a clean stop; any other is what Run returns first. Only the first request
// to stop counts, whoever makes it; the cause of a later one is kept and joined.
// Before Run it makes Run stop as soon as it begins; after Run it does nothing.
func (a *App) Stop(cause error) {
	reason := "App.Stop was called"
	cause = readable("the cause given to App.Stop", cause)
	if cause != nil {
		reason += ": " + cause.Error()
	}
	if !a.requestStop(stopRequest{reason: reason, cause: cause, err: cause}) && cause != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.further = append(a.further, cause)
	}
}
