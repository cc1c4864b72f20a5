package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Backoff is the restart policy of a supervised unit: how long it waits before it
// runs again, and when it stops trying.
type Backoff = worker.Backoff

// PanicError is a recovered panic of a unit, hook, drainer or check. Name is the name
// of the part, Value the argument of panic, and Stack the goroutine's stack. When Value
// is an error, PanicError unwraps to it.
type PanicError = worker.PanicError

// AbandonedError names a call that ignored its context and was abandoned: Name is the
// name of the call, Where the line at which it was blocked, and Stack the goroutine's
// stack.
type AbandonedError = worker.AbandonedError

var (
	// ErrDoNotRestart is returned by a supervised function whose work is done: the
	// unit ends cleanly and the App goes on. When it is joined with another error, the
	// unit has failed: the App goes on too, logs that error, and joins it to Run's.
	ErrDoNotRestart = worker.ErrDoNotRestart

	// ErrTerminate is returned by a supervised function to stop the whole App. It
	// becomes the cause of the stop.
	ErrTerminate = worker.ErrTerminate

	// ErrRestartBudget is the cause of an App that stopped because a supervised
	// unit failed more often than its [Backoff] allows.
	ErrRestartBudget = worker.ErrRestartBudget

	// ErrGoexit is the error of a unit, hook, drainer or check that called
	// runtime.Goexit instead of returning.
	ErrGoexit = worker.ErrGoexit
)

// DefaultBackoff returns the backoff with its defaults: waits from half a
// second to a minute, doubling, with jitter, and ten restarts in ten minutes.
func DefaultBackoff() Backoff { return worker.DefaultBackoff() }

// UnitOption configures a unit of [App.Go], [App.Job] or [App.Supervise]: it is an option of
// the worker that runs the function, such as [WithStartCondition].
type UnitOption = worker.FuncOption

// WithStartCondition makes the start of the unit wait until its function calls
// [MarkStarted]: the App is not ready before. Without it a unit has started as soon as
// its function was called.
func WithStartCondition() UnitOption { return worker.WithStartCondition() }

// MarkStarted declares that the unit with this ctx has met its start condition. For a
// unit without one, for any other context, and when called again it does nothing.
func MarkStarted(ctx context.Context) { worker.MarkStarted(ctx) }

// Progress says that the unit with this ctx gets on: a loop calls it in each round. The operators
// of a fleet see a unit that gave such signs and gives none any more, such as one in a deadlock.
func Progress(ctx context.Context) { worker.Progress(ctx) }

func checkOptions(opts []UnitOption) error {
	if i := slices.IndexFunc(opts, func(opt UnitOption) bool { return opt == nil }); i >= 0 {
		return nilOption(i)
	}
	return nil
}

// nilOption returns the error for the option at index i of a call. Every function refuses a
// nil option, because the caller meant to give one.
func nilOption(i int) error { return fmt.Errorf("option %d is nil", i+1) }

// Go adds a function that runs in a goroutine of its own. When it returns nil, the App
// goes on, even without a running unit. An error, a panic or a runtime.Goexit stops
// the App.
//
// The App cancels the context when it is stopping, which is after the drain;
// context.Cause is the reason. It is clean to return the context's error then. The
// context.Canceled of any other context is a failure.
func (a *App) Go(name string, fn func(context.Context) error, opts ...UnitOption) *App {
	return a.addFunc("Go", kindUnit, name, fn, opts)
}

// Job adds a function whose end ends the App: work that runs to completion. An App
// with several jobs ends when the last of them is done; a job that fails stops it at
// once. fn is called as by [App.Go].
//
// Only an App with a server waits for the drain window then: a process with jobs does
// not listen by itself. A signal cancels a job that still runs, when the App is
// stopping. Run then returns the signal as an error, so that [ExitCode] gives 128+n:
// Kubernetes counts a Job whose pod exits 0 as complete. The same holds for a preStop
// call, and for the cause of a parent context that has ended. After [App.Stop] with nil
// and [App.StopBecause] Run returns nil, because the program has called the stop clean.
// A job is done when fn has returned nil before the App cancelled its context.
func (a *App) Job(name string, fn func(context.Context) error, opts ...UnitOption) *App {
	return a.addFunc("Job", kindJob, name, fn, opts)
}

func (a *App) addFunc(verb, kind, name string, fn func(context.Context) error, opts []UnitOption) *App {
	if err := checkOptions(opts); err != nil {
		a.parts.refuse(name, err)
		return a
	}
	refused := missing(verb, argument{"function", fn == nil})
	return a.addUnit(kind, name, refused, func() worker.Worker { return worker.NewFunc(name, fn, opts...) })
}

// Supervise adds a function that the App runs again when it fails, after the wait that
// backoff defines. nil and [ErrDoNotRestart] mean that the work is done;
// [ErrTerminate] stops the App; a panic is a failure like any other. After a healthy
// uptime the next wait is the shortest again. When the restart budget is used up, the
// unit fails, and the App stops.
//
// The log has a line for each restart, at most one a second for a unit, with the error,
// the number of the restart and the wait; the unit's state and metrics say it too.
//
// Once the App drains, it restarts no unit: a running function goes on until the drain
// is over, and a waiting unit ends.
func (a *App) Supervise(name string, fn func(context.Context) error, backoff Backoff, opts ...UnitOption) *App {
	if err := cmp.Or(checkOptions(opts), backoff.Validate()); err != nil {
		a.parts.refuse(name, err)
		return a
	}
	return a.addUnit(kindUnit, name, missing("Supervise", argument{"function", fn == nil}), func() worker.Worker { return worker.NewRestarter(name, fn, backoff, opts...) })
}

