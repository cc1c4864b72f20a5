package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ExitStuck is the exit status of a process that abandoned something: the watchdog
// exits with it, and [ExitCode] gives it for an error whose first part is an
// [*AbandonedError]. It is EX_SOFTWARE of sysexits.h.
const ExitStuck = 70

// ExitCode returns the exit status for what [App.Run] returned: 0 for nil, and
// for an error what its primary cause asks for, which is the first of joined
// errors: the result of an ExitCode method when that is from 1 to 255
// ([*SignalError] gives 128+n, an *exec.ExitError its child's), [ExitStuck]
// when something was abandoned, else 1. The errors that the cause wraps are asked
// as well, and err itself may be wrapped.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if code := askedFor(err); code != 0 {
		return code
	}
	return 1
}

// joinType is the type of what errors.Join returns. Of such a list the first part
// alone counts; the parts of any other error that wraps several, as fmt.Errorf
// makes it, are about one and the same thing.
var joinType = reflect.TypeOf(errors.Join(io.EOF))

// askedFor returns the exit status that err asks for, or 0.
func askedFor(err error) int {
	own := call.Original(err) // Run's errors are frozen; this is the caller's goroutine
	switch e := own.(type) {  //nolint:errorlint // this walks the tree itself
	case interface{ ExitCode() int }:
		if code := e.ExitCode(); code >= 1 && code <= 255 {
			return code
		}
	case *worker.AbandonedError:
		return ExitStuck
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return askedFor(inner)
		}
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if part == nil {
				continue
			}
			if code := askedFor(part); code != 0 || reflect.TypeOf(own) == joinType {
				return code
			}
		}
	}
	return 0
}

// death is how an App ends its process by force: after a further signal, or when
// the watchdog fires. Nothing here takes a lock of the App.
type death struct {
	stderr     io.Writer // of dumps
	exit       func(int)
	watchdog   atomic.Pointer[time.Timer]
	waitingFor atomic.Pointer[string] // what the App waits for
	begun      atomic.Bool
}

// armWatchdog ends the process when the stop has not ended in all the time that
// it may take. It runs on a timer of its own and takes no lock of the App.
func (a *App) armWatchdog() {
	total := a.budget.total
	a.death.watchdog.Store(time.AfterFunc(total, func() {
		a.die(fmt.Sprintf("the stop took longer than %v (DrainInterval + ShutdownGrace + Margin)", total), ExitStuck)
	}))
}

func (a *App) disarmWatchdog() {
	if t := a.death.watchdog.Load(); t != nil {
		t.Stop()
	}
}

// dieWithin bounds what is written before a process is ended by force.
const dieWithin = time.Second

// die writes why to the termination log and, with the stacks of all goroutines,
// to stderr, for one second at most, and exits. It takes no lock and waits for
// nothing that other code could hold up.
func (a *App) die(why string, code int) {
	if !a.death.begun.CompareAndSwap(false, true) {
		return // the first call is about to exit
	}
	if on := a.blocking(); on != "" {
		why += "; giving up on " + on
	}
	// Best effort, each on its own: a lock of the phase, a file or a pipe may
	// be what we are here for.
	go func() { _ = a.phases.To(PhaseKilled, errors.New(why)) }() // refused when it has ended meanwhile
	var written sync.WaitGroup
	written.Go(func() { a.words.Final(string(PhaseKilled) + ": " + why) })
	written.Go(func() {
		// The dump comes apart and last: of a million goroutines it takes a while.
		_, _ = fmt.Fprintf(a.death.stderr, "lifecycle: %s: %s; exit status %d\n\n", a.cfg.Name, why, code)
		_, _ = a.death.stderr.Write(append(call.Dump(), '\n'))
	})
	all := make(chan struct{})
	go func() {
		written.Wait()
		close(all)
	}()
	late := time.NewTimer(dieWithin)
	defer late.Stop()
	select {
	case <-all:
	case <-late.C:
	}
	a.death.exit(code)
}

// exitProcess is os.Exit, but for tests of what leads to it.
var exitProcess = os.Exit
