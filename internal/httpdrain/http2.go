package httpdrain

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"time"
)

// net/http's keys of TLSNextProto. The second one is for HTTP/2 without TLS.
const (
	nextHTTP2            = "h2"
	nextUnencryptedHTTP2 = "unencrypted_http2"
)

// prefaceWait is how long a client has to send its preface, as in net/http.
const prefaceWait = 10 * time.Second

// nextProto is the type of the functions in TLSNextProto.
type nextProto = func(*http.Server, *tls.Conn, http.Handler)

// serveHTTP2 serves HTTP/2 on nc until it is closed. The client's preface is still
// to be read.
type serveHTTP2 func(srv *http.Server, nc net.Conn, h http.Handler)

// wrapHTTP2 puts an [http2Conn] between the connection and the HTTP/2 implementation. It turns
// off the implementation's IdleTimeout, whose GOAWAY drops streams; the http2Conn has its own timer.
//
// Without TLS the connection that net/http accepts finds out by itself that it
// carries HTTP/2. With TLS the http2Conn lies above TLS, which TLSNextProto allows
// for. An implementation takes any connection, not only a tls.Conn, in one of two
// ways.
//
// Up to Go 1.26, and for golang.org/x/net/http2, a second function in TLSNextProto
// is for HTTP/2 without TLS. It finds the connection inside a tls.Conn that does
// nothing else, asks it for its ConnectionState, and expects that the preface has
// been read. net/http's is taken from a second http.Server, a copy, which
// never listens.
//
// From Go 1.27 on net/http gives its implementation to a listener that has a
// ServeConnFunc method, the way in which golang.org/x/net/http2 asks for it
// (net/http, Server.Serve).
func (s *Server) wrapHTTP2() {
	if s.srv.TLSNextProto != nil {
		s.wrapForeign()
		return
	}
	copied := unservedCopy(s.srv)
	// Serve returns an error: the closed listener's, or why HTTP/2 cannot be
	// configured, which the serving server then reports itself.
	_ = copied.Serve(closedListener{})
	if copied.TLSNextProto == nil {
		return // HTTP/2 is off
	}
	s.idle = cmp.Or(s.srv.IdleTimeout, s.srv.ReadTimeout) // as net/http does
	if r := (&registration{copied: unservedCopy(s.srv)}); r.accepted() {
		s.srv.TLSNextProto = map[string]nextProto{
			nextHTTP2:            s.overTLS(r.overTLS),
			nextUnencryptedHTTP2: r.unencrypted,
		}
		return
	}
	plain := copied.TLSNextProto[nextUnencryptedHTTP2]
	s.srv.TLSNextProto = map[string]nextProto{
		nextHTTP2:            s.overTLS(asUnencrypted(plain)),
		nextUnencryptedHTTP2: plain,
	}
}

// overTLS returns what serves HTTP/2 on a TLS connection.
func (s *Server) overTLS(serve serveHTTP2) nextProto {
	return func(srv *http.Server, tc *tls.Conn, h http.Handler) {
		c := trackedConn(tc)
		if c == nil {
			serve(srv, tc, h) // it has not come through our listener
			return
		}
		hc := newHTTP2Conn(c, tc)
		hc.limit = s.idle
		hc.in.before = clientPreface
		c.speaks(hc)
		serve(srv, &tlsHTTP2{tc, hc}, h)
	}
}

// asUnencrypted serves by a function for HTTP/2 without TLS.
func asUnencrypted(next nextProto) serveHTTP2 {
	return func(srv *http.Server, nc net.Conn, h http.Handler) {
		if !readPreface(nc) {
			_ = nc.Close()
			return
		}
		next(srv, tls.Client(unencryptedConn{nc}, nil), h)
	}
}

// unencryptedConn is a copy of net/http's unencryptedNetConnInTLSConn.
type unencryptedConn struct{ net.Conn }

func (c unencryptedConn) UnencryptedNetConn() net.Conn { return c.Conn }

// readPreface reports whether the client has sent its preface in time.
func readPreface(nc net.Conn) bool {
	if nc.SetReadDeadline(time.Now().Add(prefaceWait)) != nil {
		return false
	}
	var preface [len(clientPreface)]byte
	_, err := io.ReadFull(nc, preface[:])
	return err == nil && string(preface[:]) == clientPreface && nc.SetReadDeadline(time.Time{}) == nil
}

// unservedCopy returns an http.Server with srv's exported fields: the HTTP/2
// implementation reads timeouts, limits, hooks and logs from the server that it
// is configured on.
func unservedCopy(srv *http.Server) *http.Server {
	copied := new(http.Server)
	from, to := reflect.ValueOf(srv).Elem(), reflect.ValueOf(copied).Elem()
	for i := range to.NumField() {
		if to.Field(i).CanSet() { // fields of later releases too
			to.Field(i).Set(from.Field(i))
		}
	}
	copied.IdleTimeout = -1  // the http2Conn has its own
	copied.BaseContext = nil // Serve would call it
	if srv.TLSConfig != nil {
		copied.TLSConfig = srv.TLSConfig.Clone()
		// Serve configures HTTP/2 for a TLSConfig only if that names it.
		if !slices.Contains(copied.TLSConfig.NextProtos, nextHTTP2) {
			copied.TLSConfig.NextProtos = append(slices.Clone(copied.TLSConfig.NextProtos), nextHTTP2)
		}
	}
	return copied
}

// registration is the listener by which net/http of Go 1.27 and later gives its
// HTTP/2 implementation away.
type registration struct {
	closedListener
	copied *http.Server
	serve  func(ctx context.Context, nc net.Conn, h http.Handler, sawClientPreface bool, upgrade *http.Request, settings []byte)
}

// accepted reports whether net/http has given its implementation.
func (r *registration) accepted() bool { return r.copied.Serve(r) == nil && r.serve != nil }

// HTTP2Config adds nothing to the HTTP2 field of the server.
func (*registration) HTTP2Config() http.HTTP2Config { return http.HTTP2Config{} }

// IdleTimeout turns the implementation's off: the http2Conn has its own.
func (*registration) IdleTimeout() time.Duration { return -1 }

func (r *registration) ServeConnFunc(serve func(context.Context, net.Conn, http.Handler, bool, *http.Request, []byte)) {
	r.serve = serve
}

func (r *registration) overTLS(_ *http.Server, nc net.Conn, h http.Handler) {
	r.serve(baseContext(h), nc, h, false, nil, nil)
}

func (r *registration) unencrypted(_ *http.Server, inner *tls.Conn, h http.Handler) {
	// net/http has put the connection into a tls.Conn that does nothing else.
	in, ok := inner.NetConn().(interface{ UnencryptedNetConn() net.Conn })
	if !ok {
		_ = inner.Close()
		return
	}
	r.serve(baseContext(h), in.UnencryptedNetConn(), h, true, nil, nil)
}

// baseContext returns the connection's context, which net/http hands over in
// the handler.
func baseContext(h http.Handler) context.Context {
	if b, ok := h.(interface{ BaseContext() context.Context }); ok {
		return b.BaseContext()
	}
	return context.Background()
}

type closedListener struct{}

func (closedListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (closedListener) Close() error              { return nil }
func (closedListener) Addr() net.Addr            { return &net.TCPAddr{} }