// Actor adds work that cannot watch a context, in the way of oklog/run: execute
// blocks, and interrupt makes it return. Any return of execute stops the App; a
// nil one is a clean stop. The App calls interrupt exactly once, after the drain
// and even when execute has returned already, with the cause of the stop: nil when
// nothing went wrong. It does not call interrupt when it never called execute.
//
// After the interrupt, the errors of a closed listener, server or file
// (net.ErrClosed, http.ErrServerClosed, os.ErrClosed, io.ErrClosedPipe) and the
// cause itself are clean.
func (a *App) Actor(name string, execute func() error, interrupt func(error)) *App {
	isNil := missing("Actor", argument{"function execute", execute == nil}, argument{"function interrupt", interrupt == nil})
	return a.addUnit(kindActor, name, isNil, func() worker.Worker {
		return worker.NewActor(name, execute, interrupt, a.stopCause, http.ErrServerClosed)
	})
}

// Add adds a worker of any kind: a process, a tree of workers, a pool. Run starts
// it, in the order of registration, and stops it after the drain. A worker may
// finish or stop by itself; a failure stops the App. A worker that was started
// before is an error.
//
// The App decides by the worker's Status method, which a worker.BaseWorker has, or else by its
// State. A worker that has ended and does not answer within a second has failed. While it starts,
// no answer means that it has not started.
//
// A worker with a method StopTime() time.Duration says how long its Stop may take by the
// times that it was given, and 0 when they have their defaults, which give way to the time
// that an App has. The App logs these times when it is running, and warns of one that is
// longer than Config.UnitSlice. Units stop at the same time.
//
// The parts of an App are fixed when Run begins, because a later one would miss the
// steps of the start and be unknown to the stop. For children that come and go, add a
// worker.Supervisor: its own Add takes them at any time, and the App stops them with it.
func (a *App) Add(w worker.Worker) *App {
	if call.IsNil(w) {
		return a.addUnit(kindUnit, "", missing("Add", argument{"worker", true}), nil)
	}
	var name string
	if err := call.Do("Name", func() error { name = w.Name(); return nil }); err != nil {
		a.parts.refuse(fmt.Sprintf("%T", w), err)
		return a
	}
	return a.addUnit(kindUnit, name, "", func() worker.Worker { return w })
}

// RestartUnit starts a unit of [App.Supervise] again, or a child of a worker.Supervisor by
// its path, such as "pool/w1", as [worker.RestartUnit] says. It returns
// [worker.ErrNotRestartable] for any other unit, and unless the App is running.
func (a *App) RestartUnit(ctx context.Context, path string) error {
	if p := a.Phase(); p != PhaseRunning {
		return fmt.Errorf("restart %s: %w: the app is %s", path, worker.ErrNotRestartable, p)
	}
	units, _ := a.parts.view()
	err := worker.ErrNoChild
	for _, u := range units {
		if err = worker.RestartUnit(ctx, u.Worker, u.name, path); !errors.Is(err, worker.ErrNoChild) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("restart %s: %w", path, err)
	}
	return nil
}

// The kinds of units, by what their end without an error does to the App.
const (
	kindUnit  = "unit"  // nothing
	kindActor = "actor" // it stops the App
	kindJob   = "job"   // the last one stops the App
)

// addUnit adds the worker that build returns. build runs under the lock of the parts.
func (a *App) addUnit(kind, name, isNil string, build func() worker.Worker) *App {
	a.parts.add("unit", name, isNil, func() {
		w := build()
		if p, ok := w.(interface{ PublishTo(*fsm.Dispatcher) }); ok {
			p.PublishTo(&a.events)
		}
		if l, ok := w.(interface{ LogTo(*slog.Logger) }); ok {
			l.LogTo(a.log)
		}
		a.parts.units = append(a.parts.units, &unit{kind: kind, name: name, Worker: w})
	})
	return a
}

// endsWith reports whether the App ends when u has ended without an error.
func (a *App) endsWith(u *unit) bool {
	return u.kind == kindActor || u.kind == kindJob && !slices.ContainsFunc(a.parts.units, func(other *unit) bool {
		return other.kind == kindJob && other != u && !other.over.HasSignaled()
	})
}

// hasGivenUp reports whether the unit is a supervised function that has failed and asked
// not to be restarted: the App goes on without it.
func (u *unit) hasGivenUp() bool {
	r, ok := u.Worker.(*worker.Restarter)
	return ok && call.Is(r.Err(), ErrDoNotRestart) && !call.Is(r.Err(), ErrTerminate)
}

// isUndoneJob reports whether the unit is a job that has not returned nil by itself.
func (u *unit) isUndoneJob() bool {
	return u.kind == kindJob && u.State().Status != worker.StatusFinished
}
