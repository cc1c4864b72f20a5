package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/sdnotify"
	"github.com/pleme-io/lifecycle-go/internal/sig"
)

// SignalError is the cause of a context that a signal cancelled.
type SignalError struct {
	Signal os.Signal
}

// Error names the signal.
func (e *SignalError) Error() string { return fmt.Sprintf("received signal: %v", e.Signal) }

// ExitCode returns 128+n, as shells report a process that signal n ended, and 1
// for a signal that has no number.
func (e *SignalError) ExitCode() int {
	if n, ok := e.Signal.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 1
}

// stopSignals are the requests to stop: Ctrl-C sends SIGINT; the kubelet, systemd
// and docker stop send SIGTERM.
var stopSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// SignalContext returns a copy of parent that is cancelled when the process gets one
// of the signals. The context.Cause is then a [*SignalError]. Without signals it takes
// SIGINT and SIGTERM. A signal that the program has ignored with [signal.Ignore] before
// stays ignored.
//
// stop cancels the context and restores the signals' default effect; call it when
// the work is done. SignalContext also restores it 250 ms after the first signal, so
// that a second signal ends the process. Repeats within that time count as one,
// because process managers and wrappers send some signals twice.
func SignalContext(parent context.Context, signals ...os.Signal) (ctx context.Context, stop context.CancelFunc) {
	if len(signals) == 0 {
		signals = sig.NotIgnored(stopSignals)
	}
	return sig.Context(parent, 250*time.Millisecond, func(s os.Signal) error { return &SignalError{s} }, signals)
}

// signals is the source of an App's signals.
type signals struct {
	given    <-chan os.Signal // from WithSignals
	replaced bool             // the App reads given and not the signals of the process
	pipe     chan os.Signal   // takes SIGPIPE while the App stops, and is never read
	terminal func() bool      // reports whether a user at a terminal sends SIGINT
}

// guardPipe installs a handler for SIGPIPE: a write to a log whose reader has ended
// then returns an error and does not end the process during its teardown. Before T0
// a broken pipe has its default effect, as in every Go program.
func (s *signals) guardPipe() {
	if !s.replaced {
		signal.Notify(s.pipe, syscall.SIGPIPE) // the first one fills it, and Notify does not wait
	}
}

// watchSignals installs the signal handlers and returns the function that removes
// them. Run calls it first, so that no later signal is lost.
//
// The first signal is a request to stop like any other; it does not shorten a drain
// that another request began. A second signal ends the drain window, if it is still
// open. The next one ends the process. A signal within SignalDebounce of the last one
// that counted does not count.
func (a *App) watchSignals() (release func()) {
	// Notify drops signals that do not fit. The watcher never blocks, so 16 places are
	// enough; in a larger burst every further signal would mean the same. Reloads and upgrades
	// have channels of their own, so that they cannot fill the place of a request to stop.
	stops, reloads, upgrades := make(chan os.Signal, 16), make(chan os.Signal, 1), make(chan os.Signal, 1)
	forUpgrade, _ := sig.User(a.cfg.UpgradeSignal) // Validate has checked it
	if !a.signals.replaced {
		signal.Notify(stops, stopSignals...)
		if len(a.parts.reloads) > 0 && !signal.Ignored(syscall.SIGHUP) {
			signal.Notify(reloads, syscall.SIGHUP)
		}
		if forUpgrade != nil {
			signal.Notify(upgrades, forUpgrade)
		}
	}
	unwatch := sig.Watcher{
		Stops: stops, Reloads: reloads, Upgrades: upgrades, Given: a.signals.given, Debounce: a.cfg.SignalDebounce,
		UpgradeSignal: forUpgrade,
		Upgrade: func() {
			if len(a.upgrade.turn) > 0 {
				a.log.Warn("upgrade refused: another upgrade runs, or the app stops", "signal", forUpgrade.String())
				return
			}
			a.upgrade.asked.Notify()
		},
		Reload: func() {
			if len(a.reloads.turn) > 0 && !a.isStopping() {
				a.log.Info("SIGHUP: a reload is running, and one more follows it")
			}
			a.reloads.asked.Notify() // several requests before the reload begins count as one
		},
		First: a.stopOn,
		Further: func(s os.Signal) {
			if a.stop.skipWindow() {
				a.log.Warn("a further signal: the rest of the drain window is skipped", "signal", s.String())
				return
			}
			a.force(s)
		},
	}.Start()
	return func() {
		signal.Stop(stops)
		signal.Stop(reloads)
		signal.Stop(upgrades)
		signal.Stop(a.signals.pipe)
		unwatch()
	}
}

func (a *App) stopOn(received os.Signal) {
	err := &SignalError{received}
	if !a.requestStop(stopRequest{reason: err.Error(), cause: err, signal: err}) {
		next := "ends the process"
		if a.stop.canSkipWindow() {
			next = "skips the drain window"
		}
		a.log.Info("a signal, and the app is stopping already; one more "+next, "signal", received.String())
	}
}

// stopWith requests the stop because the parent context has ended. When that context comes
// from signal.NotifyContext, the reason of the stop is the signal that ended it: the same as
// when the App sees the signal first.
func (a *App) stopWith(parent context.Context) {
	cause := context.Cause(parent)
	if s := sig.OfNotifyContext(cause); s != nil {
		a.log.Info("the parent context is one of signal.NotifyContext, which ended it for a signal; " +
			"an App handles signals itself, and signal.NotifyContext is not needed")
		a.stopOn(s)
		return
	}
	cause = call.Take("the parent context's cause", cause)
	if call.Same(cause, context.DeadlineExceeded) {
		// A new error, so that the App can tell a unit that returns this cause from a unit
		// whose own request has timed out.
		cause = fmt.Errorf("the parent context's deadline: %w", cause)
	}
	req := stopRequest{reason: "the parent context ended", detail: cause, cause: cause}
	req.signal, _ = call.As[*SignalError](cause) // when a SignalContext saw the signal first
	a.requestStop(req)
}

// force dumps all goroutines to stderr and exits with 128+n. It takes no lock that is held
// while other code runs, and does not wait for the log or anything else that could block.
func (a *App) force(received os.Signal) {
	err := &SignalError{received}
	a.die(fmt.Sprintf("a further signal (%s) while %s", received, a.lastReached()), err.ExitCode())
}

// notifyServiceManager connects to the service manager, if there is one.
func (a *App) notifyServiceManager() {
	n := sdnotify.Start(a.log, a.health.reg.Alive)
	a.notifier.Store(n)
	if !a.stop.began().IsZero() { // the stop began before the notifier was stored
		n.Stopping(a.budget.Total)
	}
}

// keepSockets gives all sockets to a service manager that keeps them for the next process.
func (a *App) keepSockets(n *sdnotify.Notifier) {
	if !n.Keeps() {
		return
	}
	if err := a.parts.sockets.Keep(n.Keep, n.Forget); err != nil {
		a.log.Warn("the service manager cannot keep a socket", "error", err)
	}
}

// tellServiceManager says which phase the App has entered, and why it stops.
func (a *App) tellServiceManager(p Phase) {
	if p == PhaseRunning {
		a.keepSockets(a.notifier.Load())
		if !a.upgrade.announced { // else the old process has said it for this one
			a.notifier.Load().Ready(string(p))
			return
		}
	}
	status := string(p)
	if why := a.stop.why().text(); why != "" {
		status += ": " + why
	}
	a.notifier.Load().Status(status)
}
