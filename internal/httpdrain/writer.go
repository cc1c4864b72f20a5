package httpdrain

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// http1Writer is what net/http's HTTP/1.x ResponseWriter can do. The wrapper
// must be able to do as much, since handlers look for it by type assertion.
type http1Writer interface {
	http.ResponseWriter
	http.Flusher
	http.Hijacker
	http.CloseNotifier //nolint:staticcheck // deprecated, and still asserted by old handlers
	io.ReaderFrom
	io.StringWriter
	FlushError() error
	deadlines
}

// http2Writer is what net/http's HTTP/2 ResponseWriter can do.
type http2Writer interface {
	http.ResponseWriter
	http.Flusher
	http.Pusher
	http.CloseNotifier //nolint:staticcheck // deprecated, and still asserted by old handlers
	io.StringWriter
	FlushError() error
	deadlines
}

// deadlines is what http.ResponseController looks for.
type deadlines interface {
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	EnableFullDuplex() error
}

// setClose makes the header say that the connection closes, once, whatever the handler has
// said. The value is the header's own: the handler may still change it.
func setClose(header http.Header) {
	for name := range header {
		if len(name) == len("Connection") && strings.EqualFold(name, "Connection") {
			delete(header, name)
		}
	}
	header["Connection"] = []string{"close"}
}

// writer1 looks at the final header of a response just before that is written: its
// type may say that the request is a stream. When closing, it puts Connection: close
// there, and never into an informational header. It overrides what the handler has set.
type writer1 struct {
	http1Writer
	watched *conn // the request's connection when the answer may be a stream's, else nil
	closing bool  // the request arrived after T0
	final   bool  // the final header is written or the connection is hijacked
}

// Unwrap is for http.ResponseController.
func (w *writer1) Unwrap() http.ResponseWriter { return w.http1Writer }

func (w *writer1) beforeHeader() {
	if w.final {
		return
	}
	w.final = true
	header := w.http1Writer.Header()
	if w.watched != nil && isEndless(header) {
		w.watched.markStream()
	}
	if w.closing {
		setClose(header)
	}
}

func (w *writer1) WriteHeader(code int) {
	switch {
	case code == http.StatusSwitchingProtocols:
		// The final header, and Connection: Upgrade is part of the protocol.
		w.final = true
	case code >= 200:
		w.beforeHeader()
	}
	w.http1Writer.WriteHeader(code)
}

func (w *writer1) Write(p []byte) (int, error) {
	w.beforeHeader()
	return w.http1Writer.Write(p)
}

func (w *writer1) WriteString(p string) (int, error) {
	w.beforeHeader()
	return w.http1Writer.WriteString(p)
}

func (w *writer1) ReadFrom(src io.Reader) (int64, error) {
	w.beforeHeader()
	return w.http1Writer.ReadFrom(src)
}

func (w *writer1) Flush() {
	w.beforeHeader()
	w.http1Writer.Flush()
}

func (w *writer1) FlushError() error {
	w.beforeHeader()
	return w.http1Writer.FlushError()
}

func (w *writer1) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, rw, err := w.http1Writer.Hijack()
	if err == nil {
		w.final = true
	}
	return nc, rw, err
}

// writer2 does the same on HTTP/2. On a connection that does not pass through an
// http2Conn it says close once the window is over: net/http takes the header out
// again and sends GOAWAY.
type writer2 struct {
	http2Writer
	stream  *stream
	watched bool // the answer may be a stream's
	closing bool
	final   bool
}

// Unwrap is for http.ResponseController.
func (w *writer2) Unwrap() http.ResponseWriter { return w.http2Writer }

func (w *writer2) beforeHeader() {
	if w.final {
		return
	}
	w.final = true
	header := w.http2Writer.Header()
	if w.watched && isEndless(header) {
		w.stream.server.markStream(w.stream)
	}
	if !w.closing {
		return
	}
	if w.stream.server.windowOver.Load() {
		setClose(header)
	}
}

func (w *writer2) WriteHeader(code int) {
	if code >= 200 {
		w.beforeHeader()
	}
	w.http2Writer.WriteHeader(code)
}

func (w *writer2) Write(p []byte) (int, error) {
	w.beforeHeader()
	return w.http2Writer.Write(p)
}

func (w *writer2) WriteString(p string) (int, error) {
	w.beforeHeader()
	return w.http2Writer.WriteString(p)
}

func (w *writer2) Flush() {
	w.beforeHeader()
	w.http2Writer.Flush()
}

func (w *writer2) FlushError() error {
	w.beforeHeader()
	return w.http2Writer.FlushError()
}
