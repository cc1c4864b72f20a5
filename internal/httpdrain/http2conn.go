package httpdrain

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

const (
	// goAwayWait is how long a goodbye waits for a response that it can go ahead of.
	goAwayWait = time.Second
	// ackWait is how long a client then has to acknowledge the first GOAWAY, as in
	// gRPC. Clients do so at once, unless they are starved, or look at a connection
	// only when they use it. With a shorter wait, starved clients lose requests.
	ackWait = 5 * time.Second
)

// The frames of a goodbye (RFC 9113, sections 6.7 and 6.8).
const (
	goodbyePing = "farewell"
	// firstGoAway is what the client gets: GOAWAY with the highest stream id there
	// is, and a PING behind it.
	firstGoAway = "\x00\x00\x08\x07\x00\x00\x00\x00\x00" + "\x7f\xff\xff\xff" + "\x00\x00\x00\x00" +
		"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + goodbyePing
	// clientGoAway is what the HTTP/2 implementation of this side gets.
	clientGoAway = "\x00\x00\x08\x07\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"
)

// The steps of a goodbye.
const (
	notAsked = iota
	inUse    // the first GOAWAY goes before the next response
	asked    // the first GOAWAY waits for the end of a frame that is being written
	waiting  // it is written, and the client has not acknowledged it
	ending   // the client has, or was too slow: the implementation is told behind the frame that is being read
	said     // it is told: it sends the last GOAWAY, and closes the connection after the last stream
)

// http2Conn is what an HTTP/2 implementation reads and writes. It passes all bytes
// through and says goodbye without dropping a request, in two steps (RFC 9113,
// section 6.8).
//
// First the client gets GOAWAY with the highest stream id, which drops no stream,
// and a PING. A client that acknowledges the PING has read the GOAWAY, and opens no
// stream afterwards. The streams that it opened before arrive before the acknowledgement.
// Then, or when the client takes longer than ackWait, the implementation reads a
// GOAWAY as if the client had sent it. Every implementation answers that with its
// own GOAWAY, which names the last stream that it has taken, serves the streams that
// it has, and closes (net/http and golang.org/x/net/http2, processGoAway).
//
// Frames are inserted only behind the first frame of their direction, between two
// frames, and not into a header block. A goodbye never waits for such a place: the read
// or write that reaches one goes on with the goodbye.
type http2Conn struct {
	below   net.Conn      // the accepted connection, or TLS on it
	conn    *conn         // the one in the tracker
	clear   bool          // without TLS: conn passes its calls to this
	idleFor time.Duration // http.Server.IdleTimeout
	streams *streams      // nil unless requests are counted here
	latest  atomic.Int64  // when the latest request came, or the connection; nanoseconds after tracker.created
	foreign atomic.Bool   // it turned out not to be HTTP/2
	step    atomic.Uint32
	ended   chan struct{} // closed when the implementation is told, or the connection is closed

	wmu  sync.Mutex // guards the writing side: everything below
	out  frames
	gone bool  // the implementation has sent GOAWAY
	werr error // why the first GOAWAY was not written whole; the connection cannot be used any more

	rmu    sync.Mutex // guards the reading side: everything below
	in     frames
	ahead  []byte // bytes that were read and not handed on
	insert string // what is left of the GOAWAY for the implementation

	mu       sync.Mutex  // guards everything below
	deadline time.Time   // of reading, as the implementation has set it
	woken    bool        // another deadline is set, to end a read
	wait     *time.Timer // for a response, or for the client's acknowledgement
	idle     *time.Timer // nil without idleFor; runs while there is no request
	expired  bool        // idleFor has passed without a request
	requests int         // whose handler runs
	closed   bool
}

// newHTTP2Conn makes the one http2Conn of c, which must be given to c.speaks.
func newHTTP2Conn(c *conn, below net.Conn) *http2Conn {
	h := &http2Conn{below: below, conn: c, ended: make(chan struct{})}
	h.latest.Store(c.tracker.since())
	return h
}

