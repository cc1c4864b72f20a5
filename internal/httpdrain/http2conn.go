package httpdrain

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

const (
	// goAwayWait is the time without a request after which a connection counts as unused:
	// its client is not about to send. A client without open streams has as long to close its
	// connection after the first GOAWAY, as with net/http.
	goAwayWait = time.Second
	// ackWait is how long a client with open streams has to acknowledge the first GOAWAY, as
	// in gRPC. Clients do so at once, unless they are starved.
	ackWait = 5 * time.Second
	// actTime is how long a client that has acknowledged the first GOAWAY may take to act on
	// it: Node acknowledges before its program hears of it.
	actTime = 250 * time.Millisecond
	// goodbyesWithin is how long a stop waits for clients in both steps. It is less than ackWait: a
	// client that does not acknowledge has less time at a stop.
	goodbyesWithin = 2*goAwayWait + goAwayWait/10
)

// The frames of a goodbye (RFC 9113, sections 6.7 and 6.8).
const (
	goodbyePing = "goodbye!"
	goAwayFrame = "\x00\x00\x08\x07\x00\x00\x00\x00\x00"
	// firstGoAway is what the client gets: GOAWAY with the highest stream id there is.
	firstGoAway = goAwayFrame + "\x7f\xff\xff\xff" + "\x00\x00\x00\x00"
	// askForAck is the PING behind it when the client has streams open.
	askForAck = "\x00\x00\x08\x06\x00\x00\x00\x00\x00" + goodbyePing
	// clientGoAway is what the HTTP/2 implementation of this side gets.
	clientGoAway = goAwayFrame + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"
)

// goAway returns the GOAWAY that names the last stream.
func goAway(last uint32) []byte {
	return append(binary.BigEndian.AppendUint32([]byte(goAwayFrame), last), 0, 0, 0, 0)
}

// The steps of a goodbye.
const (
	notAsked  = iota
	whenQuiet // the first GOAWAY goes out behind the response that leaves no stream open
	asked     // the first GOAWAY waits for the end of a frame that is being written
	waiting   // it is written, and the client has neither acknowledged it nor closed
	ending    // the client has, or was too slow: the implementation is told behind the frame that is being read
	said      // it is told: it sends the last GOAWAY, and closes the connection after the last stream
)

// http2Conn is the connection that an HTTP/2 implementation reads and writes. It passes
// all bytes through and says goodbye without dropping a request, in two steps (RFC 9113,
// section 6.8).
//
// First the client gets GOAWAY with the highest stream id, which drops no stream. It goes
// out behind a response that leaves no stream open, if such a moment comes in time: there
// are clients that give up all open streams for a GOAWAY (undici 7, node:http2) or for any
// frame behind one (h2 of Python). The client then has goAwayWait to close the connection.
//
// When the client has streams open, a PING follows the GOAWAY. A client that acknowledges the
// PING has read the GOAWAY, and soon opens no stream. The streams that it opened before
// arrive before the acknowledgement.
//
// Then, or when the client takes longer, the implementation reads a
// GOAWAY as if the client had sent it. Every implementation answers that with its
// own GOAWAY, which names the last stream that it has taken, serves the streams that
// it has, and closes (net/http and golang.org/x/net/http2, processGoAway).
//
// Frames are inserted only behind the first frame of their direction, between two
// frames, and not into a header block. A goodbye never waits for such a place: the read
// or write that reaches one goes on with the goodbye.
type http2Conn struct {
	below   net.Conn     // the accepted connection, or TLS on it
	conn    *conn        // the one in the tracker
	plain   bool         // without TLS: conn passes its calls to this http2Conn
	streams streams      // the open ones
	latest  atomic.Int64 // when it came or was last used; nanoseconds after tracker.created
	step    atomic.Uint32
	ended   chan struct{} // closed when the implementation is told, or the connection is closed

	countsRequests bool        // requests are counted here, because handlers are not called through the Server
	notHTTP2       atomic.Bool // the bytes turned out not to be HTTP/2

	wmu  sync.Mutex // guards the writing side: everything below
	out  frames
	werr error // why the first GOAWAY was not written whole; the connection cannot be used any more

	sentGoAway bool // the implementation has sent GOAWAY

	rmu    sync.Mutex // guards the reading side: everything below
	in     frames
	ahead  []byte // bytes that were read and not handed on
	insert string // the rest of the GOAWAY for the implementation

	mu              sync.Mutex    // guards everything below
	deadline        time.Time     // of reading, as the implementation has set it
	woken           bool          // another deadline is set, to end a read
	wait            *time.Timer   // looks whether the connection is unused, or ends the wait for the client
	limit           time.Duration // how long it may be unused, first IdleTimeout; 0 for ever
	hasAcknowledged bool          // the client has acknowledged the first GOAWAY
	closed          bool
}

