package httpdrain

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path"
	"runtime"
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
	server      *Server
	conn        *conn // nil when it is not known
	mayBeStream bool  // the answer may be a stream's; conn is known then
	closing     bool  // the request arrived after T0
	final       bool  // the final header is written or the connection is hijacked
	taken       bool  // the connection is hijacked
}

// Unwrap is for http.ResponseController.
func (w *http1Wrapper) Unwrap() http.ResponseWriter { return w.http1Writer }

func (w *http1Wrapper) beforeHeader() {
	if w.final {
		return
	}
	w.final = true
	header := w.http1Writer.Header()
	if w.mayBeStream && isEndless(header) {
		w.conn.markStream()
	}
	if w.closing {
		setClose(header)
	}
}

func (w *http1Wrapper) WriteHeader(code int) {
	switch {
	case w.final && !w.taken:
		w.server.logSuperfluous()
		return
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

// ReadFrom writes no header when src has nothing: a handler may still answer with an error.
func (w *http1Wrapper) ReadFrom(src io.Reader) (int64, error) {
	before := w.final
	w.beforeHeader()
	n, err := w.http1Writer.ReadFrom(src)
	if n == 0 {
		w.final = before
	}
	return n, err
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
		w.final, w.taken = true, true
	}
	return nc, rw, err
}

// logSuperfluous logs a second WriteHeader as net/http does, which would name the wrapper as
// its caller, and not the handler.
func (s *Server) logSuperfluous() {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	caller, more := frames.Next()
	for more && isBetween(caller.Function) {
		caller, more = frames.Next()
	}
	s.logf("http: superfluous response.WriteHeader call from %s (%s:%d)", caller.Function, path.Base(caller.File), caller.Line)
}

// isBetween reports whether a function lies between a handler and net/http's writer.
func isBetween(function string) bool {
	return strings.HasPrefix(function, "net/http.") ||
		strings.Contains(function, "/httpdrain.(*http1Wrapper).") ||
		strings.HasSuffix(function, "/httpdrain.(*Server).logSuperfluous")
}

// http2Wrapper does the same on HTTP/2. On a connection that does not pass through an
// http2Conn it sets Connection: close once the window is over: net/http removes that header
// and sends GOAWAY.
type http2Wrapper struct {
	http2Writer
	stream      *stream
	mayBeStream bool // the answer may be a stream's
	closing     bool
	final       bool
}

// Unwrap is for http.ResponseController.
func (w *http2Wrapper) Unwrap() http.ResponseWriter { return w.http2Writer }

func (w *http2Wrapper) beforeHeader() {
	if w.final {
		return
	}
	w.final = true
	header := w.http2Writer.Header()
	if w.mayBeStream && isEndless(header) {
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
