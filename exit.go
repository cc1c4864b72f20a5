package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
)

// Main is the whole main function of a program: it calls run and ends the process with
// [ExitCode] of its error. It does not return.
//
//	func main() { lifecycle.Main(run) }
//
// When run returns an error, the last line of the program says so: Main writes it with
// slog.Default at the level error, with the attributes error and exit_status. Between joined
// errors the line has "; ". It is there for every error, also for one of [App.Run], whose
// parts the App has logged already, and for those from before Run, such as a database that
// cannot be opened. A log that blocks delays the exit by one second at most. For
// [flag.ErrHelp], with which a parser of flags ends after -h, Main writes no line, and the
// status is 0, unless it is joined with another error. The status is 1 when a method of the
// error does not return.
//
// Main calls run in its own goroutine, so the deferred calls of run come before the exit,
// and a panic in run ends the process as in every Go program.
func Main(run func() error) {
	err := run()
	// The methods of the error are the program's own, and the process ends also when one hangs.
	status, askErr := call.Ask(new(call.Answers), "the error of run", func() int {
		if call.Only(err, flag.ErrHelp) {
			return 0
		}
		return ExitCode(err)
	})
	if askErr != nil { // a method of the error hangs or panics
		status = 1
	}
	if status != 0 {
		signal.Ignore(syscall.SIGPIPE) // a log whose reader has ended does not change the status
		last := call.Start("the last line", func() error {
			text := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
			slog.Error("the program failed", "error", text, "exit_status", status)
			return nil
		})
		_ = last.Wait(call.Now(), dieWithin)
	}
	exitProcess(status)
}

// The exit statuses of sysexits.h that starts and stops have. The watchdog exits with ExitStuck.
const (
	ExitStuck  = 70                // EX_SOFTWARE: a part was abandoned
	ExitCut    = httpdrain.ExitCut // 75, EX_TEMPFAIL: requests were cut
	ExitConfig = 78                // EX_CONFIG: the configuration cannot be used
)

// ExitCode returns the exit status for the result of [App.Run]. It is 0 for nil.
// Otherwise the primary cause decides, which is the first of joined errors. The
// status is the result of the cause's ExitCode method when that is from 1 to 255
// ([*SignalError] returns 128+n, an *exec.ExitError its child's status), [ExitStuck]
// for an [*AbandonedError], [ExitCut] for requests that were cut, [ExitConfig] for a
// [*ConfigError] and a fault of package config, and else 1. ExitCode also looks at the errors
// that the cause wraps, and err itself may be wrapped.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	return cmp.Or(call.ExitStatus(err, ExitStuck), 1)
}

// forcedExit ends the process by force: after a further signal, or when the watchdog
// fires. Its methods take no lock of the App.
type forcedExit struct {
	stderr     io.Writer // of dumps
	exit       func(int)
	watchdog   atomic.Pointer[time.Timer]
	waitingFor atomic.Pointer[string] // what the App waits for
	begun      atomic.Bool
}

// armWatchdog starts the timer that ends the process when the stop takes longer than
// its budget.
func (a *App) armWatchdog() {
	total := a.budget.Total
	a.forced.watchdog.Store(time.AfterFunc(total, func() {
		a.die(fmt.Sprintf("the stop took longer than %v (DrainInterval + ShutdownGrace + Margin)", total), ExitStuck)
	}))
}

func (a *App) disarmWatchdog() {
	if t := a.forced.watchdog.Load(); t != nil {
		t.Stop()
	}
}

// dieWithin bounds the time for the last messages before the process ends by force.
const dieWithin = time.Second

// die writes why to the termination log and, with the stacks of all goroutines, to
// stderr, and exits after one second at most. It takes no lock that is held while other code
// runs, and waits for nothing that other code could block.
func (a *App) die(why string, code int) {
	if !a.forced.begun.CompareAndSwap(false, true) {
		return // the first call is about to exit
	}
	if child := a.upgrade.child.Load(); child != nil {
		child.Kill() // it would believe that this process was killed in the middle of the upgrade, and serve
	}
	if on := a.waitingFor(); on != "" {
		why += "; giving up on " + on
	}
	// Each step has a goroutine of its own, because the lock of the phase, the file or the
	// pipe may be the cause of the block.
	go func() { _ = a.phases.To(PhaseKilled, errors.New(why)) }() // refused when the App has ended meanwhile
	box := a.box.recorder.Load()
	box.Save(why, a.lastReached()) // the report takes locks
	call.Last(dieWithin, func() {
		ctx, cancel := context.WithTimeout(context.Background(), dieWithin)
		defer cancel()
		box.Wait(ctx)
	}, func() {
		a.exitRecord.terminationLog.Final(string(PhaseKilled) + ": " + why)
	}, func() {
		if a.upgrade.standby.Load() {
			return
		}
		a.exitRecord.file.Final(map[string]any{"phase": PhaseKilled, "error": why, "done": time.Now(), "exitStatus": code})
	}, func() {
		// The dump comes last, because a million goroutines take a while.
		_, _ = fmt.Fprintf(a.forced.stderr, "lifecycle: %s: %s; exit status %d\n\n", a.cfg.Name, why, code)
		_, _ = a.forced.stderr.Write(append(call.Dump(), '\n'))
	})
	a.forced.exit(code)
}

// exitProcess is os.Exit. Tests replace it.
var exitProcess = os.Exit
