package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"reflect"
	"runtime/trace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/internal/asynclog"
	"github.com/pleme-io/lifecycle-go/internal/budget"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/inbox"
	"github.com/pleme-io/lifecycle-go/internal/laststop"
	"github.com/pleme-io/lifecycle-go/internal/sdnotify"
	"github.com/pleme-io/lifecycle-go/internal/sdsocket"
	"github.com/pleme-io/lifecycle-go/internal/sig"
	"github.com/pleme-io/lifecycle-go/internal/statusz"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ErrAlreadyRun is returned by the second [App.Run]: an App lives once.
var ErrAlreadyRun = errors.New("lifecycle: the App was run before")

// errZeroApp is the error of Run of an App that New did not make.
var errZeroApp = errors.New("lifecycle: the App was not made by New and has no Config: use lifecycle.New")

// App owns the life of a process. Register the parts of the process, in any order
// and chained, then call [App.Run] once. The App collects wrong registrations, such
// as a name that is used twice or a missing function: Run returns them and starts
// nothing.
//
// [New] makes an App. The zero App takes no registrations, and its Run returns an error
// that says so. All methods may be called concurrently.
type App struct {
	mu     sync.Mutex // guards budget, and until T0 the fields of cfg that are tagged reload:"live"
	cfg    Config
	budget budget.Budget // the times of cfg

	log      *slog.Logger
	queue    *asynclog.Queue // between the log and the App
	events   fsm.Dispatcher
	phases   *fsm.Machine[Phase]
	hooks    *Shutdown
	extra    map[string]http.Handler           // the health server's handlers beside the planes
	token    func() (string, error)            // the operators' token; nil when there is none
	notifier atomic.Pointer[sdnotify.Notifier] // nil without a service manager

	health     ownHealth
	parts      parts
	signals    signals
	stop       stopRecord
	reloads    reloads
	exitRecord exitRecord
	box        blackBox
	forced     forcedExit
	upgrade    upgrade

	// Run sets these in its goroutine, before it starts anything that reads them.
	unitsCtx    context.Context
	cancelUnits context.CancelCauseFunc
}

// parts holds the registered parts of an App. Once Run has sealed it, the fields
// do not change, and every goroutine reads them without the lock.
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
	drainers []drainer
	reports  []namedFunc // of OnReport
	reloads  []*reloader
	resizes  []*reloader
	sockets  sdsocket.Sockets   // on which this process listens
	launched int                // units that were launched, in order; Run's goroutine alone uses it
	ended    inbox.Inbox[*unit] // functions that have ended, for watch
}

// Option configures an [App] in [New].
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
		a.extra["/metrics"] = a.exitRecord.scrape.Handler(h)
	}
}

// WithFlightRecorder gives the App the program's own flight recorder, for the trace of
// Config.BlackBoxDir. There can be one in a process. The program starts it before Run and
// stops it itself. Without BlackBoxDir the option does nothing.
func WithFlightRecorder(r *trace.FlightRecorder) Option {
	return func(a *App) {
		if r == nil {
			a.parts.refused = append(a.parts.refused, errors.New("WithFlightRecorder: the recorder is nil"))
			return
		}
		a.box.flight = r
	}
}

// WithSetup calls fn with the App as the last step of [New], when the rest of New
// has succeeded. Metrics, traces and other readers of the App's events or its
// [App.Status] subscribe there. When fn returns an error, New returns it and calls
// no further function; New does not undo the work of earlier functions. The option
// may be given more than once.
func WithSetup(fn func(*App) error) Option {
	return func(a *App) {
		if fn == nil {
			a.parts.refused = append(a.parts.refused, errors.New("WithSetup: the function is nil"))
			return
		}
		a.parts.setups = append(a.parts.setups, fn)
	}
}

// WithSignals makes the App take signals from ch and ignore the signals of the
// process: SIGHUP reloads, [Config.UpgradeSignal] begins an upgrade, and any other signal is a
// request to stop. Run reads ch from
// its beginning to its end, so a buffered channel keeps the signals that were sent
// before. A nil or closed channel gives no signals. The App never treats one of them
// as Ctrl-C at a terminal. The option is for tests and for programs with signal
// handlers of their own.
func WithSignals(ch <-chan os.Signal) Option {
	return func(a *App) {
		a.signals.given, a.signals.replaced = ch, true
		a.signals.terminal = func() bool { return false }
	}
}