// sayGoodbye begins the goodbye. It does not wait. Calls after the first do nothing.
//
// A connection that was in use just now gets the first GOAWAY before its next
// response, if that comes within goAwayWait. The client that waits for the response
// is then not about to send. For when a GOAWAY arrives, Go's client fails a request with
// a body that it has just assigned to the connection, although it has not sent a byte of
// it (golang/go#62450). It also takes a GOAWAY before the first request for a refusal
// (net/http, errClientConnNotEstablished).
func (h *http2Conn) sayGoodbye() {
	if h.conn.tracker.since()-h.latest.Load() >= int64(goAwayWait) {
		h.sayNow()
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed && h.step.CompareAndSwap(notAsked, inUse) {
		h.wait = time.AfterFunc(goAwayWait, h.sayNow)
	}
}

func (h *http2Conn) sayNow() {
	if h.step.CompareAndSwap(notAsked, asked) || h.step.CompareAndSwap(inUse, asked) {
		// Writing may take as long as the client does not read.
		call.Go("say goodbye on HTTP/2", func() error { h.kick(); return nil }, func(error) {})
	}
}

// kick writes the first GOAWAY, unless a frame is being written: the call that
// writes its end kicks again.
func (h *http2Conn) kick() {
	for h.step.Load() == asked && h.wmu.TryLock() {
		if !h.tryFirst() {
			return
		}
	}
}

func (h *http2Conn) tryFirst() (done bool) {
	defer h.wmu.Unlock()
	if h.out.open() {
		return h.writeFirst() == nil
	}
	return false
}

// writeFirst writes the first GOAWAY. It is called with wmu held and out open.
func (h *http2Conn) writeFirst() error {
	if h.gone {
		h.finish() // the implementation was faster, and a later GOAWAY must not name a higher stream
		return nil
	}
	h.step.Store(waiting) // the acknowledgement may come at once
	if _, err := h.below.Write([]byte(firstGoAway)); err != nil {
		h.werr = err
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed && h.step.Load() == waiting {
		if h.wait != nil {
			h.wait.Stop()
		}
		h.wait = time.AfterFunc(ackWait, h.acknowledged)
	}
	return nil
}

// Write writes p, and the first GOAWAY when it is asked for and may be inserted.
func (h *http2Conn) Write(p []byte) (int, error) {
	n, err := h.write(p)
	h.kick() // asked for while this call wrote
	return n, err
}

func (h *http2Conn) write(p []byte) (done int, err error) {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	for {
		if h.werr != nil {
			return done, h.werr
		}
		part := p[done:]
		switch step := h.step.Load(); {
		case step == asked && h.out.open():
			if err := h.writeFirst(); err != nil {
				return done, err
			}
		case step == asked:
			ahead := h.out // a copy
			n, _ := ahead.advance(part)
			part = part[:n]
		case step == inUse || step == notAsked && h.conn.server.saysGoodbye():
			n, found := h.out.untilHeaders(part)
			if found && n == 0 {
				h.step.CompareAndSwap(step, asked)
				continue
			}
			part = part[:n]
		}
		n, err := h.below.Write(part)
		h.wrote(part[:max(n, 0)])
		done += n
		if err != nil || done == len(p) {
			return done, err
		}
	}
}

// wrote follows the frames in p, which was written.
func (h *http2Conn) wrote(p []byte) {
	for len(p) > 0 {
		n, whole := h.out.advance(p)
		p = p[n:]
		if !whole {
			continue
		}
		switch h.out.kind() {
		case frameGoAway:
			h.gone = true
		case frameHeaders, frameData:
			if h.out.flag(flagEndStream) {
				h.streams.end(h.out.stream())
			}
		case frameReset:
			h.streams.end(h.out.stream())
		}
	}
	if h.out.lost {
		h.foreign.Store(true)
	}
}

// Read reads what the client sent, and the goodbye behind it.
func (h *http2Conn) Read(p []byte) (int, error) {
	h.rmu.Lock()
	defer h.rmu.Unlock()
	for {
		if h.step.Load() == ending && h.in.open() {
			h.unwake()
			h.insert = clientGoAway
			h.finish()
		}
		if h.insert != "" {
			n := copy(p, h.insert)
			h.insert = h.insert[n:]
			return n, nil
		}
		if len(h.ahead) > 0 {
			n := h.read(p[:copy(p, h.ahead)])
			h.ahead = h.ahead[n:]
			return n, nil
		}
		n, err := h.below.Read(p)
		if n <= 0 && err != nil && h.unwake() {
			continue // acknowledged ended this read; an error of the connection comes again
		}
		if k := h.read(p[:max(n, 0)]); k < n {
			h.ahead = append([]byte(nil), p[k:n]...)
			return k, nil // an error comes again
		}
		return n, err
	}
}

// read follows the frames in p, which was read. It stops at the place where the GOAWAY for
// the implementation belongs.
func (h *http2Conn) read(p []byte) (n int) {
	for n < len(p) {
		k, whole := h.in.advance(p[n:])
		n += k
		if !whole {
			continue
		}
		switch h.in.kind() {
		case frameHeaders:
			now := h.conn.tracker.since()
			h.latest.Store(now)
			if h.streams.begin(h.in.stream()) {
				h.conn.server.lastArrival.Store(now)
			}
		case frameReset:
			h.streams.end(h.in.stream())
		case framePing:
			if h.in.flag(flagAck) && string(h.in.data[:]) == goodbyePing {
				h.step.CompareAndSwap(waiting, ending)
			}
		}
		if h.step.Load() == ending && h.in.open() {
			return n
		}
	}
	if h.in.lost {
		h.foreign.Store(true)
	}
	return n
}

// acknowledged ends the wait for the client. It also ends a read that is in progress, so
// that the implementation gets its GOAWAY at once.
func (h *http2Conn) acknowledged() {
	if !h.step.CompareAndSwap(waiting, ending) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.woken = true
		h.setDeadlineLocked(time.Unix(1, 0))
	}
	if h.expired {
		h.giveUpLocked()
	}
}

// unwake restores the deadline of reads when acknowledged has changed it. It reports
// whether that was so.
func (h *http2Conn) unwake() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.woken {
		return false
	}
	h.woken = false
	h.setDeadlineLocked(h.deadline)
	return true
}

func (h *http2Conn) setDeadlineLocked(t time.Time) {
	// The connection may be of a foreign listener. Without deadlines the goodbye
	// goes on with the next frame.
	_ = call.Do("set a read deadline", func() error { return h.below.SetReadDeadline(t) })
}

// SetReadDeadline sets the deadline of reads.
func (h *http2Conn) SetReadDeadline(t time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = t
	if h.woken {
		return nil // unwake sets it
	}
	return h.below.SetReadDeadline(t)
}

// SetDeadline sets the deadlines of reads and writes.
func (h *http2Conn) SetDeadline(t time.Time) error {
	if err := h.SetReadDeadline(t); err != nil {
		return err
	}
	return h.below.SetWriteDeadline(t)
}

// finish records that the goodbye is said.
func (h *http2Conn) finish() {
	h.step.Store(said)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finishLocked()
}

func (h *http2Conn) finishLocked() {
	if h.wait != nil {
		h.wait.Stop()
	}
	select {
	case <-h.ended:
	default:
		close(h.ended)
	}
}

// stop is called when the connection is closed.
func (h *http2Conn) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.idle != nil {
		h.idle.Stop()
	}
	h.finishLocked()
}
