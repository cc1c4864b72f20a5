package httpdrain

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"reflect"
	"slices"
	"time"
)

// resend is how often late connections are looked for.
const resend = 100 * time.Millisecond

// http2Goodbye sends GOAWAY to HTTP/2 connections, idle ones too, while the
// server goes on serving.
//
// net/http sends GOAWAY only from the Shutdown of the http.Server that its
// HTTP/2 implementation is configured on, which for the server itself is far
// too early. So the implementation is configured on a second http.Server, the
// hidden one, which never listens. The serving server hands it each HTTP/2
// connection through TLSNextProto, and Shutdown of the hidden server does
// nothing but send GOAWAY to those connections.
//
// Up to Go 1.26 the configured implementation is the hidden server's own
// TLSNextProto, which takes any http.Server. From Go 1.27 on that map holds
// stubs, and a connection reaches the implementation by the function that
// Serve gives to a listener that has a ServeConnFunc method, the way in which
// golang.org/x/net/http2 asks for it (net/http, Server.Serve).
type http2Goodbye struct {
	hidden *http.Server
	next   map[string]func(*http.Server, *tls.Conn, http.Handler)
}

// unencryptedHTTP2 is net/http's TLSNextProto key for HTTP/2 without TLS.
const unencryptedHTTP2 = "unencrypted_http2"

// wrapHTTP2 returns nil when HTTP/2 is off, or the user's own (TLSNextProto
// set): there only a response says goodbye.
func (s *Server) wrapHTTP2() *http2Goodbye {
	if s.srv.TLSNextProto != nil {
		return nil
	}
	goodbye := newHTTP2Goodbye(s.srv)
	if goodbye != nil {
		s.srv.TLSNextProto = goodbye.next
	}
	return goodbye
}

func newHTTP2Goodbye(srv *http.Server) *http2Goodbye {
	hidden := twin(srv)
	// Serve returns an error: the closed listener's, or why HTTP/2 cannot be
	// configured, which the serving server then reports itself.
	_ = hidden.Serve(closedListener{})
	if hidden.TLSNextProto == nil {
		return nil // HTTP/2 is off
	}
	if registered := new(registration); twinOf(srv, registered) {
		return &http2Goodbye{registered.hidden, registered.nextProto()}
	}
	return &http2Goodbye{hidden, hidden.TLSNextProto}
}

// twin returns an http.Server with srv's exported fields: the HTTP/2
// implementation reads timeouts, limits, hooks and logs from the server that it
// is configured on.
func twin(srv *http.Server) *http.Server {
	hidden := new(http.Server)
	from, to := reflect.ValueOf(srv).Elem(), reflect.ValueOf(hidden).Elem()
	for i := range to.NumField() {
		if to.Field(i).CanSet() { // fields of later releases too
			to.Field(i).Set(from.Field(i))
		}
	}
	hidden.BaseContext = nil // Serve would call it
	if srv.TLSConfig != nil {
		hidden.TLSConfig = srv.TLSConfig.Clone()
		// Serve configures HTTP/2 for a TLSConfig only if that names it.
		if !slices.Contains(hidden.TLSConfig.NextProtos, "h2") {
			hidden.TLSConfig.NextProtos = append(slices.Clone(hidden.TLSConfig.NextProtos), "h2")
		}
	}
	return hidden
}

// twinOf registers r with a twin of srv and reports whether net/http took it,
// as Go 1.27 and later do.
func twinOf(srv *http.Server, r *registration) bool {
	r.hidden = twin(srv)
	r.idle = cmp.Or(srv.IdleTimeout, srv.ReadTimeout) // as net/http does
	return r.hidden.Serve(r) == nil && r.serve != nil
}

// registration is the listener by which net/http of Go 1.27 and later gives its
// HTTP/2 implementation away.
type registration struct {
	closedListener
	hidden *http.Server
	idle   time.Duration
	serve  serveConn
}

// serveConn serves nc until it is closed.
type serveConn = func(ctx context.Context, nc net.Conn, h http.Handler, sawClientPreface bool, upgrade *http.Request, settings []byte)

// HTTP2Config adds nothing to the HTTP2 field of the server.
func (*registration) HTTP2Config() http.HTTP2Config { return http.HTTP2Config{} }

func (r *registration) IdleTimeout() time.Duration { return r.idle }

func (r *registration) ServeConnFunc(serve serveConn) { r.serve = serve }

// nextProto returns what hands connections of a serving server to r.
func (r *registration) nextProto() map[string]func(*http.Server, *tls.Conn, http.Handler) {
	return map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, c *tls.Conn, h http.Handler) {
			r.serve(baseContext(h), c, h, false, nil, nil)
		},
		unencryptedHTTP2: func(_ *http.Server, c *tls.Conn, h http.Handler) {
			// net/http puts the connection into a tls.Conn that does nothing else.
			inner, ok := c.NetConn().(interface{ UnencryptedNetConn() net.Conn })
			if !ok {
				_ = c.Close()
				return
			}
			r.serve(baseContext(h), inner.UnencryptedNetConn(), h, true, nil, nil)
		},
	}
}

// baseContext returns the connection's context, which net/http hands over in
// the handler.
func baseContext(h http.Handler) context.Context {
	if b, ok := h.(interface{ BaseContext() context.Context }); ok {
		return b.BaseContext()
	}
	return context.Background()
}

// send starts GOAWAY on every connection that is open now. Streams in
// progress go on; a connection closes a second after its last one ended.
func (g *http2Goodbye) send() {
	if g != nil {
		// It has neither listeners nor connections of its own to wait for.
		_ = g.hidden.Shutdown(context.Background())
	}
}

// keepSending repeats send until stop is called: a connection whose handshake
// was in progress would otherwise miss the last one, and stay for ever when it
// is idle. stop returns when the goroutine has ended.
func (g *http2Goodbye) keepSending() (stop func()) {
	if g == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(resend)
		defer ticker.Stop()
		for {
			g.send() // however often, a connection gets GOAWAY once
			select {
			case <-ticker.C:
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

type closedListener struct{}

func (closedListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (closedListener) Close() error              { return nil }
func (closedListener) Addr() net.Addr            { return &net.TCPAddr{} }