// New returns an App. Its error names every field of cfg whose value makes no sense
// and every sum that does not fit; see [Config.Validate].
func New(cfg Config, opts ...Option) (*App, error) {
	cfg = cfg.WithDefaults()
	a := &App{
		cfg:     cfg,
		budget:  newBudget(cfg),
		log:     slog.Default(),
		extra:   make(map[string]http.Handler),
		signals: signals{terminal: sig.AtTerminal, pipe: make(chan os.Signal, 1)},
		reloads: reloads{turn: make(chan struct{}, 1), asked: fsm.NewWake(), longestStop: max(cfg.PreStop, 0) + newBudget(cfg).Total},
		forced:  forcedExit{stderr: os.Stderr, exit: exitProcess},
		upgrade: upgrade{turn: make(chan struct{}, 1), asked: fsm.NewWake()},
	}
	for i, opt := range opts {
		if opt == nil {
			a.parts.refused = append(a.parts.refused, fmt.Errorf("New: %w", nilOption(i)))
			continue
		}
		opt(a)
	}
	var err error // of a token, which moves out of the Config
	a.token, err = statusz.Token(string(cfg.AdminToken), cfg.AdminTokenFile)
	a.cfg.AdminToken = ""
	a.parts.refused = append(a.parts.refused, err)
	if err := errors.Join(append([]error{cfg.Validate()}, a.parts.refused...)...); err != nil {
		return nil, err
	}
	a.phases = fsm.MustNew(KindApp, cfg.Name, phases, PhaseCreated, &a.events, fsm.WithTimeline())
	a.events.SetOwner(a.phases.ID())
	a.log, a.queue = asynclog.New(a.log)
	a.parts.log = a.log
	a.mount()
	if err := a.join(); err != nil {
		return nil, err
	}
	a.exitRecord.previous = laststop.Open[Report](&a.exitRecord.file, cfg.LastStopFile, a.log)
	if a.upgrade.parent != nil {
		a.exitRecord.previous = nil // the process that this one replaces has not ended
	}
	if p := a.exitRecord.previous; p != nil && p.Phase != PhaseStopped {
		a.log.Warn("the last stop did not go well", "phase", p.Phase, "exit_status", p.ExitStatus, "reason", p.Reason, "error", p.Error)
	}
	a.hooks = NewShutdown(a.log)
	a.hooks.waiting = a.setWaiting
	a.hooks.events = &a.events
	a.hooks.abandoned = func(hook string) { a.saveBox("hook " + hook + " was abandoned") }
	a.health.reg, a.health.owner = health.NewOwned(health.WithProbeTimeout(cfg.ProbeTimeout), health.WithEvents(&a.events))
	for _, setup := range a.parts.setups {
		if err := setup(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// FromConfig is [New], for a Config that is a section of a program's own configuration.
func FromConfig(cfg Config, opts ...Option) (*App, error) { return New(cfg, opts...) }

// Config returns the App's configuration, with its defaults filled in and
// without the AdminToken.
func (a *App) Config() Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cfg
}

// times returns the present budget: Reconfigure replaces it before T0, and refit after the window.
func (a *App) times() budget.Budget {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.budget
}

// add calls put under the lock. When the registration is wrong or late, it records
// the reason instead. missing says which argument is nil, "" for none.
func (p *parts) add(kind, name, missing string, put func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch key := kind + " " + name; {
	case p.log == nil: // a zero App, of which Run says so
	case p.sealed:
		p.lateLocked(kind, name)
	case missing != "":
		p.refused = append(p.refused, fmt.Errorf("%s %q: %s", kind, name, missing))
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

// argument is an argument that a verb of the App needs.
type argument struct {
	name  string
	isNil bool
}

// missing says which arguments of a verb are nil, "" for none.
func missing(verb string, args ...argument) string {
	var names []string
	for _, arg := range args {
		if arg.isNil {
			names = append(names, "the "+arg.name+" is nil")
		}
	}
	if names == nil {
		return ""
	}
	return verb + ": " + strings.Join(names, ", ")
}

// refuse records why the registration of a unit is wrong.
func (p *parts) refuse(name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		p.lateLocked("unit", name)
		return
	}
	p.refused = append(p.refused, fmt.Errorf("unit %q: %w", name, err))
}

// isLate reports whether Run has begun. If so, it records the late registration. An App
// that New did not make takes none either.
func (p *parts) isLate(kind, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		p.lateLocked(kind, name)
	}
	return p.sealed || p.log == nil
}

// lateErrors returns why registrations were refused after Run had begun.
func (p *parts) lateErrors() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.late)
}

