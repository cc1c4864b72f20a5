package httpdrain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
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
}

// open lists the connections that are open now.
func (t *tracker) open() []*conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.conns))
}

// count returns how many open connections are served, and how many are hijacked.
func (t *tracker) count() (served, hijacked int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		if c.servesNoRequests() {
			hijacked++
		} else {
			served++
		}
	}
	return served, hijacked
}

// waitNone waits until no connection is open any more, or until ctx is done.
func (t *tracker) waitNone(ctx context.Context) {
	awaitNone(ctx, func() int {
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.conns)
	})
}

// clientLook is the time between two looks at the connections that are open.
const clientLook = 5 * time.Millisecond

// awaitNone waits until open returns 0, or until ctx is done.
func awaitNone(ctx context.Context, open func() int) {
	look := time.NewTicker(clientLook)
	defer look.Stop()
	for open() > 0 {
		select {
		case <-look.C:
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

	preface  atomic.Int32 // bytes of HTTP/2's preface that have come, or noPreface
	http2    atomic.Pointer[http2Conn]
	hijacked atomic.Bool   // a handler owns it
	request  atomic.Uint32 // the one HTTP/1 request in progress, as bits; 0 on HTTP/2

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

	closeOnce sync.Once
	closeErr  error
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
// of a foreign listener may panic or end its goroutine: that is the error.
func (c *conn) Close() error {
	c.closeOnce.Do(func() {
		defer c.release()
		closed := make(chan struct{})
		call.Go("close a connection", c.Conn.Close, func(err error) {
			c.closeErr = err
			close(closed)
		})
		<-closed
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
