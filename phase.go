package lifecycle

import (
	"maps"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

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
