package httpdrain

import (
	"context"
	"net/http"
	"strings"
)

// A stream is a request that would go on for ever. EndWindow cancels its context. After
// EndWindow the context of a request is cancelled as soon as it becomes a stream. A request is
// a stream
//
//   - when its handler says so: [Stream];
//   - when its Accept is text/event-stream and nothing else, from its arrival on;
//   - when it is a GET and its answer is of one of the endless types, from the final
//     header on.
//
// A handler that flushes its answer need not be a stream: a proxy flushes downloads.

// endlessTypes are the media types whose answers do not end by themselves. Their clients lose
// only time when an answer ends: EventSource connects again (WHATWG HTML, 9.2), and each part
// of multipart/x-mixed-replace replaces the part before.
//
// The list leaves out application/x-ndjson and similar types: exports have that type too,
// and a part of an export is useless. It leaves out application/grpc, because unary calls
// have that type too.
var endlessTypes = [...]string{"text/event-stream", "multipart/x-mixed-replace"}

// mayStream reports whether the type of the answer may say that r is a stream. That is so
// for a GET alone: an event stream that answers a POST reports the progress of one piece of
// work, such as a language model's answer. It ends, and no client can ask for the rest. A
// request with a body keeps net/http's writer for one more reason: http.MaxBytesReader has
// to find it.
func mayStream(r *http.Request) bool {
	return r.Method == http.MethodGet && r.ContentLength == 0
}

// isEndless reports whether an answer with this header is a stream.
func isEndless(header http.Header) bool {
	values := header["Content-Type"]
	if len(values) == 0 {
		return false
	}
	for _, endless := range endlessTypes {
		n, given := len(endless), values[0]
		if len(given) < n || !strings.EqualFold(given[:n], endless) {
			continue
		}
		if len(given) == n || strings.IndexByte("; \t", given[n]) >= 0 { // parameters may follow
			return true
		}
	}
	return false
}

// requestBits says what kind of request this is. A request is a stream from its arrival only
// when it may be one and its Accept is text/event-stream alone: clients that accept JSON as
// well send ordinary requests.
func requestBits(r *http.Request) uint32 {
	bits := uint32(requestActive)
	if accept := r.Header["Accept"]; mayStream(r) && len(accept) == 1 && accept[0] == "text/event-stream" {
		bits |= requestStream
	}
	if upgrade := r.Header["Upgrade"]; len(upgrade) > 0 || r.Method == http.MethodConnect {
		bits |= requestUpgrade
		if len(upgrade) == 1 && strings.EqualFold(upgrade[0], "h2c") && len(r.Header["Http2-Settings"]) == 1 {
			bits |= requestHTTP2
		}
	}
	return bits
}

// Draining returns the channel that closes when the request of ctx should say goodbye.
// It changes nothing. It reports false when ctx is not of a request that a Server
// serves. Every call about one request returns the same channel. Draining may be called
// from any goroutine, also after the connection was hijacked.
//
// The channels close one after the other, from GoAwayAfter after T0 on, so that clients do
// not all come back at once. For a request that arrives later it closes at the end of the
// window, and after the window when the listener closes.
func Draining(ctx context.Context) (<-chan struct{}, bool) {
	switch v := ctx.Value(key{}).(type) {
	case *stream:
		return v.server.drainingStream(v), true
	case *conn:
		return v.server.drainingConn(v), true
	case func() <-chan struct{}:
		return v(), true
	}
	return nil, false
}

// WithGoodbye returns a context for which Draining returns what goodbye does, unless it
// is of a request that a Server serves.
func WithGoodbye(ctx context.Context, goodbye func() <-chan struct{}) context.Context {
	if ctx.Value(key{}) != nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, goodbye)
}

func (s *Server) drainingConn(c *conn) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.mark(requestAsked)
	return s.channelLocked(c.noticeLocked())
}

func (s *Server) drainingStream(st *stream) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listLocked(st)
	return s.channelLocked(&st.notice)
}

// Goodbye returns the channel that closes GoAwayAfter after T0.
func (s *Server) Goodbye() <-chan struct{} { return s.goodbye }

// Stream makes the request of ctx a stream and returns what [Draining] does. It does
// nothing more when the connection is hijacked, and when the request is over.
func Stream(ctx context.Context) (<-chan struct{}, bool) {
	if ctx.Err() == nil { // else the connection may be serving its next request
		switch v := ctx.Value(key{}).(type) {
		case *stream:
			v.server.markStream(v)
		case *conn:
			v.markStream()
		}
	}
	return Draining(ctx)
}

// mark sets a bit of the HTTP/1 request in progress. It reports false when there is none, or
// when the bit is set already.
func (c *conn) mark(bit uint32) bool {
	for {
		bits := c.request.Load()
		if bits&requestActive == 0 || bits&bit != 0 {
			return false
		}
		if c.request.CompareAndSwap(bits, bits|bit) {
			return true
		}
	}
}

// markStream makes the HTTP/1 request in progress a stream.
func (c *conn) markStream() {
	if !c.mark(requestStream) {
		return
	}
	// After the mark, because EndWindow runs concurrently: either it sees the mark, or
	// this sees that the window is over.
	if c.server.windowOver.Load() {
		c.cutStream()
	}
}

// cutStream cancels the context of the HTTP/1 request in progress if that is
// a stream.
func (c *conn) cutStream() {
	for {
		bits := c.request.Load()
		if bits&requestStream == 0 || bits&requestCut != 0 {
			return
		}
		if c.request.CompareAndSwap(bits, bits|requestCut) {
			c.server.giveConn(c)
			c.cancelContext(ErrWindowOver)
			return
		}
	}
}

// stream is the context of one HTTP/2 request, and its writer. The server can cancel it; so can
// net/http, whose context is its parent.
type stream struct {
	context.Context
	cancel context.CancelCauseFunc
	server *Server
	writer http2Wrapper

	// Guarded by server.mu.
	notice  notice
	ended   bool // its handler has returned
	endless bool // EndWindow cancels it
}

func (st *stream) Value(k any) any {
	if k == (key{}) {
		return st
	}
	return st.Context.Value(k)
}

// markStream makes the request of st a stream.
func (s *Server) markStream(st *stream) {
	if !s.addStream(st) {
		s.give(&st.notice)
		st.cancel(ErrWindowOver)
	}
}

// addStream makes EndWindow cancel st. It reports false when the window is over already.
func (s *Server) addStream(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.windowOver.Load() {
		return false
	}
	st.endless = true
	s.listLocked(st)
	return true
}

// listLocked puts st into the list of the streams that the server has to tell or to cut.
func (s *Server) listLocked(st *stream) {
	if !st.ended {
		s.streams[st] = struct{}{}
	}
}

func (s *Server) endStream(st *stream) {
	st.cancel(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.ended = true
	delete(s.streams, st)
}
