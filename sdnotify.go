package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/sdnotify"
)

// notifier tells the service manager how the App does, when there is one that
// wants to know (NOTIFY_SOCKET): see [App.Run]. Nobody waits for it: what is to
// be said is put on a list, and said by a goroutine. What a service manager does
// not read stays on the list until it does; at the end it gets a moment more. A
// nil notifier says nothing.
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

// How long a service manager that does not read is waited for: in one attempt to
// tell it something, and in all when the App has ended.
const (
	sendAttempt  = 100 * time.Millisecond
	closeTimeout = time.Second
)

// maxPending bounds the list. It is never that long unless an App that nobody
// listens to reloads again and again; the oldest are dropped then.
const maxPending = 64

// latest is what only the newest counts of: one that still waits is replaced.
var latest = []string{"WATCHDOG=", "EXTEND_TIMEOUT_USEC="}

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
		t0 := a.stop.began()
		if t0.IsZero() {
			return time.Time{}
		}
		return t0.Add(a.cfg.total())
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
	for _, key := range latest {
		if strings.HasPrefix(assignments[0], key) {
			n.pending = slices.DeleteFunc(n.pending, func(m []string) bool { return strings.HasPrefix(m[0], key) })
		}
	}
	if len(n.pending) >= maxPending {
		n.pending = n.pending[1:]
	}
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
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.going {
		n.sayLocked([]string{"RELOADING=1", sdnotify.Monotonic(), sdnotify.Status("reloading")})
	}
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
			n.flush(n.quit)
		case <-extend.C:
			if by := n.stopBy(); !by.IsZero() {
				n.say(sdnotify.ExtendTimeout(time.Until(by)))
			}
		case <-n.quit:
			over, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			n.flush(over.Done())
			return
		}
	}
}

// flush says what is on the list, until enough is closed.
func (n *notifier) flush(enough <-chan struct{}) {
	patient := false
	for {
		message := n.next()
		if message == nil {
			return
		}
		err := n.sock.Send(time.Now().Add(sendAttempt), filled(message...)...)
		switch {
		case err == nil:
			continue
		case !errors.Is(err, os.ErrDeadlineExceeded):
			n.log.Warn("service manager notification", "error", err)
			continue
		}
		if !patient { // once, and not for every attempt
			patient = true
			n.log.Warn("the service manager does not read what it is told", "waiting", message[0])
		}
		n.putBack(message)
		select {
		case <-enough:
			return
		default:
		}
	}
}

// next takes the oldest message from the list.
func (n *notifier) next() (message []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.pending) > 0 {
		message, n.pending = n.pending[0], n.pending[1:]
	}
	return message
}

// putBack makes a message that could not be sent the next again.
func (n *notifier) putBack(message []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = append([][]string{message}, n.pending...)
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

// close says what is left to be said, for closeTimeout at most, and ends.
func (n *notifier) close() {
	n.cancel()
	close(n.quit)
	n.ended.Wait()
	_ = n.sock.Close()
}
