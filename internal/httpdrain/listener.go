package httpdrain

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/sdsocket"
)

const (
	// backlogLook is how long one look into the kernel's queue of accepted
	// connections may take. It is not a wait for new ones: it is long enough
	// for a process whose CPU is throttled to get round to looking.
	backlogLook = 20 * time.Millisecond
	// acceptorStall is how long retire waits for an accept loop that is busy
	// elsewhere (in a ConnContext that blocks, say) before it closes without it.
	acceptorStall = time.Second
	// handshake is how long a client may take to complete a TCP handshake that had begun
	// when the kernel began to refuse new ones.
	handshake = 250 * time.Millisecond
)

// errTLSConn says why the server refuses connections that are TLS already.
var errTLSConn = errors.New("the listener hands out TLS connections, which cannot be tracked and served as HTTP/2 at once: " +
	"give a plain listener and set TLSConfig")

// listener hands out tracked connections. It can be retired: it stops
// accepting while the server's accept loop stays parked in Accept, so that the
// server neither fails nor spins, until Close ends that loop.
type listener struct {
	net.Listener
	tracker   *tracker
	anyConn   bool // TLS connections are handed out too
	lookWaits bool // the kernel queues connections, and Accept has no deadline: a look into the queue may wait

	closeOnce sync.Once
	closeErr  error
	closed    chan struct{} // the listener below is closed
	released  chan struct{} // Close was called

	mu        sync.Mutex // guards everything below
	accepting bool       // an accept loop has come
	retiring  bool
	leftOpen  bool // by closeWhenQuiet
	done      bool // released is closed

	kernelRefuses bool // the kernel refuses new connections
}

// newListener wraps ln. It refuses one that cannot say where it listens.
func newListener(ln net.Listener, t *tracker) (*listener, error) {
	network := ""
	err := call.Do(fmt.Sprintf("Addr of a %T", ln), func() error {
		addr := ln.Addr()
		if addr == nil {
			return fmt.Errorf("a %T has no address", ln)
		}
		network = addr.Network()
		_ = addr.String() // it may be a nil pointer
		return nil
	})
	if err != nil {
		return nil, err
	}
	_, deadlines := ln.(deadliner)
	queued := strings.HasPrefix(network, "tcp") || strings.HasPrefix(network, "unix")
	return &listener{
		Listener:  ln,
		tracker:   t,
		lookWaits: queued && !deadlines,
		closed:    make(chan struct{}),
		released:  make(chan struct{}),
	}, nil
}

// isShared reports whether another process listens on the socket, now or next: waiting
// connections are for that one.
func (l *listener) isShared() bool {
	s, ok := l.Listener.(*sdsocket.Listener)
	return ok && s.Shared()
}

// Accept waits for the next connection. Once the listener is retired, Accept returns the
// connections that the kernel has accepted already, unless they are for the next process.
// Then it closes the listener below and blocks until Close.
func (l *listener) Accept() (net.Conn, error) {
	for empty := 0; empty < 2 || l.inHandshake(); {
		retiring := l.look()
		if retiring && l.isShared() {
			break
		}
		nc, err := l.Listener.Accept()
		if err == nil {
			if _, is := nc.(*tls.Conn); is && !l.anyConn {
				nc.Close()
				return nil, errTLSConn
			}
			return l.tracker.admit(nc), nil
		}
		if !l.isRetiring() {
			return nil, err
		}
		// One look can be late: a deadline that passes before the call is made
		// is an error without a look. So only the second empty one counts.
		if retiring {
			empty++
		}
	}
	_ = l.closeBelow() // retire and Close return the error
	<-l.released
	return nil, net.ErrClosed
}

// look prepares an Accept that does not wait, if the listener is retiring.
func (l *listener) look() (retiring bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepting = true
	if l.retiring {
		l.setDeadline(time.Now().Add(backlogLook))
	}
	return l.retiring
}

// inHandshake reports whether a TCP handshake may still be under way that began before the
// kernel refused new connections: the latest connection came a moment ago.
func (l *listener) inHandshake() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kernelRefuses && time.Since(l.tracker.at(l.tracker.lastAccept.Load())) < handshake
}

func (l *listener) isRetiring() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retiring
}

// deadliner has a method of package net's listeners that listeners around them often hide.
type deadliner interface{ SetDeadline(time.Time) error }

// setDeadline reports whether the listener below has deadlines.
func (l *listener) setDeadline(t time.Time) bool {
	d, ok := l.Listener.(deadliner)
	return ok && call.Do("set the deadline of the listener", func() error { return d.SetDeadline(t) }) == nil
}

