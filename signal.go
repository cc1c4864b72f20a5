package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/sdnotify"
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

// stopSignals are the requests to stop: Ctrl-C, and what the kubelet, systemd
// and docker stop send.
var stopSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// SignalContext returns a copy of parent that is cancelled when the process
// gets one of the signals, SIGINT and SIGTERM when none are named. The
// context.Cause is a [*SignalError] then.
//
// stop cancels the context and gives the signals back; call it when the work is
// done. Shortly after the first signal they are given back by themselves, so
// that a second one ends the process in the default way. Repeats within 250 ms
// count as one: process managers and wrappers send some twice.
func SignalContext(parent context.Context, signals ...os.Signal) (ctx context.Context, stop context.CancelFunc) {
	if len(signals) == 0 {
		signals = stopSignals
	}
	ctx, cancel := context.WithCancelCause(parent)
	// Room for one of each kind is enough: Notify drops what does not fit, and
	// the first that fits is the one that counts.
	ch := make(chan os.Signal, len(signals))
	signal.Notify(ch, signals...)
	quit := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer signal.Stop(ch)
		select {
		case sig := <-ch:
			cancel(&SignalError{sig})
		case <-ctx.Done():
			return
		}
		again := time.NewTimer(250 * time.Millisecond)
		defer again.Stop()
		select {
		case <-again.C:
		case <-quit:
		}
	}()
	var once sync.Once
	return ctx, func() {
		once.Do(func() {
			cancel(nil)
			close(quit)
		})
		<-ended
	}
}

// signals is where an App takes its signals from.
type signals struct {
	given    <-chan os.Signal // in place of the process's
	replaced bool             // given replaces them, and the process's are left alone
	pipe     chan os.Signal   // takes SIGPIPE while the App goes down, and is never read
	terminal func() bool      // a person at a terminal sends SIGINT
}

// guardPipe keeps a write to a log whose reader is gone from ending the process
// in the middle of its teardown: with a handler the write is an error instead.
// Before T0 a broken pipe has its default effect, as in every Go program.
func (s *signals) guardPipe() {
	if !s.replaced {
		signal.Notify(s.pipe, syscall.SIGPIPE) // it is full at once, and Notify does not wait
	}
}

// watchSignals installs the handlers and returns what ends them. It is the
// first thing that Run does: a signal at any time after is seen.
//
// Only signals count towards force. The first is a request like any other, and
// leaves a drain that something else began as it is. The next one, while the
// window lasts, ends the window; one after that ends the process.
func (a *App) watchSignals() (stop func()) {
	// Notify drops what does not fit. The loop below never blocks, so it never
	// finds a burst of this size, and the surplus of a larger one would say nothing
	// new. Reloads have a channel of their own: a flood of them must not crowd out a
	// request to stop.
	stops, reloads := make(chan os.Signal, 16), make(chan os.Signal, 1)
	if !a.signals.replaced {
		signal.Notify(stops, stopSignals...)
		if len(a.parts.reloads) > 0 && !signal.Ignored(syscall.SIGHUP) {
			signal.Notify(reloads, syscall.SIGHUP)
		}
	}
	quit := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		given := a.signals.given
		debounce := a.cfg.SignalDebounce
		count, last := 0, time.Time{}
		for {
			var sig os.Signal
			select {
			case <-quit:
				return
			case sig = <-stops:
			case sig = <-reloads:
			case s, ok := <-given:
				if !ok {
					given = nil // no more will come
				}
				sig = s
			}
			if sig == nil {
				continue
			}
			if sig == syscall.SIGHUP {
				a.reloads.asked.Notify() // requests that come meanwhile are this one
				continue
			}
			now := time.Now()
			repeated := count > 0 && debounce > 0 && now.Sub(last) <= debounce
			last = now
			switch {
			case repeated:
			case count == 0:
				count++
				// In a goroutine of its own: when the beginning of the stop is held
				// up, the loop still sees the signals that force it.
				ended.Go(func() { a.stopOn(sig) })
			case a.stop.skipWindow():
				a.log.Warn("a further signal: the rest of the drain window is skipped", "signal", sig.String())
			default:
				a.force(sig)
			}
		}
	})
	return func() {
		signal.Stop(stops)
		signal.Stop(reloads)
		signal.Stop(a.signals.pipe)
		close(quit)
		ended.Wait()
	}
}

// stopOn acts on the first signal.
func (a *App) stopOn(sig os.Signal) {
	err := &SignalError{sig}
	if !a.requestStop(stopRequest{reason: err.Error(), cause: err, signal: err}) {
		a.log.Info("a signal, and the app is stopping already; one more skips the drain window", "signal", sig.String())
	}
}

// force ends the process: a dump of all goroutines to stderr, then exit 128+n.
// It takes no lock and waits for nothing that could block, such as the log.
func (a *App) force(sig os.Signal) {
	err := &SignalError{sig}
	a.die(fmt.Sprintf("a further signal (%s) while %s", sig, a.lastReached()), err.ExitCode())
}

// atTerminal reports whether Ctrl-C reaches the process: it has a controlling
// terminal, or on Windows a console as its standard input, and is not in
// Kubernetes.
func atTerminal() bool {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return false
	}
	if runtime.GOOS == "windows" {
		info, err := os.Stdin.Stat()
		return err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = tty.Close()
	return true
}

// notifyServiceManager connects to the service manager, if there is one, and
// returns the function that ends the connection.
func (a *App) notifyServiceManager() (stop func()) {
	n := sdnotify.Start(a.log, a.health.reg.Alive)
	a.notifier.Store(n)
	if !a.stop.began().IsZero() { // the stop began before the notifier was stored
		n.Stopping(a.budget.total)
	}
	return n.Close
}

// tellServiceManager says which phase the App has entered, and why it stops.
func (a *App) tellServiceManager(p Phase) {
	if p == PhaseRunning {
		a.notifier.Load().Ready(string(p))
		return
	}
	status := string(p)
	if why := a.stop.why().reason; why != "" {
		status += ": " + why
	}
	a.notifier.Load().Status(status)
}
