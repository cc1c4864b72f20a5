package httpdrain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// tracker has every open connection that a listener handed out: net/http serves it, or a
// handler has hijacked it.
type tracker struct {
	created    time.Time
	accepted   atomic.Uint64
	lastAccept atomic.Int64 // nanoseconds after created, 0 before the first

	mu    sync.Mutex // guards everything below
	conns map[*conn]struct{}
	left  chan struct{} // closed when a connection leaves or is hijacked; nil while no call waits for that
}

func newTracker() *tracker {
	return &tracker{created: time.Now(), conns: make(map[*conn]struct{})}
}

// since returns the nanoseconds since created. It costs half as much as time.Now.
func (t *tracker) since() int64 { return int64(time.Since(t.created)) }

// at turns a moment noted with since back into a time, the zero time for 0.
func (t *tracker) at(offset int64) time.Time {
	if offset == 0 {
		return time.Time{}
	}
	return t.created.Add(time.Duration(offset))
}

func (t *tracker) admit(nc net.Conn) *conn {
	c := &conn{Conn: nc, tracker: t}
	t.mu.Lock()
	t.conns[c] = struct{}{}
	t.mu.Unlock()
	t.accepted.Add(1)
	t.lastAccept.Store(t.since())
	return c
}

func (t *tracker) remove(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	t.wakeLocked()
}

// wake makes the calls that wait for fewer connections look again.
func (t *tracker) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wakeLocked()
}

func (t *tracker) wakeLocked() {
	if t.left != nil {
		close(t.left)
		t.left = nil
	}
}

// open lists the connections that are open now.
func (t *tracker) open() []*conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*conn, 0, len(t.conns))
	for c := range t.conns {
		list = append(list, c)
	}
	return list
}

// count returns how many open connections are served, and how many are hijacked.
func (t *tracker) count() (served, hijacked int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.countLocked()
}

func (t *tracker) countLocked() (served, hijacked int) {
	for c := range t.conns {
		if c.servesNoRequests() {
			hijacked++
		} else {
			served++
		}
	}
	return served, hijacked
}

// awaitedLocked returns how many connections the server waits for: all that serve requests, and
// hijacked ones that have not had their time.
func (t *tracker) awaitedLocked() (n int) {
	for c := range t.conns {
		if !c.servesNoRequests() || c.hasGrace.Load() {
			n++
		}
	}
	return n
}

// waitNoneServed waits until the server waits for no connection any more, or until ctx is done.
func (t *tracker) waitNoneServed(ctx context.Context) {
	for {
		t.mu.Lock()
		if t.awaitedLocked() == 0 {
			t.mu.Unlock()
			return
		}
		if t.left == nil {
			t.left = make(chan struct{})
		}
		left := t.left
		t.mu.Unlock()
		select {
		case <-left:
		case <-ctx.Done():
			return
		}
	}
}

// The bits of conn.request.
const (
	requestActive  = 1 << iota // a handler runs
	requestStream              // its context is cancelled at the window's end
	requestUpgrade             // it asks for another protocol, a websocket for one
	requestCut                 // its context has been cancelled at the window's end
	requestHTTP2               // it asks for HTTP/2
	requestAsked               // its handler has asked for the notice
)

// conn is a connection that the listener handed out. TLS lies above it. It is
// in the tracker's set until it is closed, which net/http does for the ones
// that it serves and the handler for the ones that it hijacked.
type conn struct {
	net.Conn
	tracker *tracker

	used  atomic.Bool // the peer has sent a byte
	http1 atomic.Bool // it has carried an HTTP/1 request
	told  atomic.Bool // an HTTP/1 response tells its client that it closes

	preface  atomic.Int32 // bytes of HTTP/2's preface that have come, or noPreface
	http2    atomic.Pointer[http2Conn]
	hijacked atomic.Bool   // a handler owns it
	takenAt  time.Time     // when it was hijacked; written before hijacked is set
	request  atomic.Uint32 // the one HTTP/1 request in progress, as bits; 0 on HTTP/2

	// hasGrace says that the connection is hijacked and does not close at the window's end: its
	// handler was told just before, or it was hijacked just before or later.
	hasGrace atomic.Bool

	awaitsRequest atomic.Bool // net/http has written its last response and waits for the next request

	// contextCut says that the connection's context was cancelled for one request
	// and cannot be the parent of the next. Only net/http's goroutine of this
	// connection touches it.
	contextCut bool

	server *Server // nil for gRPC; set before net/http sees the connection

	mu     sync.Mutex // guards cancel and closed
	cancel context.CancelCauseFunc
	closed bool

	notice *notice // of the request in progress or of the hijacked connection, nil for none yet; guarded by Server.mu

	beginClose sync.Once
	inStages   bool // set by beginClose
	closeOnce  sync.Once
	closeErr   error
}

// idle reports whether the connection waits for its next HTTP/1 request, and its last
// response is written: a handler that has returned may have left it in a buffer.
func (c *conn) idle() bool {
	return c.http1.Load() && c.awaitsRequest.Load() && c.request.Load() == 0 && c.http2.Load() == nil && !c.hijacked.Load()
}

