package sdnotify

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// Notifier tells the service manager about one service. Its methods put messages
// on a list and return at once; a goroutine sends them. When the service manager
// does not read, the messages wait. At the end, Close waits a second at most for
// it to read.
//
// A nil Notifier sends nothing. All methods may be called concurrently.
type Notifier struct {
	sock   *Socket
	log    *slog.Logger
	wake   fsm.Wake // there is a message to send
	quit   chan struct{}
	cancel context.CancelFunc // cancels a look at liveness
	ended  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	pending []message
	stopBy  time.Time // zero until the stop begins; STOPPING=1 is final
	handed  bool      // another process is the service's main process
}

// message is what the service manager is told at once.
type message struct {
	assignments []string
	file        *os.File // that comes with it; nil for none
}

// drop forgets a message that was sent, or that is not to be sent any more.
func (m message) drop() {
	if m.file != nil {
		_ = m.file.Close() // a copy
	}
}

// extendEvery is the time between two extensions of the service manager's
// timeout during a stop.
const extendEvery = 5 * time.Second

const (
	sendAttempt  = 100 * time.Millisecond // bounds one attempt to send a message
	closeTimeout = time.Second            // bounds all attempts in Close
)

// maxPending bounds the list. Only an App that reloads many times while the
// service manager does not read reaches it. Then the Notifier drops the oldest
// messages.
const maxPending = 64

// newestOnly lists the keys whose newest message replaces a waiting one.
var newestOnly = []string{"WATCHDOG=", "EXTEND_TIMEOUT_USEC="}

// Start connects to the service manager that the environment of the process
// names, and removes the variables of the protocol from the environment. It
// returns nil when there is no service manager or it cannot be reached, and logs
// errors. When the service manager asks for signs of life, the Notifier sends
// WATCHDOG=1 twice as often as asked, while alive returns true.
func Start(log *slog.Logger, alive func(context.Context) bool) *Notifier {
	sock, err := Open(Env{Lookup: os.LookupEnv, Unset: os.Unsetenv}, os.Getpid())
	if err != nil {
		log.Warn("service manager notification", "error", err)
	}
	if sock == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &Notifier{sock: sock, log: log, wake: fsm.NewWake(), quit: make(chan struct{}), cancel: cancel}
	n.ended.Go(n.send)
	if sock.Watchdog > 0 {
		n.ended.Go(func() { n.watchdog(ctx, sock.Watchdog/2, alive) })
	}
	return n
}

// Status shows text as the state of the service.
func (n *Notifier) Status(text string) {
	if n != nil {
		n.enqueue(Status(text))
	}
}

// Ready reports that the service has started, and shows text as its state. Once
// the stop has begun, it sends nothing.
func (n *Notifier) Ready(text string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopBy.IsZero() {
		n.enqueueLocked("READY=1", Status(text))
	}
}

// Reloading reports that a reload begins. The caller calls Ready when the reload
// is over. Once the stop has begun, Reloading sends nothing.
func (n *Notifier) Reloading() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopBy.IsZero() {
		n.enqueueLocked("RELOADING=1", Monotonic(), Status("reloading"))
	}
}

// Stopping says that the stop has begun and how long it may take, and from then
// on extends the service manager's timeout every five seconds. Only the first
// call counts.
func (n *Notifier) Stopping(total time.Duration) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopBy.IsZero() {
		n.stopBy = time.Now().Add(total)
		n.enqueueLocked("STOPPING=1", ExtendTimeout(total))
	}
}

// Keeps reports whether the service manager keeps sockets for the next process.
func (n *Notifier) Keeps() bool { return n != nil && n.sock.Keeps }

// Keep gives the service manager a socket to keep under a name, until the unit stops: the next
// process gets it, also after a crash. Keep closes the file.
func (n *Notifier) Keep(name string, file *os.File) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addLocked(message{[]string{"FDSTORE=1", "FDNAME=" + name, "FDPOLL=0"}, file})
}

