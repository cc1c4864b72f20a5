package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/internal/asynclog"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/sdnotify"
)

// ErrAlreadyRun is returned by the second [App.Run]: an App lives once.
var ErrAlreadyRun = errors.New("app was run before")

// App owns the life of a process. Register what the process consists of, in any
// order and chained, then call [App.Run] once. A wrong registration, such as a
// name that is used twice or a missing function, is collected: Run returns it
// and starts nothing.
//
// [New] makes an App; the zero value is of no use. All methods may be called
// concurrently.
type App struct {
	mu     sync.Mutex // guards budget and the fields of cfg that are tagged reload:"live", until T0
	cfg    Config
	budget budget // the times of cfg

	log      *slog.Logger
	queue    *asynclog.Queue // between the log and the App
	events   fsm.Dispatcher
	phases   *fsm.Machine[Phase]
	hooks    *Shutdown
	extra    map[string]http.Handler           // what the health server serves beside the planes
	token    func() (string, error)            // the operators' token; nil when there is none
	notifier atomic.Pointer[sdnotify.Notifier] // nil without a service manager

	health  ownHealth
	parts   parts
	signals signals
	stop    stop
	reloads reloads
	words   sdnotify.TerminationLog // the last words
	death   death

	// Run sets these in its goroutine, before it starts anything that reads them.
	unitsCtx    context.Context
	cancelUnits context.CancelCauseFunc
}

// parts is what an App consists of. Registration fills it. Once Run has sealed
// it, the fields do not change, and every goroutine reads them without the lock.
type parts struct {
	log *slog.Logger

	mu       sync.Mutex // guards the fields below until they are sealed, and late always
	sealed   bool
	refused  []error // registrations that Run returns
	late     []error // registrations that came after Run had begun
	names    map[string]bool
	claimed  map[any]string // servers and listeners, and the unit that has each
	setups   []func(*App) error
	units    []*unit
	servers  []*server
	drainers []hook
	reloads  []hook
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
		if call.IsNil(h) {
			a.parts.refused = append(a.parts.refused, errors.New("WithMetrics: the handler is nil"))
			return
		}
		a.extra["/metrics"] = h
	}
}

// WithSetup calls fn with the App as the last step of [New], when the rest of New
// has succeeded. Readers of the App's events or its [App.Status], such as metrics
// and traces, begin there. New returns the first error of such a function and
// calls no further one; what earlier functions did stays done. The option may be
// given more than once.
func WithSetup(fn func(*App) error) Option {
	return func(a *App) {
		if fn == nil {
			a.parts.refused = append(a.parts.refused, errors.New("WithSetup: the function is nil"))
			return
		}
		a.parts.setups = append(a.parts.setups, fn)
	}
}

// WithSignals takes the signals from ch and leaves those of the process alone:
// SIGHUP reloads, any other signal is a request to stop. Run reads ch from its
// beginning to its end, so that a buffered channel keeps what was sent before; a
// nil or closed channel gives no signals. None of them counts as Ctrl-C at a
// terminal. The option is for tests and for programs with handlers of their own.
func WithSignals(ch <-chan os.Signal) Option {
	return func(a *App) {
		a.signals.given, a.signals.replaced = ch, true
		a.signals.terminal = func() bool { return false }
	}
}

