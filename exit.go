package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/safe"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ExitStuck is the exit status of a process that had to leave something behind:
// the watchdog exits with it, and [ExitCode] gives it for an error whose first
// part is an [*AbandonedError]. It is EX_SOFTWARE of sysexits.h.
const ExitStuck = 70

// ExitCode returns the exit status for what [App.Run] returned: 0 for nil, and
// for an error whatever its primary cause, the first of the joined errors,
// asks for: the result of an ExitCode method when that is from 1 to 255
// ([*SignalError] gives 128+n, an *exec.ExitError its child's), [ExitStuck]
// when something was abandoned, else 1.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, first := range joined.Unwrap() {
			if first != nil {
				return ExitCode(first)
			}
		}
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		if code := coded.ExitCode(); code >= 1 && code <= 255 {
			return code
		}
	}
	var abandoned *worker.AbandonedError
	if errors.As(err, &abandoned) {
		return ExitStuck
	}
	return 1
}

// armWatchdog ends the process when the stop has not ended in all the time that
// it may take. It runs on a timer of its own and takes no lock of the App.
func (a *App) armWatchdog() {
	total := a.cfg.total()
	a.watchdog.Store(time.AfterFunc(total, func() {
		a.die(fmt.Sprintf("the stop took longer than %v (DrainInterval + ShutdownGrace + margin): giving up on %s", total, a.blocking()), ExitStuck)
	}))
}

func (a *App) disarmWatchdog() {
	if t := a.watchdog.Load(); t != nil {
		t.Stop()
	}
}

// die writes why to the termination log and, with the stacks of all goroutines,
// to stderr, for one second at most, and exits.
func (a *App) die(why string, code int) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		a.lastWords("killed: " + why)
		fmt.Fprintf(a.stderr, "lifecycle: %s: %s; exit status %d\n\n%s\n", a.cfg.Name, why, code, safe.Dump())
	}()
	select {
	case <-written:
	case <-time.After(time.Second):
	}
	// Best effort: somebody may hold the lock of the phase, and be why we are here.
	go func() { _ = a.phases.To(PhaseKilled, errors.New(why)) }()
	a.exit(code)
}

// exitProcess is os.Exit, but for tests of what leads to it.
var exitProcess = os.Exit