// Forget makes the service manager close what it keeps under the name.
func (n *Notifier) Forget(name string) { n.enqueue("FDSTOREREMOVE=1", "FDNAME="+name) }

// HandOver says that the process pid is the service's main process from now on, and that it
// is ready. It is the last message of this process.
func (n *Notifier) HandOver(pid int, text string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.pending {
		m.drop()
	}
	n.pending = nil
	n.enqueueLocked("MAINPID="+strconv.Itoa(pid), "READY=1", Status(text))
	n.handed = true
}

// Environ returns the variables that Start has removed, as NAME=VALUE, for a process that
// speaks to the service manager in place of this one. WATCHDOG_PID names this process and is
// not among them.
func (n *Notifier) Environ() []string {
	if n == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(n.sock.removed), func(kv string) bool { return strings.HasPrefix(kv, watchdogPIDVar+"=") })
}

// Close sends the messages that are left, within a second, and closes the
// socket.
func (n *Notifier) Close() {
	if n == nil {
		return
	}
	n.cancel()
	close(n.quit)
	n.ended.Wait()
	for _, m := range n.pending {
		m.drop()
	}
	_ = n.sock.Close()
}

// enqueue puts a message on the list.
func (n *Notifier) enqueue(assignments ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.enqueueLocked(assignments...)
}

func (n *Notifier) enqueueLocked(assignments ...string) {
	assignments = slices.DeleteFunc(assignments, func(s string) bool { return s == "" })
	for _, key := range newestOnly {
		if strings.HasPrefix(assignments[0], key) {
			n.pending = slices.DeleteFunc(n.pending, func(m message) bool { return strings.HasPrefix(m.assignments[0], key) })
		}
	}
	n.addLocked(message{assignments: assignments})
}

func (n *Notifier) addLocked(m message) {
	if n.handed {
		m.drop()
		return
	}
	if len(n.pending) >= maxPending {
		n.pending[0].drop()
		n.pending = n.pending[1:]
	}
	n.pending = append(n.pending, m)
	n.wake.Notify()
}

// send sends the messages on the list, and extends the timeout during a stop.
func (n *Notifier) send() {
	extend := time.NewTicker(extendEvery)
	defer extend.Stop()
	for {
		select {
		case <-n.wake:
			n.flush(n.quit)
		case <-extend.C:
			n.extend()
		case <-n.quit:
			over, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			n.flush(over.Done())
			return
		}
	}
}

func (n *Notifier) extend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.stopBy.IsZero() {
		n.enqueueLocked(ExtendTimeout(time.Until(n.stopBy)))
	}
}

// flush sends the messages on the list. When one cannot be sent, flush ends once stop is closed.
func (n *Notifier) flush(stop <-chan struct{}) {
	warned := false
	for {
		m, found := n.next()
		if !found {
			return
		}
		err := n.sock.Send(time.Now().Add(sendAttempt), m.file, m.assignments...)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			m.drop()
			if err != nil {
				n.log.Warn("service manager notification", "error", err)
			}
			continue
		}
		if !warned { // log it once for all attempts
			warned = true
			n.log.Warn("the service manager does not read what it is told", "waiting", m.assignments[0])
		}
		n.putBack(m)
		select {
		case <-stop:
			return
		default:
		}
	}
}

// next takes the oldest message from the list.
func (n *Notifier) next() (m message, found bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.pending) == 0 {
		return message{}, false
	}
	m, n.pending = n.pending[0], n.pending[1:]
	return m, true
}

// putBack puts a message that could not be sent back to the front of the list.
func (n *Notifier) putBack(m message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = append([]message{m}, n.pending...)
}

// watchdog sends a sign of life at every tick at which alive returns true.
func (n *Notifier) watchdog(ctx context.Context, every time.Duration, alive func(context.Context) bool) {
	tick := time.NewTicker(max(every, time.Millisecond))
	defer tick.Stop()
	for {
		if alive(ctx) && ctx.Err() == nil {
			n.enqueue("WATCHDOG=1")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