// newHTTP2Conn makes the one http2Conn of c, which must be given to c.speaks.
func newHTTP2Conn(c *conn, below net.Conn) *http2Conn {
	h := &http2Conn{below: below, conn: c, ended: make(chan struct{})}
	h.latest.Store(c.tracker.since())
	return h
}

// beginGoodbye begins the goodbye. It does not wait. Calls after the first do nothing.
//
// An unused connection gets the first GOAWAY at once. Any other gets it behind the response
// that leaves no stream open: at that moment its client is unlikely to begin a request.
// Go's client loses requests to a GOAWAY that comes at another moment. It fails a request
// with a body that it has just assigned to the connection, although it has not sent a byte
// of it (golang/go#62450). It also takes a GOAWAY before the first request for a refusal
// (net/http, errClientConnNotEstablished).
func (h *http2Conn) beginGoodbye() {
	if h.step.CompareAndSwap(notAsked, whenQuiet) {
		h.endWhenUnused(goAwayWait)
	}
}

// endWhenUnused ends the connection once it has been unused for limit, in place of an earlier
// limit. A connection is unused while it has no open stream.
func (h *http2Conn) endWhenUnused(limit time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limit = limit
	h.checkUnusedLocked()
}

func (h *http2Conn) checkUnused() {
	h.mu.Lock()
	closes := h.checkUnusedLocked()
	h.mu.Unlock()
	if closes {
		_ = h.conn.Close()
	}
}

// checkUnusedLocked says goodbye when the connection has been unused for the limit, and otherwise
// looks again when that may be. It returns true for a connection that can only be closed: its
// client had time, and has left a frame unfinished, so that the implementation cannot be told.
func (h *http2Conn) checkUnusedLocked() (closes bool) {
	step := h.step.Load()
	goodbyeGoesOn := step == asked || step == waiting || step == said
	if h.closed || h.limit == 0 || goodbyeGoesOn {
		return false
	}
	next := h.limit
	if h.streams.count() == 0 {
		next -= time.Duration(h.conn.tracker.since() - h.latest.Load())
	}
	switch {
	case next > 0:
		h.lookAgainLocked(next)
		return false
	case step == ending:
		return true
	}
	h.sendNow()
	return false
}

func (h *http2Conn) lookAgainLocked(wait time.Duration) {
	if h.wait != nil {
		h.wait.Stop()
	}
	h.wait = time.AfterFunc(wait, h.checkUnused)
}

// sendNow says goodbye now, although the client may have streams open.
func (h *http2Conn) sendNow() {
	if h.step.CompareAndSwap(notAsked, asked) || h.step.CompareAndSwap(whenQuiet, asked) {
		// Writing may take as long as the client does not read.
		call.Go("say goodbye on HTTP/2", func() error { h.tryWriteFirstGoAway(); return nil }, func(error) {})
	}
}

// tryWriteFirstGoAway writes the first GOAWAY when that was asked for. While another call
// writes a frame it does nothing: Write calls it again behind the frame.
func (h *http2Conn) tryWriteFirstGoAway() {
	for h.step.Load() == asked && h.wmu.TryLock() {
		if !h.writeFirstGoAwayAndUnlock() {
			return
		}
	}
}