// retire stops accepting and returns when the listener below is closed. A
// connection that the kernel had accepted by then is handed out first, unless
// ctx is done before, the listener below has no deadlines, or it is shared. On Linux
// the kernel refuses new connections to a socket of our own from now on, so that none is
// made between the last look and the close.
func (l *listener) retire(ctx context.Context) error {
	if l.beginRetiring() {
		l.awaitAcceptor(ctx)
	}
	return l.closeBelow()
}

// awaitAcceptor waits until the accept loop has closed the listener or has accepted
// nothing for acceptorStall, or until ctx is done. When the kernel does not refuse new
// connections, the accept loop may never end, and awaitAcceptor waits only once for
// acceptorStall.
func (l *listener) awaitAcceptor(ctx context.Context) {
	stall := time.NewTicker(acceptorStall)
	defer stall.Stop()
	l.mu.Lock()
	kernelRefuses := l.kernelRefuses
	l.mu.Unlock()
	for accepted := l.tracker.accepted.Load(); ; {
		select {
		case <-l.closed:
			return
		case <-ctx.Done():
			return
		case <-stall.C:
		}
		now := l.tracker.accepted.Load()
		if !kernelRefuses || now == accepted {
			return
		}
		accepted = now
	}
}

// beginRetiring tells the accept loop to retire. It returns false when there is no way to
// tell it.
func (l *listener) beginRetiring() (told bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Under the lock: a deadline in the past that is set after the accept loop
	// has set its own would hide the backlog from it.
	l.retiring = true
	if !l.accepting {
		return false
	}
	if own, ok := l.Listener.(*sdsocket.Listener); ok && !own.Shared() && strings.HasPrefix(l.Addr().Network(), "tcp") {
		if raw, err := own.SyscallConn(); err == nil {
			l.kernelRefuses = turnAway(raw)
		}
	}
	return l.setDeadline(time.Now())
}

func (l *listener) closeBelow() error {
	l.closeOnce.Do(func() {
		defer close(l.closed) // also when the listener, which is foreign code, ends the goroutine
		// A panic would leave net/http's lock held.
		l.closeErr = call.Do("close the listener", l.Listener.Close)
	})
	return l.closeErr
}

// Close closes the listener and ends the accept loop. Later calls return what
// the first one returned.
func (l *listener) Close() error {
	err := l.closeBelow()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done {
		l.done = true
		close(l.released)
	}
	return err
}

// closeWhenQuiet waits until nothing was accepted for AcceptQuiet, counted from
// the window's end or from the last connection, and for as long as that connection came after
// T0, and retires the listener; at the latest after AcceptMax, or when ctx is done. When a look into
// the queue may wait and connections are open, it leaves the listener open: the listener may be
// at a limit, with more connections waiting in the kernel. For a shared listener it does not
// wait at all, because its connections go to the next process.
func (l *listener) closeWhenQuiet(ctx context.Context, t0, windowEnd time.Time, cfg Config) error {
	if l.isShared() {
		return l.retire(ctx)
	}
	limit := windowEnd.Add(cfg.AcceptMax)
	for {
		last := l.tracker.at(l.tracker.lastAccept.Load())
		due := later(windowEnd, last).Add(cfg.AcceptQuiet)
		if !t0.IsZero() && last.After(t0) && cfg.AcceptQuiet > 0 {
			sinceT0 := last.Sub(t0) // a slow balancer may need as long again for its next connection
			due = later(due, last.Add(sinceT0))
		}
		if due.After(limit) {
			due = limit
		}
		wait := time.Until(due)
		if wait <= 0 {
			if l.leaveOpen() {
				return nil
			}
			return l.retire(ctx)
		}
		select {
		case <-time.After(wait):
		case <-l.closed:
			return l.closeErr
		case <-ctx.Done():
			return l.retire(ctx)
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// leaveOpen reports whether the listener stays open: a look into its queue may wait, and it has
// open connections.
func (l *listener) leaveOpen() bool {
	served, _ := l.tracker.count()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leftOpen = l.lookWaits && served > 0 && !l.retiring
	return l.leftOpen
}

// wasLeftOpen reports whether closeWhenQuiet has left the listener open.
func (l *listener) wasLeftOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftOpen
}

// isTLS reports whether ln is what tls.NewListener returns.
func isTLS(ln net.Listener) bool { return fmt.Sprintf("%T", ln) == "*tls.listener" }
