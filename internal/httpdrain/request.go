package httpdrain

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
)

// handler counts requests and lets responses say goodbye.
type handler struct{ *Server }

func (s handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.lastArrival.Store(s.tracker.since())
	next := s.next
	if s.optionsStar && r.RequestURI == "*" && r.Method == http.MethodOptions {
		next = http.HandlerFunc(optionsStar)
	}
	if r.ProtoMajor >= 2 && !isPreface(w, r) {
		s.serveStream(next, w, r)
		return
	}
	c, _ := r.Context().Value(key{}).(*conn)
	if c == nil {
		// The user's ConnContext dropped our value, or the call did not come
		// through our listener.
		s.inFlight.Add(1)
		defer s.inFlight.Add(-1)
		s.serve1(next, w, r)
		return
	}
	s.inFlight.Add(1)
	c.request.Store(requestBits(r))
	defer s.endRequest(c)
	if c.spent {
		ctx, stop := s.detach(r.Context())
		defer stop()
		old := r
		r = r.WithContext(ctx)
		defer keepForm(old, r)
	}
	if s.windowOver.Load() {
		c.cutStream() // EndWindow came before this event stream and has not cut it
	}
	s.serve1(next, w, r)
}

func (s handler) serve1(next http.Handler, w http.ResponseWriter, r *http.Request) {
	if !s.draining.Load() {
		next.ServeHTTP(w, r)
		return
	}
	full, ok := w.(http1Writer)
	if !ok {
		next.ServeHTTP(w, r)
		return
	}
	cw := &closeWriter1{http1Writer: full}
	next.ServeHTTP(cw, r)
	cw.sayClose() // a handler that wrote nothing; not reached by a panic, which aborts the response
}

func (s handler) endRequest(c *conn) {
	bits := c.request.Swap(0)
	if bits&requestActive != 0 { // else it was hijacked
		s.inFlight.Add(-1)
	}
	if bits&requestCut != 0 {
		c.spent = true
	}
}

// detach gives a request a context of its own in place of one whose parent,
// the connection's, was cancelled for the request before it.
func (s handler) detach(ctx context.Context) (context.Context, func()) {
	s.mu.Lock()
	base := s.base
	s.mu.Unlock()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(base, func() { cancel(context.Cause(base)) })
	return ctx, func() { stop(); cancel(nil) }
}

// serveStream serves one HTTP/2 request, which has a context of its own since
// it shares its connection.
func (s handler) serveStream(next http.Handler, w http.ResponseWriter, r *http.Request) {
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	st := &stream{server: s.Server}
	st.Context, st.cancel = context.WithCancelCause(r.Context())
	defer s.endStream(st)
	h2 := http2Of(r.Context())
	if h2 != nil {
		h2.begin()
		defer h2.end()
	}
	if requestBits(r)&requestStream != 0 {
		if s.windowOver.Load() || !s.markStream(st) {
			st.cancel(ErrWindowOver)
		}
	}
	own := r.WithContext(st)
	defer removeForm(own)
	if h2 == nil && s.draining.Load() {
		if full, ok := w.(http2Writer); ok {
			cw := &closeWriter2{http2Writer: full, server: s.Server}
			next.ServeHTTP(cw, own)
			cw.sayClose()
			return
		}
	}
	next.ServeHTTP(w, own)
}

// keepForm gives net/http back the form that was parsed on a copy of its
// request, because it removes the form's temporary files.
func keepForm(original, copied *http.Request) {
	if original.MultipartForm == nil {
		original.MultipartForm = copied.MultipartForm
	}
}

// removeForm removes the temporary files of an HTTP/2 request's form. net/http
// of Go 1.27 looks for them in another copy of the request and leaves them.
func removeForm(r *http.Request) {
	if r.MultipartForm != nil {
		_ = r.MultipartForm.RemoveAll() // net/http ignores the error too
	}
}

// requestBits says what kind of request this is. Only an Accept that is
// exactly an event stream makes one: clients that take JSON or an event
// stream, whichever comes, send ordinary requests.
func requestBits(r *http.Request) uint32 {
	bits := uint32(requestActive)
	if accept := r.Header["Accept"]; len(accept) == 1 && accept[0] == "text/event-stream" {
		bits |= requestStream
	}
	if len(r.Header["Upgrade"]) > 0 || r.Method == http.MethodConnect {
		bits |= requestUpgrade
		if len(r.Header["Http2-Settings"]) == 1 {
			bits |= requestHTTP2
		}
	}
	return bits
}

// stream is the context of one HTTP/2 request.
type stream struct {
	context.Context
	cancel context.CancelCauseFunc
	server *Server
	marked atomic.Bool // it is, or is about to be, in server.streams
}

func (st *stream) Value(k any) any {
	if k == (key{}) {
		return st
	}
	return st.Context.Value(k)
}

// markStream has st cancelled at the window's end. It reports false when that
// has passed.
func (s *Server) markStream(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.windowOver.Load() {
		return false
	}
	// In this order against endStream: either this sees the end, or that sees
	// the mark and waits for the lock.
	st.marked.Store(true)
	if st.Err() != nil {
		return true
	}
	s.streams[st] = struct{}{}
	return true
}

func (s *Server) endStream(st *stream) {
	st.cancel(nil)
	if st.marked.Load() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
	}
}

// optionsStar answers as net/http does.
func optionsStar(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", "0")
	if r.ContentLength != 0 {
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, 4<<10))
	}
}
