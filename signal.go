package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// SignalError is the cause of a context that a signal cancelled.
type SignalError struct {
	Signal os.Signal
}

// Error names the signal.
func (e *SignalError) Error() string { return "received signal: " + e.Signal.String() }

// ExitCode returns 128+n, as shells report a process that signal n ended.
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

// signals is where an App's signals come from.
type signals interface {
	// notify sends the named signals to ch from now on.
	notify(ch chan<- os.Signal, sig ...os.Signal)
	// stop gives all signals sent to ch back.
	stop(ch chan<- os.Signal)
	// ignored reports whether the process was started with sig ignored.
	ignored(sig os.Signal) bool
}

// processSignals are those that the process gets.
type processSignals struct{}

func (processSignals) notify(ch chan<- os.Signal, sig ...os.Signal) { signal.Notify(ch, sig...) }
func (processSignals) stop(ch chan<- os.Signal)                     { signal.Stop(ch) }
func (processSignals) ignored(sig os.Signal) bool                   { return signal.Ignored(sig) }

// givenSignals come from a channel, and touch nothing of the process.
type givenSignals struct {
	from <-chan os.Signal

	mu   sync.Mutex // guards what follows
	quit map[chan<- os.Signal]func()
}

func (g *givenSignals) notify(ch chan<- os.Signal, sig ...os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.quit[ch] != nil {
		return // one pump carries them all
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	if g.quit == nil {
		g.quit = make(map[chan<- os.Signal]func())
	}
	g.quit[ch] = func() { close(quit); <-ended }
	go func() {
		defer close(ended)
		for {
			select {
			case s, ok := <-g.from:
				if !ok {
					<-quit
					return
				}
				select {
				case ch <- s:
				case <-quit:
					return
				}
			case <-quit:
				return
			}
		}
	}()
}

func (g *givenSignals) stop(ch chan<- os.Signal) {
	g.mu.Lock()
	quit := g.quit[ch]
	delete(g.quit, ch)
	g.mu.Unlock()
	if quit != nil {
		quit()
	}
}

func (g *givenSignals) ignored(os.Signal) bool { return false }

// guardPipe keeps a write to a log whose reader is gone from ending the process
// in the middle of its teardown: with a handler the write is an error instead.
// Before T0 a broken pipe has its default effect, as in every Go program.
func (a *App) guardPipe() {
	if _, ok := a.signals.(processSignals); ok {
		signal.Notify(a.pipe, syscall.SIGPIPE) // it is full at once, and Notify does not wait
	}
}

// watchSignals installs the handlers and returns what ends them. It is the
// first thing that Run does: a signal at any time after is seen.
//
// Only signals count towards force. The first is a request like any other, and
// leaves a drain that something else began as it is. The next one, while the
// window lasts, ends the window; one after that ends the process.
func (a *App) watchSignals() (stop func()) {
	// Room for a burst: the loop below never waits for anybody, and of more
	// than this at once the surplus says nothing new.
	ch := make(chan os.Signal, 16)
	a.signals.notify(ch, stopSignals...)
	if len(a.reloads) > 0 && !a.signals.ignored(syscall.SIGHUP) {
		a.signals.notify(ch, syscall.SIGHUP)
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var last time.Time
		count := 0
		for {
			select {
			case <-quit:
				return
			case sig := <-ch:
				if sig == syscall.SIGHUP {
					a.requestReload()
					continue
				}
				now := time.Now()
				if count > 0 && now.Sub(last) <= on(a.cfg.SignalDebounce) {
					last = now
					continue
				}
				count, last = count+1, now
				a.signalled(sig, count)
			}
		}
	}()
	return func() {
		a.signals.stop(ch)
		signal.Stop(a.pipe)
		close(quit)
		<-ended
	}
}

// signalled acts on the n-th signal that counts.
func (a *App) signalled(sig os.Signal, n int) {
	switch {
	case n == 1:
		err := &SignalError{sig}
		a.requestStop(stopRequest{reason: err.Error(), cause: err, signal: err})
	case a.skipWindow():
		a.log.Warn("second signal: the rest of the drain window is skipped", "signal", sig.String())
	default:
		a.force(sig)
	}
}

// force ends the process: a dump of all goroutines to stderr, then exit 128+n.
// It waits for nothing that could block, the log least of all.
func (a *App) force(sig os.Signal) {
	err := &SignalError{sig}
	a.die(fmt.Sprintf("a further signal (%s) during %s: giving up on %s", sig, a.Phase(), a.blocking()), err.ExitCode())
}