// New returns an App. Its error names every field of cfg that makes no sense and
// every sum that does not fit; see [Config.Validate].
func New(cfg Config, opts ...Option) (*App, error) {
	cfg = cfg.WithDefaults()
	a := &App{
		cfg:     cfg,
		budget:  newBudget(cfg),
		log:     slog.Default(),
		extra:   make(map[string]http.Handler),
		signals: signals{terminal: atTerminal, pipe: make(chan os.Signal, 1)},
		reloads: reloads{turn: make(chan struct{}, 1), asked: fsm.NewWake()},
		death:   death{stderr: os.Stderr, exit: exitProcess},
	}
	for i, opt := range opts {
		if opt == nil {
			a.parts.refused = append(a.parts.refused, fmt.Errorf("New: %w", nilOption(i)))
			continue
		}
		opt(a)
	}
	a.parts.refused = append(a.parts.refused, a.takeToken())
	if err := errors.Join(append([]error{cfg.Validate()}, a.parts.refused...)...); err != nil {
		return nil, err
	}
	a.phases = fsm.MustNew(KindApp, cfg.Name, phases, PhaseCreated, &a.events, fsm.WithTimeline())
	a.events.SetOwner(a.phases.ID())
	a.log, a.queue = asynclog.New(a.log)
	a.parts.log = a.log
	a.mount()
	a.hooks = NewShutdown(a.log)
	a.hooks.now = a.nowDoing
	a.hooks.events = &a.events
	a.health.reg, a.health.owner = health.NewOwned(health.WithProbeTimeout(cfg.ProbeTimeout), health.WithEvents(&a.events))
	for _, setup := range a.parts.setups {
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

// times returns the budget before T0, when Reconfigure may still change it.
func (a *App) times() budget {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.budget
}

// add calls put under the lock unless the registration is wrong or late; then it
// keeps the reason. kind and name say what is registered; missing says that its
// function or value is nil.
func (p *parts) add(kind, name string, missing bool, put func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch key := kind + " " + name; {
	case p.sealed:
		p.lateLocked(kind, name)
	case missing:
		p.refused = append(p.refused, fmt.Errorf("%s %q: nil where a function or value is needed", kind, name))
	case name == "":
		p.refused = append(p.refused, fmt.Errorf("a %s has no name", kind))
	case p.names[key]:
		p.refused = append(p.refused, fmt.Errorf("%s %q is registered twice: names must differ", kind, name))
	default:
		if p.names == nil {
			p.names = make(map[string]bool)
		}
		p.names[key] = true
		put()
	}
}

// refuse keeps why a registration is wrong.
func (p *parts) refuse(kind, name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		p.lateLocked(kind, name)
		return
	}
	p.refused = append(p.refused, fmt.Errorf("%s %q: %w", kind, name, err))
}

// isLate reports whether Run has begun, and keeps that this registration came
// after it.
func (p *parts) isLate(kind, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		p.lateLocked(kind, name)
	}
	return p.sealed
}

// lateLocked refuses a registration that comes after Run has begun: it would
// take part in half of the choreography.
func (p *parts) lateLocked(kind, name string) {
	p.late = append(p.late, fmt.Errorf("%s %q was registered after Run had begun, and is ignored", kind, name))
	p.log.Error("registration refused: Run has begun", "kind", kind, "name", name)
}

// seal ends registration. It reports false when it has ended before.
func (p *parts) seal() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		return false
	}
	p.sealed = true
	return true
}

// view returns the units and servers registered so far.
func (p *parts) view() ([]*unit, []*server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.units[:len(p.units):len(p.units)], p.servers[:len(p.servers):len(p.servers)]
}

// claimLocked refuses a server or a listener that another unit has: each unit
// would close it under the other.
func (p *parts) claimLocked(name, what string, v any) {
	if !reflect.ValueOf(v).Comparable() {
		return // two of them cannot be told apart
	}
	if owner, taken := p.claimed[v]; taken {
		p.refused = append(p.refused, fmt.Errorf("unit %q: its %s, a %T, is that of unit %q already: give each its own", name, what, v, owner))
		return
	}
	if p.claimed == nil {
		p.claimed = make(map[any]string)
	}
	p.claimed[v] = name
}

// Phase is where an [App] is in its one life.
type Phase string

// The phases, in order. Each is entered at most once.
const (
	PhaseCreated  Phase = "created"  // New has returned
	PhaseStarting Phase = "starting" // Run was called: listeners are bound, units started
	PhaseRunning  Phase = "running"  // every unit has started
	PhaseDraining Phase = "draining" // a stop was requested: everything is still served
	PhaseStopping Phase = "stopping" // units are cancelled, hooks run
	PhaseStopped  Phase = "stopped"  // it ended cleanly
	PhaseFailed   Phase = "failed"   // it ended with an error
	PhaseKilled   Phase = "killed"   // a further signal or the watchdog ended the process
)