// endAfter closes the connection after a while, if its handler has not.
func (c *conn) endAfter(d time.Duration) {
	time.AfterFunc(d, func() {
		c.cancelContext(ErrWindowOver)
		_ = c.Close()
	})
}

// trackedConn finds the tracked connection in nc, which net/http was given: nc itself, or
// the connection below a TLS connection. It returns nil when there is none.
func trackedConn(nc net.Conn) *conn {
	for nc != nil {
		switch v := nc.(type) {
		case *conn:
			return v
		case interface{ NetConn() net.Conn }:
			nc = v.NetConn()
		default:
			return nil
		}
	}
	return nil
}

// withContext remembers how to cancel the connection's context.
func (c *conn) withContext(cancel context.CancelCauseFunc) {
	c.mu.Lock()
	c.cancel = cancel
	closed := c.closed
	c.mu.Unlock()
	if closed {
		cancel(nil)
	}
}

func (c *conn) cancelContext(cause error) {
	c.mu.Lock()
	cancel := c.cancel
	c.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

func (c *conn) Read(p []byte) (int, error) {
	if h := c.passThrough(); h != nil {
		return h.Read(p)
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		if !c.used.Load() {
			c.used.Store(true)
		}
		c.lookForPreface(p[:n])
		if c.request.Load()&requestActive != 0 { // of its body
			c.sign()
		}
	}
	return n, err
}

// sign notes a sign of progress.
func (c *conn) sign() {
	if c.server != nil && !c.hijacked.Load() {
		c.server.signs.Sign(c.tracker.since())
	}
}

// ReadFrom lets net/http use sendfile where the connection below can.
func (c *conn) ReadFrom(src io.Reader) (int64, error) {
	if h := c.passThrough(); h != nil {
		return io.Copy(struct{ io.Writer }{h}, src)
	}
	if c.server != nil {
		c.server.sending.Add(1)
		defer c.server.sending.Add(-1)
	}
	defer c.sign()
	if rf, ok := c.Conn.(io.ReaderFrom); ok {
		return rf.ReadFrom(src)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, src)
}

// CloseWrite sends the end of the stream and leaves reading open. The error is
// errors.ErrUnsupported when the connection below cannot.
func (c *conn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return fmt.Errorf("close the write side of a %T: %w", c.Conn, errors.ErrUnsupported)
}

// SyscallConn gives access to the socket, for its options. The error is
// errors.ErrUnsupported when there is no socket below.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if sc, ok := c.Conn.(syscall.Conn); ok {
		return sc.SyscallConn()
	}
	return nil, fmt.Errorf("raw connection of a %T: %w", c.Conn, errors.ErrUnsupported)
}

// NetConn returns the connection as it was accepted.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection, cancels the contexts of its requests and takes
// it out of the set. Later calls return what the first one returned. A connection
// of a foreign listener may panic: that is the error.
//
// The client of an HTTP/1 connection that was told to close may still be sending: the rest of
// an upload that was answered early, or a request behind the answered one. Its connection is
// closed in stages, because a reset would destroy the answer on its way (RFC 9112, section 9.6).
func (c *conn) Close() error {
	c.beginClose.Do(func() {
		if !c.told.Load() || c.hijacked.Load() {
			return
		}
		if err := call.Do("close the write side", c.CloseWrite); err != nil {
			return // a foreign connection may have no such method
		}
		c.inStages = true
		c.cancelContext(nil)
		go c.closeAfterClient()
	})
	if c.inStages {
		return nil
	}
	return c.closeNow()
}

const (
	// closeQuiet is how long a connection that closes in stages waits for its client's next
	// byte, as net/http does (rstAvoidanceDelay).
	closeQuiet = 500 * time.Millisecond
	// closeMax is how long it drops what its client sends.
	closeMax = 5 * time.Second
)

// closeAfterClient drops what the client sends until the client closes its side, has sent nothing
// for closeQuiet, or closeMax is over. Then it closes the connection.
func (c *conn) closeAfterClient() {
	end := time.Now().Add(closeMax)
	dropped := make([]byte, 1<<10) // small, because thousands of connections may close at the same time
	_ = call.Do("read until the client closes", func() error {
		for time.Now().Before(end) {
			if err := c.Conn.SetReadDeadline(time.Now().Add(closeQuiet)); err != nil {
				return err
			}
			if _, err := c.Conn.Read(dropped); err != nil {
				return err
			}
		}
		return nil
	})
	_ = c.closeNow() // Close has returned
}

// closeNow closes the connection without a look at what its client still sends.
func (c *conn) closeNow() error {
	c.closeOnce.Do(func() {
		defer c.release() // also when the connection ends the goroutine
		c.closeErr = call.Do("close a connection", c.Conn.Close)
	})
	return c.closeErr
}

// release ends everything that depends on the connection, and takes it out of the tracker.
func (c *conn) release() {
	c.mu.Lock()
	c.closed = true
	cancel := c.cancel
	c.mu.Unlock()
	if h := c.http2.Load(); h != nil {
		h.stop()
	}
	if cancel != nil {
		cancel(nil)
	}
	c.tracker.remove(c)
}