// lateLocked refuses a registration that comes after Run has begun: the part would
// miss the steps that are already over. For a unit it says what takes one instead.
func (p *parts) lateLocked(kind, name string) {
	err := fmt.Errorf("%s %q was registered after Run had begun, and is ignored", kind, name)
	if kind == "unit" {
		instead := "register a worker.Supervisor before Run, and give it children with its Add"
		var names []string
		for _, u := range p.units {
			if _, ok := u.Worker.(*worker.Supervisor); ok {
				names = append(names, u.name)
			}
		}
		if names != nil {
			instead = "give it as a child to a supervisor of this App (" + strings.Join(names, ", ") + ") with its Add"
		}
		err = fmt.Errorf("%w: %s", err, instead)
	}
	p.late = append(p.late, err)
	p.log.Error("registration refused: Run has begun", "kind", kind, "name", name, "error", err)
}

// seal ends registration. It reports false when it was called before.
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

// claimLocked refuses a server or a listener that another unit has, because each
// unit would close it while the other uses it.
func (p *parts) claimLocked(name, what string, v any) {
	if !reflect.ValueOf(v).Comparable() {
		return // two of them cannot be told apart
	}
	if owner, taken := p.claimed[v]; taken {
		p.refused = append(p.refused, fmt.Errorf("unit %q: its %s, a %T, is already used by unit %q; give each its own", name, what, v, owner))
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

// Phases returns the table of allowed phase changes. The caller owns it.
func Phases() fsm.Table[Phase] { return phases.Clone() }

var phases = fsm.Table[Phase]{
	PhaseCreated:  {PhaseStarting, PhaseFailed, PhaseKilled},
	PhaseStarting: {PhaseRunning, PhaseStopping, PhaseKilled},
	PhaseRunning:  {PhaseDraining, PhaseKilled},
	PhaseDraining: {PhaseStopping, PhaseKilled},
	PhaseStopping: {PhaseStopped, PhaseFailed, PhaseKilled},
	PhaseStopped:  {},
	PhaseFailed:   {},
	PhaseKilled:   {},
}

// inOrder lists the phases in the order in which an App enters them.
var inOrder = []Phase{PhaseCreated, PhaseStarting, PhaseRunning, PhaseDraining, PhaseStopping, PhaseStopped, PhaseFailed, PhaseKilled}

// The Kinds of the events that the App itself sends.
const (
	KindApp     = "app"     // its changes of phase
	KindDrainer = "drainer" // a drainer of OnDrain
	KindHook    = "hook"    // a hook of OnShutdown
	KindReload  = "reload"  // a function of OnReload or OnResize; each run is a life of its own
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

// step returns the machine of a drainer, hook or reload that begins to run. The
// caller moves it to the result. events may be nil.
func step(kind, name string, events *fsm.Dispatcher) *fsm.Machine[Result] {
	m := fsm.MustNew(kind, name, steps, resultPending, events)
	_ = m.To(ResultRunning, nil) // allowed
	return m
}

// Phase returns the phase that the App is in.
func (a *App) Phase() Phase { return a.phases.State() }

// lastReached returns the phase without the machine's lock, for callers that must
// not wait. While the App enters a phase, it may return the previous one.
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

// Reached returns a channel that closes when the App enters p. An App enters a
// phase at most once, so the channel stays closed. For a p that is not a phase it
// returns nil.
func (a *App) Reached(p Phase) <-chan struct{} { return a.phases.Reached(p) }

// EnteredAt returns the time at which the App entered p, or the zero time when it
// has not. A phase that [App.Phase] has returned always has a time.
func (a *App) EnteredAt(p Phase) time.Time { return a.phases.EnteredAt(p) }

// Events returns the stream of all state changes in the App: of its phases (Kind
// [KindApp]), its units (Kind worker.KindWorker), its probes (Kind "probe"), and its
// drainers, shutdown hooks and reloads ([KindDrainer], [KindHook], [KindReload]: from
// "pending" to "running" to the [Result]).
//
// Events with the same ID belong to one life; they come in order, each once. The
// App's own life is the Parent of its units, probes, drainers, hooks and reloads. A
// supervised function ([App.Supervise]) is one life, and each of its runs is an
// Attempt.
func (a *App) Events() *fsm.Dispatcher { return &a.events }

// enter changes the phase and tells the termination log, the service manager and the
// LastStopFile.
func (a *App) enter(p Phase, cause error) {
	// A function that holds the machine's lock and does not return blocks the App.
	// The watchdog's termination log then names this change of phase.
	doing := a.forced.waitingFor.Load()
	change := "the change of phase to " + string(p)
	a.forced.waitingFor.Store(&change)
	if err := a.phases.To(p, cause); err != nil {
		// Only PhaseKilled, which comes at any time, makes a change impossible.
		a.log.Error("phase change refused", "error", err)
		return
	}
	a.forced.waitingFor.Store(doing)
	a.terminationLog()
	a.tellServiceManager(p)
	if a.exitRecord.file.Keeps() && !a.upgrade.standby.Load() {
		a.exitRecord.file.Write(a.Report())
	}
}
