package httpdrain

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

type noConn struct{ net.Conn }

func (noConn) Close() error { return nil }

// nullWriter can do what net/http's writers can, so that the handler gets ours.
type nullWriter struct {
	http1Writer
	h http.Header
}

func (w nullWriter) Header() http.Header                { return w.h }
func (w nullWriter) Write(p []byte) (int, error)        { return len(p), nil }
func (nullWriter) Push(string, *http.PushOptions) error { return nil }

// tracked returns the handler net/http would call and a request as net/http
// makes it on a connection of ours.
func tracked(tb testing.TB, next http.HandlerFunc) (http.Handler, *http.Request, *Server) {
	srv := &http.Server{Addr: "127.0.0.1:0", Handler: next}
	s := New("bench", srv, Config{})
	if err := s.Bind(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	c := s.tracker.admit(noConn{})
	ctx := srv.ConnContext(context.WithValue(context.Background(), http.ServerContextKey, srv), c)
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, s.Addr())
	ctx, cancelConn := context.WithCancel(ctx)
	ctx, cancelRequest := context.WithCancel(ctx)
	tb.Cleanup(func() { cancelRequest(); cancelConn(); c.Close() })
	r, err := http.NewRequestWithContext(ctx, "GET", "/", nil)
	if err != nil {
		tb.Fatal(err)
	}
	r.Header = http.Header{"Accept": {"*/*"}, "User-Agent": {"bench"}, "Accept-Encoding": {"gzip"}}
	return srv.Handler, r, s
}

// replies writes an answer as most handlers do.
func replies(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = jsonType
	_, _ = w.Write(body)
}

var jsonType, body = []string{"application/json; charset=utf-8"}, []byte("{}")

// BenchmarkTracking measures a handler with and without tracking. The difference is what
// tracking costs an HTTP/1 request before T0.
func BenchmarkTracking(b *testing.B) {
	h, r, _ := tracked(b, replies)
	var w http.ResponseWriter = nullWriter{h: http.Header{}}
	b.Run("bare", func(b *testing.B) {
		bare := http.Handler(http.HandlerFunc(replies))
		b.ReportAllocs()
		for b.Loop() {
			bare.ServeHTTP(w, r)
		}
	})
	b.Run("tracked", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.ServeHTTP(w, r)
		}
	})
	r2 := r.Clone(r.Context())
	r2.ProtoMajor = 2
	b.Run("tracked-http2", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.ServeHTTP(w, r2)
		}
	})
}

// Before T0 tracking an HTTP/1 request allocates its writer and nothing else.
func TestTrackingAllocatesAWriter(t *testing.T) {
	h, r, s := tracked(t, replies)
	var w http.ResponseWriter = nullWriter{h: http.Header{}}
	if _, ok := w.(http1Writer); !ok {
		t.Fatal("it is handed through")
	}
	if n := testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) }); n > 1 {
		t.Errorf("%v allocations a request", n)
	}
	if st := s.Stats(); st.InFlight != 0 || time.Since(st.LastArrival) > patience {
		t.Errorf("stats %+v", st)
	}
}

// BenchmarkHTTP2Conn measures what passing through an http2Conn costs a request, with the
// reads and writes of net/http: a header and its payload, and a response in one piece.
func BenchmarkHTTP2Conn(b *testing.B) {
	s := &script{}
	h := alone(s)
	s.pass(h, []byte(settingsFrame))
	response := []byte(frame(frameHeaders, flagEndHeaders, 1, getBlock) + frame(frameData, flagEndStream, 1, "body"))
	request := []byte(frame(frameHeaders, flagEndHeaders|flagEndStream, 1, getBlock))
	buf := make([]byte, 64)
	serve := func(rw io.ReadWriter) func(b *testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			s.in = []byte(settingsFrame)
			_, _ = rw.Read(buf)
			for b.Loop() {
				s.in = request
				_, _ = rw.Read(buf[:frameHead])
				_, _ = rw.Read(buf)
				s.out.Reset()
				_, _ = rw.Write(response)
			}
		}
	}
	b.Run("bare", serve(s))
	b.Run("passed", serve(h))
}
