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

// http1Wrapper looks at the final header of a response just before it is written: its
// Content-Type may say that the request is a stream. When closing, it sets Connection: close
// in that header, over any value of the handler, and never in an informational header.
type http1Wrapper struct {
	http1Writer
	watched *conn // the request's connection when the answer may be a stream's, else nil
	closing bool  // the request arrived after T0
	final   bool  // the final header is written or the connection is hijacked
}

// Unwrap is for http.ResponseController.
func (w *http1Wrapper) Unwrap() http.ResponseWriter { return w.http1Writer }

func (w *http1Wrapper) beforeHeader() {
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

func (w *http1Wrapper) WriteHeader(code int) {
	switch {
	case code == http.StatusSwitchingProtocols:
		// The final header, and Connection: Upgrade is part of the protocol.
		w.final = true
	case code >= 200:
		w.beforeHeader()
	}
	w.http1Writer.WriteHeader(code)
}

func (w *http1Wrapper) Write(p []byte) (int, error) {
	w.beforeHeader()
	return w.http1Writer.Write(p)
}

func (w *http1Wrapper) WriteString(p string) (int, error) {
	w.beforeHeader()
	return w.http1Writer.WriteString(p)
}

func (w *http1Wrapper) ReadFrom(src io.Reader) (int64, error) {
	w.beforeHeader()
	return w.http1Writer.ReadFrom(src)
}

func (w *http1Wrapper) Flush() {
	w.beforeHeader()
	w.http1Writer.Flush()
}

func (w *http1Wrapper) FlushError() error {
	w.beforeHeader()
	return w.http1Writer.FlushError()
}

func (w *http1Wrapper) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, rw, err := w.http1Writer.Hijack()
	if err == nil {
		w.final = true
	}
	return nc, rw, err
}

// http2Wrapper does the same on HTTP/2. On a connection that does not pass through an
// http2Conn it sets Connection: close once the window is over: net/http removes that header
// and sends GOAWAY.
type http2Wrapper struct {
	http2Writer
	stream  *stream
	watched bool // the answer may be a stream's
	closing bool
	final   bool
}

// Unwrap is for http.ResponseController.
func (w *http2Wrapper) Unwrap() http.ResponseWriter { return w.http2Writer }

func (w *http2Wrapper) beforeHeader() {
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

func (w *http2Wrapper) WriteHeader(code int) {
	if code >= 200 {
		w.beforeHeader()
	}
	w.http2Writer.WriteHeader(code)
}

func (w *http2Wrapper) Write(p []byte) (int, error) {
	w.beforeHeader()
	return w.http2Writer.Write(p)
}

func (w *http2Wrapper) WriteString(p string) (int, error) {
	w.beforeHeader()
	return w.http2Writer.WriteString(p)
}

func (w *http2Wrapper) Flush() {
	w.beforeHeader()
	w.http2Writer.Flush()
}

func (w *http2Wrapper) FlushError() error {
	w.beforeHeader()
	return w.http2Writer.FlushError()
}
