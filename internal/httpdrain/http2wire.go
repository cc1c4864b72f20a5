package httpdrain

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// tlsHTTP2 is a TLS connection whose bytes pass through an http2Conn, if it carries
// HTTP/2. net/http and the HTTP/2 implementation ask it for its ConnectionState.
type tlsHTTP2 struct {
	*tls.Conn
	http2 *http2Conn // nil without HTTP/2; set before the first Read and Write
}

func (c *tlsHTTP2) Read(p []byte) (int, error) {
	if c.http2 == nil {
		return c.Conn.Read(p)
	}
	return c.http2.Read(p)
}

func (c *tlsHTTP2) Write(p []byte) (int, error) {
	if c.http2 == nil {
		return c.Conn.Write(p)
	}
	return c.http2.Write(p)
}

// SetReadDeadline sets the deadline of reads.
func (c *tlsHTTP2) SetReadDeadline(t time.Time) error {
	if c.http2 == nil {
		return c.Conn.SetReadDeadline(t)
	}
	return c.http2.SetReadDeadline(t)
}

// SetDeadline sets the deadlines of reads and writes.
func (c *tlsHTTP2) SetDeadline(t time.Time) error {
	if c.http2 == nil {
		return c.Conn.SetDeadline(t)
	}
	return c.http2.SetDeadline(t)
}

// asAccepted returns the connection that a program without this package would see in place
// of nc: the one that its listener has accepted, or net/http's tls.Conn. A tls.Conn wraps
// a connection of this package, whose NetConn is the accepted one.
func asAccepted(nc net.Conn) net.Conn {
	switch c := nc.(type) {
	case *conn:
		return c.Conn
	case *tlsHTTP2:
		return c.Conn
	}
	return nc
}

// speaks notes that c carries HTTP/2.
func (c *conn) speaks(h *http2Conn) {
	c.http2.Store(h)
	h.checkUnused()
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		h.stop()
	} else if c.server.windowOver.Load() {
		h.endWhenUnused(goAwayWait) // EndWindow has come before, or just now
	}
}

// passThrough returns the http2Conn that the calls of c pass through. It is nil with TLS,
// where the http2Conn wraps the tls.Conn and not c.
func (c *conn) passThrough() *http2Conn {
	if h := c.http2.Load(); h != nil && h.plain {
		return h
	}
	return nil
}

// noPreface says that a connection does not begin as HTTP/2.
const noPreface = -1

// lookForPreface follows the first bytes of a connection. HTTP/2 without TLS begins with a
// preface that no other protocol sends (RFC 9113, section 3.4).
func (c *conn) lookForPreface(p []byte) {
	seen := c.preface.Load()
	if seen == noPreface || c.server == nil {
		return
	}
	rest := clientPreface[seen:]
	n := min(len(p), len(rest))
	if string(p[:n]) != rest[:n] {
		c.preface.Store(noPreface)
		return
	}
	if n < len(rest) {
		c.preface.Add(int32(n)) //nolint:gosec // at most 24
		return
	}
	c.preface.Store(noPreface)
	h := newHTTP2Conn(c, c.Conn)
	h.plain = true
	if c.server.servesUnencrypted() {
		h.limit = c.server.idle
	} else {
		h.count() // a handler will hijack the connection
	}
	h.followRead(p[n:])
	c.speaks(h)
}

// upgraded records that a handler that was asked for HTTP/2 (RFC 7540, section 3.2) is
// about to hijack the connection. Unless it answers that it switches to HTTP/2, the
// connection does not count as one.
func (c *conn) upgraded() {
	h := newHTTP2Conn(c, c.Conn)
	h.plain = true
	h.out.inUpgradeAnswer = true
	h.in.before = clientPreface
	h.count()
	h.streams.begin(1) // the request that asked
	c.speaks(h)
}

// count makes h count the requests, because handlers are not called through the
// Server.
func (h *http2Conn) count() { h.countsRequests = true }

// http2Of returns what the request of ctx passes through, if it came as HTTP/2.
func http2Of(ctx context.Context) *http2Conn {
	if c, ok := ctx.Value(key{}).(*conn); ok {
		return c.http2.Load()
	}
	return nil
}

// servesNoRequests reports whether a handler owns the connection and it carries something
// other than requests, such as a websocket.
func (c *conn) servesNoRequests() bool {
	if !c.hijacked.Load() {
		return false
	}
	h := c.http2.Load()
	return h == nil || h.notHTTP2.Load()
}

// Write writes p.
func (c *conn) Write(p []byte) (n int, err error) {
	if h := c.passThrough(); h != nil {
		n, err = h.Write(p)
	} else {
		n, err = c.Conn.Write(p)
	}
	c.sign()
	return n, err
}

// SetReadDeadline sets the deadline of reads.
func (c *conn) SetReadDeadline(t time.Time) error {
	if h := c.passThrough(); h != nil {
		return h.SetReadDeadline(t)
	}
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline sets the deadlines of reads and writes.
func (c *conn) SetDeadline(t time.Time) error {
	if h := c.passThrough(); h != nil {
		return h.SetDeadline(t)
	}
	return c.Conn.SetDeadline(t)
}

// servesUnencrypted reports whether net/http serves HTTP/2 without TLS itself.
func (s *Server) servesUnencrypted() bool {
	_, has := s.srv.TLSNextProto[nextUnencryptedHTTP2]
	return (has || s.registered) && s.srv.Protocols != nil && s.srv.Protocols.UnencryptedHTTP2()
}

// isPreface reports whether net/http took the preface of HTTP/2 for a request of
// HTTP/1, as it does when it does not serve HTTP/2 without TLS.
func isPreface(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != "PRI" {
		return false
	}
	_, http1 := w.(http1Writer)
	return http1
}

// countedBelow returns how many requests are in flight on connections that a
// handler serves as HTTP/2.
func (s *Server) countedBelow() (n int) {
	for _, c := range s.tracker.open() {
		if h := c.http2.Load(); h != nil && h.countsRequests && c.hijacked.Load() {
			n += h.streams.count()
		}
	}
	return n
}

// sayGoodbyeHTTP2 begins the goodbye on every connection that carries HTTP/2 now, at the end
// of the window: while a balancer still sends clients here, a goodbye would only bring them
// back, and there are clients that lose requests with each goodbye. A connection that comes
// later still is told when it is unused.
func (s *Server) sayGoodbyeHTTP2() {
	for _, h := range s.openHTTP2() {
		h.beginGoodbye()
	}
}

// insistHTTP2 says goodbye at once on connections that have had no quiet moment since the
// goodbye began, and begins it on connections that came later.
func (s *Server) insistHTTP2() {
	for _, h := range s.openHTTP2() {
		if h.step.Load() == whenQuiet {
			h.sendNow()
		} else {
			h.beginGoodbye()
		}
	}
}

// openHTTP2 returns the open connections that carry HTTP/2.
func (s *Server) openHTTP2() (open []*http2Conn) {
	for _, c := range s.tracker.open() {
		if h := c.http2.Load(); h != nil {
			open = append(open, h)
		}
	}
	return open
}

// awaitGoodbyes waits until every client on HTTP/2 has been told in both steps, or until
// ctx is done: after net/http's Shutdown a response would say goodbye in one step. A client that
// cannot be told within goodbyesWithin keeps its connection until its open requests end.
func (s *Server) awaitGoodbyes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goodbyesWithin)
	defer cancel()
	open := s.openHTTP2()
	for _, h := range open {
		h.sendNow()
	}
	for _, h := range open {
		select {
		case <-h.ended:
		case <-ctx.Done():
			h.clientHadTime()
		}
	}
}
