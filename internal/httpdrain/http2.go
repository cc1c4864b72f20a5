package httpdrain

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"
)

// resend is how often late connections are looked for.
const resend = 100 * time.Millisecond

// http2Goodbye sends GOAWAY to HTTP/2 connections, idle ones too, while the
// server goes on serving.
//
// net/http has one way to say it: the Shutdown of the http.Server that the
// HTTP/2 implementation was configured on, which for the server itself is far
// too early. So the implementation is configured on a second http.Server that
// never listens, by a Serve call on a closed listener, and its TLSNextProto
// functions, which take the serving http.Server as an argument, are given to
// the real one. Shutdown of the second then does nothing but send GOAWAY to
// the connections. All of it is public API of net/http.
type http2Goodbye struct{ hidden *http.Server }

// wrapHTTP2 returns nil when HTTP/2 is off, or the user's own (TLSNextProto
// set): there only a response says goodbye.
func (s *Server) wrapHTTP2() *http2Goodbye {
	if s.srv.TLSNextProto != nil {
		return nil
	}
	goodbye := newHTTP2Goodbye(s.srv)
	if goodbye != nil {
		s.srv.TLSNextProto = goodbye.hidden.TLSNextProto
	}
	return goodbye
}

func newHTTP2Goodbye(srv *http.Server) *http2Goodbye {
	hidden := &http.Server{
		// What the implementation reads from the server it is configured on;
		// the rest it reads from the one that serves.
		IdleTimeout: srv.IdleTimeout,
		ReadTimeout: srv.ReadTimeout,
		Protocols:   srv.Protocols,
		HTTP2:       srv.HTTP2,
	}
	if srv.TLSConfig != nil {
		hidden.TLSConfig = srv.TLSConfig.Clone()
		// Serve configures HTTP/2 for a TLSConfig only if that names it.
		if !slices.Contains(hidden.TLSConfig.NextProtos, "h2") {
			hidden.TLSConfig.NextProtos = append(slices.Clone(hidden.TLSConfig.NextProtos), "h2")
		}
	}
	// Always an error: the closed listener's, or why HTTP/2 cannot be
	// configured, which the real server then reports itself.
	_ = hidden.Serve(closedListener{})
	if hidden.TLSNextProto == nil {
		return nil
	}
	return &http2Goodbye{hidden}
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
			g.send() // once a connection, whatever the number of calls
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
