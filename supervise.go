package lifecycle

import (
	"context"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

type eventStream = fsm.Dispatcher

// Backoff says how long a supervised unit waits before it runs again, and when
// it gives up.
type Backoff = worker.Backoff

// PanicError is a panic of a unit, hook, drainer or check, caught. Name says
// whose it was, Value is what was passed to panic, and Stack is that of the
// goroutine. An error as the value is what it unwraps to.
type PanicError = worker.PanicError

// AbandonedError names something that ignored its context and was left behind:
// Name says what, Where the line at which it stood, Stack holds all of it.
type AbandonedError = worker.AbandonedError

var (
	// ErrDoNotRestart is returned by a supervised function that has nothing
	// more to do: the unit ends cleanly and the App goes on.
	ErrDoNotRestart = worker.ErrDoNotRestart

	// ErrTerminate is returned by a supervised function when the whole App has
	// to stop: it is the App's cause then.
	ErrTerminate = worker.ErrTerminate

	// ErrRestartBudget is the cause of an App that stopped because a supervised
	// unit failed more often than its [Backoff] allows.
	ErrRestartBudget = worker.ErrRestartBudget

	// ErrGoexit is the error of a unit, hook, drainer or check that called
	// runtime.Goexit in place of returning.
	ErrGoexit = worker.ErrGoexit
)

// DefaultBackoff returns the backoff with its defaults: waits from half a
// second to a minute, doubling, with jitter, and ten restarts in ten minutes.
func DefaultBackoff() Backoff { return worker.DefaultBackoff() }

// Supervise adds a function that is run again when it fails, after the wait
// that backoff says. Returning nil means done, [ErrDoNotRestart] as well;
// [ErrTerminate] stops the App; a panic is a failure like any other. The wait
// is the shortest again only after a healthy uptime. When the restart budget is
// spent the unit fails, and the App stops.
//
// Nothing is restarted once the App drains: what runs then goes on until the
// drain is over, what waits is over.
func (a *App) Supervise(name string, fn func(context.Context) error, backoff Backoff, opts ...UnitOption) *App {
	_, w := unitOptions(opts)
	if err := backoff.Validate(); err != nil {
		a.refuse("unit", name, err)
		return a
	}
	return a.addUnit(name, fn == nil, false, func() worker.Worker { return worker.NewRestarter(name, fn, backoff, w...) })
}
