package lifecycle

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/sdnotify"
)

// notifier tells the service manager how the App does, when there is one that
// wants to know (NOTIFY_SOCKET): see [App.Run]. Nobody waits for it: what is to
// be said is put on a list, and said by a goroutine. A nil notifier says
// nothing.
type notifier struct {
	sock    *sdnotify.Socket
	log     *slog.Logger
	wake    chan struct{} // holds a token when there is something to say
	quit    chan struct{}
	cancel  context.CancelFunc // of a look at liveness
	ended   sync.WaitGroup
	stopBy  func() time.Time // when the stop is over at the latest, zero before T0
	mu      sync.Mutex       // guards what follows
	pending [][]string
	going   bool // STOPPING was said: there is no way back
}

// extendEvery is how often the service manager is told that the stop goes on.
const extendEvery = 5 * time.Second

// sendTimeout bounds a send to a service manager that does not read.
const sendTimeout = time.Second

// notifyServiceManager opens the socket, if there is one, and returns what ends
// it.
func (a *App) notifyServiceManager() (stop func()) {
	sock, err := sdnotify.Open(sdnotify.Env{Lookup: os.LookupEnv, Unset: os.Unsetenv}, os.Getpid())
	if err != nil {
		a.log.Warn("service manager notification", "error", err)
	}
	if sock == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &notifier{sock: sock, log: a.log, wake: make(chan struct{}, 1), quit: make(chan struct{}), cancel: cancel, stopBy: func() time.Time {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.t0.IsZero() {
			return time.Time{}
		}
		return a.t0.Add(a.cfg.total())
	}}
	a.notifier.Store(n)
	if !n.stopBy().IsZero() { // a signal was quicker
		n.stopping(a.cfg.total())
	}
	n.ended.Go(n.speak)
	if sock.Watchdog > 0 {
		n.ended.Go(func() { n.watchdog(ctx, sock.Watchdog/2, a.reg.alive) })
	}
	return n.close
}

// say puts a message on the list.
func (n *notifier) say(assignments ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sayLocked(assignments)
}

func (n *notifier) sayLocked(assignments []string) {
	n.pending = append(n.pending, assignments)
	select {
	case n.wake <- struct{}{}:
	default: // a token is there already
	}
}

// ready says READY=1 with a status, unless the stop has begun: there is no way
// back from STOPPING=1.
func (n *notifier) ready(status string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.going {
		n.sayLocked([]string{"READY=1", status})
	}
}

// phase says that the App has entered one, and why it stops if it does.
func (n *notifier) phase(p Phase, why string) {
	text := string(p)
	if why != "" {
		text += ": " + why
	}
	switch {
	case n == nil:
	case p == PhaseRunning:
		n.ready(sdnotify.Status(text))
	default:
		n.say(sdnotify.Status(text))
	}
}

// stopping says that the stop has begun, and how long it may take.
func (n *notifier) stopping(total time.Duration) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.going {
		n.going = true
		n.sayLocked([]string{"STOPPING=1", sdnotify.ExtendTimeout(total)})
	}
}

// reloading says that a reload begins, and returns what says that it is done.
func (n *notifier) reloading() (done func()) {
	if n == nil {
		return func() {}
	}
	n.say("RELOADING=1", sdnotify.Monotonic(), sdnotify.Status("reloading"))
	return func() { n.ready(sdnotify.Status(string(PhaseRunning))) }
}

// speak says what is on the list, and goes on extending the time while the App
// stops.
func (n *notifier) speak() {
	extend := time.NewTicker(extendEvery)
	defer extend.Stop()
	for {
		select {
		case <-n.wake:
			n.flush()
		case <-extend.C:
			if by := n.stopBy(); !by.IsZero() {
				n.send([]string{sdnotify.ExtendTimeout(time.Until(by))})
			}
		case <-n.quit:
			n.flush()
			return
		}
	}
}

func (n *notifier) flush() {
	n.mu.Lock()
	list := n.pending
	n.pending = nil
	n.mu.Unlock()
	for _, message := range list {
		n.send(message)
	}
}

func (n *notifier) send(message []string) {
	if err := n.sock.Send(time.Now().Add(sendTimeout), filled(message...)...); err != nil {
		n.log.Warn("service manager notification", "error", err)
	}
}

// watchdog gives a sign of life at every tick at which liveness passes.
func (n *notifier) watchdog(ctx context.Context, every time.Duration, alive func(context.Context) bool) {
	tick := time.NewTicker(max(every, time.Millisecond))
	defer tick.Stop()
	for {
		if alive(ctx) && ctx.Err() == nil {
			n.say("WATCHDOG=1")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// close says what is left to be said, and ends.
func (n *notifier) close() {
	n.cancel()
	close(n.quit)
	n.ended.Wait()
	_ = n.sock.Close()
}

// stopReason says why the App stops, "" before it does.
func (a *App) stopReason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.request == nil {
		return ""
	}
	return a.request.reason
}