func (h *http2Conn) writeFirstGoAwayAndUnlock() (done bool) {
	defer h.wmu.Unlock()
	if h.out.mayInsert() {
		return h.writeFirstGoAway() == nil
	}
	return false
}

// writeFirstGoAway writes the first GOAWAY. The caller holds wmu and has asked out.mayInsert.
func (h *http2Conn) writeFirstGoAway() error {
	if h.sentGoAway {
		h.finish() // the implementation was faster, and a later GOAWAY must not name a higher stream
		return nil
	}
	h.step.Store(waiting) // the acknowledgement may come at once
	goodbye, wait := firstGoAway, goAwayWait
	if h.streams.count() > 0 {
		goodbye, wait = firstGoAway+askForAck, ackWait
	}
	if _, err := h.below.Write([]byte(goodbye)); err != nil {
		h.werr = err
		return err
	}
	h.awaitClient(wait)
	return nil
}

// awaitClient gives the client this much time to act on the first GOAWAY.
func (h *http2Conn) awaitClient(wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaitClientLocked(wait)
}

// acknowledged gives a client that has acknowledged the first GOAWAY the time to act on it. The write of
// that GOAWAY may return later, and gives it no other time.
func (h *http2Conn) acknowledged() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaitClientLocked(actTime)
	h.hasAcknowledged = h.hasAcknowledged || h.step.Load() == waiting
}

func (h *http2Conn) awaitClientLocked(wait time.Duration) {
	if !h.closed && !h.hasAcknowledged && h.step.Load() == waiting {
		if h.wait != nil {
			h.wait.Stop()
		}
		h.wait = time.AfterFunc(wait, h.clientHadTime)
	}
}

// Write writes p, and the first GOAWAY when it is asked for and may be inserted.
func (h *http2Conn) Write(p []byte) (int, error) {
	n, err := h.write(p)
	h.tryWriteFirstGoAway() // asked for while this call wrote
	return n, err
}

// write is small: net/http writes each response on a new goroutine, whose stack should not
// have to grow for it.
func (h *http2Conn) write(p []byte) (int, error) {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	if h.step.Load() == notAsked {
		n, err := h.below.Write(p)
		h.followWritten(p[:max(n, 0)])
		return n, err
	}
	return h.writeWithGoodbye(p)
}

// writeWithGoodbye writes p when the goodbye was asked for. The caller holds wmu.
func (h *http2Conn) writeWithGoodbye(p []byte) (done int, err error) {
	for {
		if h.werr != nil {
			return done, h.werr
		}
		part := p[done:]
		switch step := h.step.Load(); {
		case step == asked && h.out.mayInsert():
			if err := h.writeFirstGoAway(); err != nil {
				return done, err
			}
		case step == asked:
			lookAhead := h.out // a copy, which finds the end of the frame
			n, _ := lookAhead.advance(part)
			part = part[:n]
		case step == whenQuiet:
			n, found := h.out.untilQuiet(part, &h.streams)
			part = part[:n]
			if found && !h.sentGoAway && h.step.CompareAndSwap(whenQuiet, waiting) {
				if err := h.writeResponseEndWithGoAway(part); err != nil {
					return done, err
				}
				done += len(part)
				if done == len(p) {
					return done, nil
				}
				continue
			}
		}
		n, err := h.below.Write(part)
		h.followWritten(part[:max(n, 0)])
		done += n
		if err != nil || done == len(p) {
			return done, err
		}
	}
}

// writeResponseEndWithGoAway writes the end of the response that leaves no stream open, and the
// first GOAWAY behind it, in one write: the client reads the GOAWAY before it sends its next request.
func (h *http2Conn) writeResponseEndWithGoAway(part []byte) error {
	_, err := h.below.Write(append(slices.Clip(part), firstGoAway...))
	h.followWritten(part)
	if err != nil {
		h.werr = err
		return err
	}
	h.awaitClient(goAwayWait)
	return nil
}

