package serving

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/bench/internal/rawhttp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var request = []byte("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

// counting is the handler of all servers.
type counting struct{ served atomic.Int64 }

var (
	body   = []byte("hello\n")
	length = []string{"6"}
	ctype  = []string{"text/plain"}
)

func (h *counting) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.served.Add(1)
	w.Header()["Content-Length"] = length
	w.Header()["Content-Type"] = ctype
	_, _ = w.Write(body)
}

// server serves srv on ln until stop.
type server struct {
	peer  string
	serve func(tb testing.TB, ln net.Listener, srv *http.Server) (stop func())
}

var servers = []server{{"net-http", plain}, {"lifecycle-go", tracked}}

func plain(tb testing.TB, ln net.Listener, srv *http.Server) func() {
	served := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			served <- srv.ServeTLS(ln, "", "")
			return
		}
		served <- srv.Serve(ln)
	}()
	return func() {
		if err := srv.Close(); err != nil {
			tb.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			tb.Error(err)
		}
	}
}

func tracked(tb testing.TB, ln net.Listener, srv *http.Server) func() {
	return runApp(tb, "", func(a *lifecycle.App) { a.Serve("http", srv, lifecycle.WithListener(ln)) })
}

// runApp runs an App that stops at once, with the server that add gives it, and with black boxes in
// a folder, if one is given.
func runApp(tb testing.TB, boxes string, add func(*lifecycle.App)) (stop func()) {
	a, err := lifecycle.New(lifecycle.Config{
		HealthAddr:     lifecycle.HealthOff,
		TerminationLog: "off",
		DrainInterval:  lifecycle.Off,
		Linger:         lifecycle.Off,
		BlackBoxDir:    boxes,
	}, lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		tb.Fatal(err)
	}
	add(a)
	result := make(chan error, 1)
	go func() { result <- a.Run(context.Background()) }()
	<-a.Reached(lifecycle.PhaseRunning)
	return func() {
		a.Stop(nil)
		if err := <-result; err != nil {
			tb.Error(err)
		}
	}
}

// BenchmarkRequest measures a request over a connection without cost: its peer
// has sent all requests already and discards responses. The rest is
// net/http, the handler and its wrapper, so that a difference of some
// nanoseconds can be seen.
func BenchmarkRequest(b *testing.B) {
	for _, s := range servers {
		b.Run("peer="+s.peer, func(b *testing.B) {
			h := new(counting)
			ln := newListener()
			defer s.serve(b, ln, &http.Server{Handler: h})()
			nc := newScript(b.N)
			b.ReportAllocs()
			b.ResetTimer()
			report := cpu.Measure(b)
			ln.offer <- nc
			<-nc.closed // the server closes it after the last request
			b.StopTimer()
			report()
			if n := h.served.Load(); n != int64(b.N) {
				b.Fatalf("%d requests were served, want %d", n, b.N)
			}
			if nc.written < b.N*len(body) {
				b.Fatalf("%d bytes were written in %d responses", nc.written, b.N)
			}
		})
	}
}

// BenchmarkRequestTCP measures a request over one keep-alive connection on the
// loopback.
func BenchmarkRequestTCP(b *testing.B) {
	for _, s := range servers {
		b.Run("peer="+s.peer, func(b *testing.B) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			h := new(counting)
			defer s.serve(b, ln, &http.Server{Handler: h})()
			rawhttp.Bench(b, ln.Addr(), request)
			if n := h.served.Load(); n != int64(b.N) {
				b.Fatalf("%d requests were served, want %d", n, b.N)
			}
		})
	}
}

// BenchmarkBlackBox measures what an App with BlackBoxDir costs while nothing is wrong: the same
// requests as BenchmarkRequestTCP.
func BenchmarkBlackBox(b *testing.B) {
	for peer, dir := range map[string]string{"lifecycle-go": "", "black-box": b.TempDir()} {
		b.Run("peer="+peer, func(b *testing.B) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			srv := &http.Server{Handler: new(counting)}
			defer runApp(b, dir, func(a *lifecycle.App) { a.Serve("http", srv, lifecycle.WithListener(ln)) })()
			rawhttp.Bench(b, ln.Addr(), request)
		})
	}
}

// BenchmarkTracking measures the handler without net/http:
// the user's own, and the App's around that, with a request that came over a
// connection of the App's.
func BenchmarkTracking(b *testing.B) {
	for _, s := range servers {
		b.Run("peer="+s.peer, func(b *testing.B) {
			var calls int
			arrived, release := make(chan *http.Request), make(chan struct{})
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if calls++; calls == 1 {
					arrived <- r
					<-release
					return
				}
				w.Header()["Content-Type"] = ctype
				_, _ = w.Write(body)
			})
			srv := &http.Server{Handler: h}
			ln := newListener()
			defer s.serve(b, ln, srv)()
			ln.offer <- newScript(1)
			r := <-arrived
			defer close(release)
			around := srv.Handler // the wrapped handler
			var w http.ResponseWriter = discard{make(http.Header)}
			b.ReportAllocs()
			b.ResetTimer()
			report := cpu.Measure(b)
			for range b.N {
				around.ServeHTTP(w, r)
			}
			report()
			b.StopTimer()
			if calls != b.N+1 {
				b.Fatalf("the handler was called %d times, want %d", calls, b.N+1)
			}
		})
	}
}

// discard is a ResponseWriter that costs nothing. It can do what that of net/http can,
// so that the App puts its own around it.
type discard struct{ header http.Header }

func (d discard) Header() http.Header             { return d.header }
func (discard) Write(p []byte) (int, error)       { return len(p), nil }
func (discard) WriteString(s string) (int, error) { return len(s), nil }
func (discard) ReadFrom(io.Reader) (int64, error) { return 0, nil }
func (discard) WriteHeader(int)                   {}
func (discard) Flush()                            {}
func (discard) FlushError() error                 { return nil }
func (discard) CloseNotify() <-chan bool          { return nil }
func (discard) SetReadDeadline(time.Time) error   { return nil }
func (discard) SetWriteDeadline(time.Time) error  { return nil }
func (discard) EnableFullDuplex() error           { return nil }
func (discard) Hijack() (c net.Conn, b *bufio.ReadWriter, err error) {
	return nil, nil, errors.ErrUnsupported
}

// script is a connection whose peer has sent n requests, one after the other,
// and then closes. Reads never wait.
type script struct {
	left    int // bytes still to be read
	written int // bytes, read when the connection is closed
	once    sync.Once
	closed  chan struct{}
}

func newScript(n int) *script { return &script{left: n * len(request), closed: make(chan struct{})} }

func (c *script) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n := 0
	for n < len(p) && c.left > 0 {
		// Where in a request we are follows from how much is left.
		at := (len(request) - c.left%len(request)) % len(request)
		k := copy(p[n:], request[at:])
		n, c.left = n+k, c.left-k
	}
	return n, nil
}

func (c *script) Write(p []byte) (int, error)      { c.written += len(p); return len(p), nil }
func (c *script) Close() error                     { c.once.Do(func() { close(c.closed) }); return nil }
func (c *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *script) SetDeadline(time.Time) error      { return nil }
func (c *script) SetReadDeadline(time.Time) error  { return nil }
func (c *script) SetWriteDeadline(time.Time) error { return nil }

// listener hands out the connections that it is offered.
type listener struct {
	offer  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newListener() *listener {
	return &listener{offer: make(chan net.Conn, 1), closed: make(chan struct{})}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.offer:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }
