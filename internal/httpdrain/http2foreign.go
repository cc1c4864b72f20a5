package httpdrain

import (
	"cmp"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"
)

// foreignIdle is how long before the IdleTimeout of golang.org/x/net/http2 a
// connection gets our GOAWAY.
const foreignIdle = 5 * time.Second

// wrapForeign wraps an implementation of HTTP/2 that the server has already:
// golang.org/x/net/http2, of which there are two kinds, or net/http's own. It does not
// wrap a function that the user wrote: with TLS only a response says goodbye there, and
// it does that in one step.
func (s *Server) wrapForeign() {
	next := s.srv.TLSNextProto
	h2, plain := next[nextHTTP2], next[nextUnencryptedHTTP2]
	// The implementation has read the IdleTimeout by now, and sends the GOAWAY of its
	// own in one step. Ours comes earlier.
	s.idle = cmp.Or(s.srv.IdleTimeout, s.srv.ReadTimeout)
	s.idle -= min(s.idle/2, foreignIdle)
	switch {
	case isHTTP2Package(h2) && isHTTP2Package(plain):
		s.srv.TLSNextProto = maps.Clone(next)
		s.srv.TLSNextProto[nextHTTP2] = s.overTLS(asUnencrypted(plain))
	case isHTTP2Package(h2) && len(next) == 1:
		// From Go 1.27 on x/net has net/http serve, which does not call this
		// function: it takes connections of any type.
		s.registered = true
	default:
		s.oneStep = true
	}
}

// isHTTP2Package reports whether fn is of net/http or golang.org/x/net/http2, which
// may be vendored.
func isHTTP2Package(fn nextProto) bool {
	if fn == nil {
		return false
	}
	name := runtime.FuncForPC(reflect.ValueOf(fn).Pointer()).Name()
	return strings.HasPrefix(name, "net/http.") || strings.Contains(name, "golang.org/x/net/http2.")
}

// serveTLS is the http.Server's ServeTLS, with an http2Conn above TLS where that is
// needed.
func (s *Server) serveTLS(ln net.Listener) error {
	p := s.srv.Protocols
	if !s.registered || p != nil && !p.HTTP2() {
		return s.srv.ServeTLS(ln, "", "")
	}
	config := s.srv.TLSConfig.Clone()
	if p != nil && !p.HTTP1() {
		config.NextProtos = slices.DeleteFunc(config.NextProtos, func(name string) bool { return name == "http/1.1" })
	}
	return s.srv.Serve(tlsListener{tls.NewListener(ln, config)})
}

// tlsListener hands out TLS connections as tlsHTTP2, before their handshake.
type tlsListener struct{ net.Listener }

func (l tlsListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tlsHTTP2{Conn: nc.(*tls.Conn)}, nil //nolint:errcheck // tls.NewListener promises it
}

// HandshakeContext runs the handshake, and finds out whether the connection carries
// HTTP/2. net/http calls it before it reads.
func (c *tlsHTTP2) HandshakeContext(ctx context.Context) error {
	if err := c.Conn.HandshakeContext(ctx); err != nil {
		return err
	}
	below := trackedConn(c.Conn)
	if c.ConnectionState().NegotiatedProtocol != nextHTTP2 || below == nil || c.http2 != nil {
		return nil
	}
	c.http2 = newHTTP2Conn(below, c.Conn)
	c.http2.in.before = clientPreface
	c.http2.limit = below.server.idle
	below.speaks(c.http2)
	return nil
}
