package httpdrain

import (
	"bufio"
	"io"
	"net"
	"net/http"
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
}

// http2Writer is what net/http's HTTP/2 ResponseWriter can do.
type http2Writer interface {
	http.ResponseWriter
	http.Flusher
	http.Pusher
	http.CloseNotifier //nolint:staticcheck // deprecated, and still asserted by old handlers
	io.StringWriter
	FlushError() error
}

var closeValue = []string{"close"}

// closeWriter1 puts Connection: close into the final header when that is written,
// and never into an informational one. It overrides what the handler has set.
type closeWriter1 struct {
	http1Writer
	final bool // the final header is written or the connection is hijacked
}

// Unwrap is for http.ResponseController.
func (w *closeWriter1) Unwrap() http.ResponseWriter { return w.http1Writer }

func (w *closeWriter1) sayClose() {
	if !w.final {
		w.final = true
		w.http1Writer.Header()["Connection"] = closeValue
	}
}

func (w *closeWriter1) WriteHeader(code int) {
	switch {
	case code == http.StatusSwitchingProtocols:
		// The final header, and Connection: Upgrade is part of the protocol.
		w.final = true
	case code >= 200:
		w.sayClose()
	}
	w.http1Writer.WriteHeader(code)
}

func (w *closeWriter1) Write(p []byte) (int, error) {
	w.sayClose()
	return w.http1Writer.Write(p)
}

func (w *closeWriter1) WriteString(p string) (int, error) {
	w.sayClose()
	return w.http1Writer.WriteString(p)
}

func (w *closeWriter1) ReadFrom(src io.Reader) (int64, error) {
	w.sayClose()
	return w.http1Writer.ReadFrom(src)
}

func (w *closeWriter1) Flush() {
	w.sayClose()
	w.http1Writer.Flush()
}

func (w *closeWriter1) FlushError() error {
	w.sayClose()
	return w.http1Writer.FlushError()
}

func (w *closeWriter1) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, rw, err := w.http1Writer.Hijack()
	if err == nil {
		w.final = true
	}
	return nc, rw, err
}

// closeWriter2 does the same on HTTP/2 that does not pass through an http2Conn, once
// clients there are told: net/http takes the header out again and sends GOAWAY on the
// connection.
type closeWriter2 struct {
	http2Writer
	server *Server
	final  bool
}

// Unwrap is for http.ResponseController.
func (w *closeWriter2) Unwrap() http.ResponseWriter { return w.http2Writer }

func (w *closeWriter2) sayClose() {
	if w.final {
		return
	}
	w.final = true
	select {
	case <-w.server.goodbye:
		w.http2Writer.Header()["Connection"] = closeValue
	default:
	}
}

func (w *closeWriter2) WriteHeader(code int) {
	if code >= 200 {
		w.sayClose()
	}
	w.http2Writer.WriteHeader(code)
}

func (w *closeWriter2) Write(p []byte) (int, error) {
	w.sayClose()
	return w.http2Writer.Write(p)
}

func (w *closeWriter2) WriteString(p string) (int, error) {
	w.sayClose()
	return w.http2Writer.WriteString(p)
}

func (w *closeWriter2) Flush() {
	w.sayClose()
	w.http2Writer.Flush()
}

func (w *closeWriter2) FlushError() error {
	w.sayClose()
	return w.http2Writer.FlushError()
}
