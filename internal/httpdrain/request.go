package httpdrain

import (
	"context"
	"net/http"
	"time"
)

// handler counts requests and lets responses say goodbye.
type handler struct{ *Server }

func (s handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.lastArrival.Store(s.tracker.since())
	defer s.countPanic()
	if r.ProtoMajor >= 2 && !isPreface(w, r) {
		s.serveStream(w, r)
		return
	}
	s.serveRequest(w, r)
}

// countPanic counts the panic of a handler, and lets it go on to net/http, which logs it and closes
// the connection or the stream.
func (s handler) countPanic() {
	v := recover()
	if v == nil {
		return
	}
	if v != http.ErrAbortHandler { //nolint:errorlint // the value itself means abort
		s.panics.note(time.Now(), v)
	}
	panic(v)
}

// serveRequest serves one HTTP/1 request.
func (s handler) serveRequest(w http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(key{}).(*conn)
	if c == nil {
		// The user's ConnContext dropped our value, or the call did not come
		// through our listener.
		s.beginRequest()
		defer s.endedRequest()
		s.callHandler(w, r, nil, false)
		return
	}
	s.beginRequest()
	c.request.Store(requestBits(r))
	if !c.http1.Load() {
		c.http1.Store(true)
	}
	defer s.endRequest(c)
	if c.contextCut {
		ctx, stop := s.detach(r.Context(), c)
		defer stop()
		old := r
		r = r.WithContext(ctx)
		defer keepForm(old, r)
	}
	if s.windowOver.Load() {
		c.cutStream() // EndWindow came before this event stream and has not cut it
	}
	s.callHandler(w, r, c, mayStream(r))
}

// callHandler calls the handler of an HTTP/1 request on c, if that is known. When the request
// arrived after T0, or its answer may say that it is a stream (then its connection is known),
// the handler gets an http1Wrapper in place of net/http's writer.
func (s handler) callHandler(w http.ResponseWriter, r *http.Request, c *conn, mayBeStream bool) {
	closing := s.draining.Load()
	full, ok := w.(http1Writer)
	if !ok || !closing && !mayBeStream {
		s.next.ServeHTTP(w, r)
		return
	}
	own := &http1Wrapper{
		wrapper: wrapper{responseWriter: full, server: s.Server, conn: c, mayBeStream: mayBeStream, closing: closing},
		http1:   full,
	}
	s.next.ServeHTTP(own, r)
	if closing {
		own.beforeHeader() // a handler that wrote nothing; not reached by a panic, which aborts the response
	}
}

func (s handler) endRequest(c *conn) {
	bits := c.request.Swap(0)
	if bits&requestActive != 0 { // else it was hijacked
		s.endedRequest()
		if bits&requestAsked != 0 || s.draining.Load() { // there may be a notice
			s.mu.Lock()
			c.notice = nil // the next request has its own
			s.mu.Unlock()
		}
	}
	if bits&requestCut != 0 {
		c.contextCut = true
	}
}

// detach gives a request a new context: the connection's context, which would be its parent,
// was cancelled for the request before it.
func (s handler) detach(ctx context.Context, c *conn) (context.Context, func()) {
	s.mu.Lock()
	base := s.base
	s.mu.Unlock()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c.withContext(cancel) // the end of the connection, and of the window, is the end of this one
	stop := context.AfterFunc(base, func() { cancel(context.Cause(base)) })
	return ctx, func() { stop(); cancel(nil) }
}

// serveStream serves one HTTP/2 request. It has its own context, because other requests
// share its connection.
func (s handler) serveStream(w http.ResponseWriter, r *http.Request) {
	s.beginRequest()
	defer s.endedRequest()
	ctx, cancel := context.WithCancelCause(r.Context())
	st := &stream{Context: ctx, cancel: cancel, server: s.Server}
	defer s.endStream(st)
	h2 := http2Of(r.Context())
	if requestBits(r)&requestStream != 0 {
		s.markStream(st)
	}
	own := r.WithContext(st)
	defer removeForm(own)
	closing := s.oneStep && h2 == nil && s.draining.Load()
	mayBeStream := mayStream(r)
	full, ok := w.(http2Writer)
	if !ok || !closing && !mayBeStream {
		s.next.ServeHTTP(w, own)
		return
	}
	st.writer = http2Wrapper{
		wrapper: wrapper{responseWriter: full, server: s.Server, stream: st, mayBeStream: mayBeStream, closing: closing},
		Pusher:  full,
	}
	s.next.ServeHTTP(&st.writer, own)
	if closing {
		st.writer.beforeHeader()
	}
}

// keepForm gives net/http the form that was parsed on a copy of its request, because
// net/http removes the form's temporary files.
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