// followWritten parses the frames in p, which was written.
func (h *http2Conn) followWritten(p []byte) {
	for len(p) > 0 {
		n, whole := h.out.advance(p)
		p = p[n:]
		if !whole {
			continue
		}
		switch {
		case h.out.kind() == frameGoAway:
			h.sentGoAway = true
		case h.out.endsStream():
			h.streamEnded(h.out.stream())
		}
	}
	if h.out.notHTTP2 {
		h.notHTTP2.Store(true)
	}
}

func (h *http2Conn) streamEnded(id uint32) {
	if h.streams.end(id) {
		h.latest.Store(h.conn.tracker.since())
	}
}

// Read reads what the client sent, and the goodbye behind it.
func (h *http2Conn) Read(p []byte) (int, error) {
	h.rmu.Lock()
	defer h.rmu.Unlock()
	for {
		if h.step.Load() == ending && h.in.mayInsert() {
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
			n := h.followRead(p[:copy(p, h.ahead)])
			h.ahead = h.ahead[n:]
			return n, nil
		}
		n, err := h.below.Read(p)
		if n <= 0 && err != nil && h.unwake() {
			continue // clientHadTime ended this read; an error of the connection comes again
		}
		if k := h.followRead(p[:max(n, 0)]); k < n {
			h.ahead = append([]byte(nil), p[k:n]...)
			return k, nil // an error comes again
		}
		return n, err
	}
}

// followRead parses the frames in p, which was read. It stops at the place where the GOAWAY for
// the implementation belongs.
func (h *http2Conn) followRead(p []byte) (n int) {
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
			if h.streams.begin(h.in.stream()) && h.countsRequests {
				h.conn.server.lastArrival.Store(now)
			}
		case frameReset:
			h.streamEnded(h.in.stream())
		case framePing:
			if h.in.flag(flagAck) && string(h.in.data[:]) == goodbyePing {
				h.acknowledged()
			}
		}
		if h.step.Load() == ending && h.in.mayInsert() {
			return n
		}
	}
	if h.in.notHTTP2 {
		h.notHTTP2.Store(true)
	}
	return n
}

// clientHadTime ends the wait for the client. It closes a connection without open streams.
// Otherwise it ends the read in progress, so that the implementation gets its GOAWAY.
func (h *http2Conn) clientHadTime() {
	if h.step.CompareAndSwap(waiting, ending) {
		// Writing may take as long as the client does not read.
		call.Go("end a connection of HTTP/2", func() error {
			if !h.closeWithoutStreams() {
				h.wakeReader()
			}
			return nil
		}, func(error) {})
	}
}

// closeWithoutStreams tells the client which stream was the last one, and closes the
// connection. It does nothing and returns false when a stream is open, or a frame is being
// written.
func (h *http2Conn) closeWithoutStreams() bool {
	h.wmu.Lock()
	last, noneOpen := h.streams.lastAndNoneOpen()
	closes := noneOpen && h.out.mayInsert() && !h.sentGoAway && h.werr == nil
	if closes {
		_, _ = h.below.Write(goAway(last)) // the client may have closed it by now
	}
	h.wmu.Unlock()
	if !closes {
		return false
	}
	if h.plain {
		_ = h.conn.Close()
	} else {
		_ = h.below.Close()
	}
	return true
}

// wakeReader ends the read that is in progress.
func (h *http2Conn) wakeReader() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.woken = true
	h.setDeadlineLocked(time.Unix(1, 0))
	h.limit = goAwayWait
	h.lookAgainLocked(goAwayWait) // the client may leave the frame unfinished
}

// unwake restores the deadline of reads. It returns false when wakeReader has not changed it.
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
	// A foreign listener may have made the connection, without deadlines: the goodbye then
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
	h.finishLocked()
}