// Phases returns the table that every App lives by. The caller owns it.
func Phases() fsm.Table[Phase] {
	t := maps.Clone(phases)
	for p := range t {
		t[p] = slices.Clone(t[p])
	}
	return t
}

var phases = fsm.Table[Phase]{
	PhaseCreated:  {PhaseStarting, PhaseFailed},
	PhaseStarting: {PhaseRunning, PhaseStopping, PhaseKilled},
	PhaseRunning:  {PhaseDraining, PhaseKilled},
	PhaseDraining: {PhaseStopping, PhaseKilled},
	PhaseStopping: {PhaseStopped, PhaseFailed, PhaseKilled},
	PhaseStopped:  {},
	PhaseFailed:   {},
	PhaseKilled:   {},
}

// inOrder lists the phases as they follow each other.
var inOrder = []Phase{PhaseCreated, PhaseStarting, PhaseRunning, PhaseDraining, PhaseStopping, PhaseStopped, PhaseFailed, PhaseKilled}

// The Kinds of the events that an App itself makes.
const (
	KindApp     = "app"     // its changes of phase
	KindDrainer = "drainer" // what OnDrain registered
	KindHook    = "hook"    // what OnShutdown registered
	KindReload  = "reload"  // what OnReload registered; each run is a life of its own
)

// resultPending is the state before a drainer, hook or reload runs.
const resultPending Result = "pending"

// steps is the table of drainers, hooks and reloads.
var steps = fsm.Table[Result]{
	resultPending:   {ResultRunning, ResultSkipped},
	ResultRunning:   {ResultOK, ResultFailed, ResultPanicked, ResultAbandoned},
	ResultOK:        {},
	ResultFailed:    {},
	ResultPanicked:  {},
	ResultAbandoned: {},
	ResultSkipped:   {},
}

// step returns the life of a drainer, hook or reload that begins to run. The
// caller ends it with the result. events may be nil.
func step(kind, name string, events *fsm.Dispatcher) *fsm.Machine[Result] {
	m := fsm.MustNew(kind, name, steps, resultPending, events)
	_ = m.To(ResultRunning, nil) // allowed
	return m
}

// Phase returns the phase that the App is in.
func (a *App) Phase() Phase { return a.phases.State() }

// lastReached is Phase for a caller that must not wait for the machine's lock. While
// a phase is being entered it may be the one before.
func (a *App) lastReached() Phase {
	last := PhaseCreated
	for _, p := range inOrder {
		select {
		case <-a.phases.Reached(p):
			last = p
		default:
		}
	}
	return last
}

// Reached returns a channel that is closed when the App enters p. A phase is
// entered at most once, so the channel stays closed; for a word that is no
// phase it is nil and never closes.
func (a *App) Reached(p Phase) <-chan struct{} { return a.phases.Reached(p) }

// EnteredAt returns when the App entered p, and the zero time when it has not.
// The phase that [App.Phase] has returned has its time.
func (a *App) EnteredAt(p Phase) time.Time { return a.phases.EnteredAt(p) }

// Events returns the stream of everything that changes in the App: its phases
// (Kind [KindApp]), its units (Kind worker.KindWorker), its probes (Kind
// "probe"), and its drainers, shutdown hooks and reloads ([KindDrainer],
// [KindHook], [KindReload]: from "pending" to "running" and the [Result]).
//
// The events of one life, those with the same ID, come in order, each once. The
// App's own life is the Parent of its units, probes, drainers, hooks and reloads. A
// supervised function ([App.Supervise]) is one life, each run of it an Attempt.
func (a *App) Events() *fsm.Dispatcher { return &a.events }

// enter changes the phase and tells the service manager and the termination log.
func (a *App) enter(p Phase, cause error) {
	// A function that holds the machine's lock and does not return holds the App:
	// the termination log that the watchdog writes names this change.
	doing := a.death.waitingFor.Load()
	change := "the change of phase to " + string(p)
	a.death.waitingFor.Store(&change)
	if err := a.phases.To(p, cause); err != nil {
		// Only a process that is being killed leaves the path.
		a.log.Error("phase change refused", "error", err)
		return
	}
	a.death.waitingFor.Store(doing)
	a.terminationLog()
	a.tellServiceManager(p)
}
