package httpdrain

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// responseWriter is what net/http's ResponseWriters of HTTP/1.x and HTTP/2 can do. The wrapper
// must be able to do as much, since handlers look for it by type assertion.
type responseWriter interface {
	http.ResponseWriter
	http.Flusher
	http.CloseNotifier //nolint:staticcheck // deprecated, and still asserted by old handlers
	io.StringWriter
	FlushError() error
	deadlines
}

// http1Writer is what that of HTTP/1.x can do.
type http1Writer interface {
	responseWriter
	http.Hijacker
	io.ReaderFrom
}

// http2Writer is what that of HTTP/2 can do.
type http2Writer interface {
	responseWriter
	http.Pusher
}

// deadlines is what http.ResponseController looks for.
type deadlines interface {
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	EnableFullDuplex() error
}

// setClose makes the header say once that the connection closes, even when the handler has
// set it otherwise. The value is the header's own: the handler may still change it.
func setClose(header http.Header) {
	for name := range header {
		if len(name) == len("Connection") && strings.EqualFold(name, "Connection") {
			delete(header, name)
		}
	}
	header["Connection"] = []string{"close"}
}

// wrapper looks at the final header of a response just before it is written: its Content-Type may
// say that the request is a stream. When closing, it sets Connection: close in that header, over
// any value of the handler, and never in an informational header.
type wrapper struct {
	responseWriter
	server      *Server
	conn        *conn   // of HTTP/1; nil when it is not known
	stream      *stream // of HTTP/2
	mayBeStream bool    // the answer may be a stream's; conn or stream is known then
	closing     bool    // the response tells its client to go
	final       bool    // the final header is written or the connection is hijacked
}

// http1Wrapper is the wrapper of HTTP/1. It closes the connection of a request that arrived after T0.
type http1Wrapper struct {
	wrapper
	http1 http1Writer
}

// http2Wrapper is the wrapper of HTTP/2. On a connection that does not pass through an http2Conn it
// says goodbye once the window is over: net/http removes the header and sends GOAWAY.
type http2Wrapper struct {
	wrapper
	http.Pusher
}

// Unwrap is for http.ResponseController.
func (w *wrapper) Unwrap() http.ResponseWriter { return w.responseWriter }

func (w *wrapper) beforeHeader() {
	if w.final {
		return
	}
	w.final = true
	header := w.Header()
	if w.mayBeStream && isEndless(header) {
		if w.stream != nil {
			w.server.markStream(w.stream)
		} else {
			w.conn.markStream()
		}
	}
	if w.closing && (w.stream == nil || w.server.windowOver.Load()) {
		setClose(header)
	}
}

func (w *wrapper) WriteHeader(code int) {
	switch {
	case w.stream == nil && code == http.StatusSwitchingProtocols:
		// The final header, and Connection: Upgrade is part of the protocol.
		w.final = true
	case code >= 200:
		w.beforeHeader()
	}
	w.responseWriter.WriteHeader(code)
}

func (w *wrapper) Write(p []byte) (int, error) {
	w.beforeHeader()
	return w.responseWriter.Write(p)
}

func (w *wrapper) WriteString(p string) (int, error) {
	w.beforeHeader()
	return w.responseWriter.WriteString(p)
}

func (w *wrapper) Flush() {
	w.beforeHeader()
	w.responseWriter.Flush()
}

func (w *wrapper) FlushError() error {
	w.beforeHeader()
	return w.responseWriter.FlushError()
}

// ReadFrom writes no header when src has nothing: a handler may still answer with an error.
func (w *http1Wrapper) ReadFrom(src io.Reader) (int64, error) {
	before := w.final
	w.beforeHeader()
	n, err := w.http1.ReadFrom(src)
	if n == 0 {
		w.final = before
	}
	return n, err
}

func (w *http1Wrapper) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, rw, err := w.http1.Hijack()
	if err == nil {
		w.final = true
	}
	return nc, rw, err
}
