package httpdrain

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The listener closes AcceptQuiet after the window's end or after the last
// connection, at half of Linger at the latest, or when the context is done.
func TestCloseWhenQuiet(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config Config
		dials  []time.Duration // after the window's end
		cancel time.Duration   // 0: never
		want   time.Duration
	}{
		{name: "nothing comes", config: Config{AcceptQuiet: time.Second, Linger: 10 * time.Second}, want: time.Second},
		{name: "some come", config: Config{AcceptQuiet: time.Second, Linger: 10 * time.Second},
			dials: []time.Duration{900 * time.Millisecond, 1500 * time.Millisecond}, want: 2500 * time.Millisecond},
		{name: "they never stop", config: Config{AcceptQuiet: time.Second, Linger: 3 * time.Second},
			dials: []time.Duration{500 * time.Millisecond, time.Second, 1400 * time.Millisecond}, want: 1500 * time.Millisecond},
		{name: "quiet beyond linger", config: Config{AcceptQuiet: time.Minute, Linger: 4 * time.Second}, want: 2 * time.Second},
		{name: "cancelled", config: Config{AcceptQuiet: time.Minute, Linger: time.Hour}, cancel: 3 * time.Second, want: 3 * time.Second},
		{name: "no time at all", config: Config{AcceptQuiet: -1, Linger: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := newPipeListener()
				s := New("pipes", &http.Server{Handler: http.HandlerFunc(hello)}, tt.config, WithListener(ln))
				if err := s.Bind(t.Context()); err != nil {
					t.Fatal(err)
				}
				serve(t, s)
				ln.dial(t)
				time.Sleep(time.Minute)
				s.EndWindow()
				end := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				go func() {
					for _, at := range tt.dials {
						time.Sleep(time.Until(end.Add(at)))
						ln.dial(t)
					}
				}()
				if err := s.CloseWhenQuiet(ctx); err != nil {
					t.Error(err)
				}
				if got := time.Since(end); got != tt.want {
					t.Errorf("closed after %v, want %v", got, tt.want)
				}
				if ln.dial(t) != nil {
					t.Error("the listener is open")
				}
				// Serve neither returns nor spins: serve's cleanup sees nil, and
				// the bubble could not sleep past a spin.
				time.Sleep(time.Hour)
				if err := s.CloseWhenQuiet(ctx); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Linger counts from the window's end and ends early with the last connection,
// or with the context.
func TestLingerOpen(t *testing.T) {
	for _, tt := range []struct {
		name          string
		leave, cancel time.Duration
		hijack        time.Duration
		want          time.Duration
	}{
		{name: "the last one is hijacked", hijack: 2 * time.Second, want: 2 * time.Second},
		{name: "nobody leaves", want: 7 * time.Second},
		{name: "the last one leaves", leave: 2 * time.Second, want: 2 * time.Second},
		{name: "cancelled", cancel: time.Second, want: time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := newPipeListener()
				handler := func(w http.ResponseWriter, _ *http.Request) {
					if _, _, err := w.(http.Hijacker).Hijack(); err != nil {
						t.Error(err)
					}
				}
				s := New("pipes", &http.Server{Handler: http.HandlerFunc(handler)}, Config{Linger: 10 * time.Second}, WithListener(ln))
				if err := s.Bind(t.Context()); err != nil {
					t.Fatal(err)
				}
				serve(t, s)
				a, b := ln.dial(t), ln.dial(t)
				s.EndWindow()
				time.Sleep(3 * time.Second)
				start := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				if tt.hijack > 0 {
					a.Close()
					time.AfterFunc(tt.hijack, func() { b.send(get) })
				}
				if tt.leave > 0 {
					time.AfterFunc(tt.leave/2, func() { a.Close() })
					time.AfterFunc(tt.leave, func() { b.Close() })
				}
				s.LingerOpen(ctx)
				if got := time.Since(start); got != tt.want {
					t.Errorf("lingered %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// A connection leaves the set when it is hijacked and again when the hijacker
// closes it.
func TestHijackedConnectionsAreCounted(t *testing.T) {
	conns := make(chan net.Conn, 1)
	s := start(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		nc, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
		}
		conns <- nc
	})}, Config{})
	c := dial(t, s)
	c.send(get)
	nc := receive(t, "hijacked", conns)
	if st := s.Stats(); st.Hijacked != 1 || st.Conns != 0 || st.InFlight != 0 {
		t.Errorf("hijacked: %+v", st)
	}
	s.LingerOpen(t.Context()) // does not wait for it
	if err := errors.Join(nc.Close(), nc.Close()); err != nil {
		t.Error(err)
	}
	if st := s.Stats(); st.Hijacked != 0 || st.Conns != 0 || st.InFlight != 0 || st.Accepted != 1 {
		t.Errorf("closed: %+v", st)
	}
}

func TestBindErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tlsTaken := tls.NewListener(taken, serverTLS())
	bound := start(t, &http.Server{}, Config{})
	shut := New("shut", &http.Server{}, Config{})
	if _, err := shut.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		s    *Server
		want []string
	}{
		{New("taken", &http.Server{Addr: taken.Addr().String()}, Config{}), []string{`bind server "taken" to "` + taken.Addr().String() + `"`, "in use"}},
		{New("wrong", &http.Server{Addr: "localhost:wrong"}, Config{}), []string{`"localhost:wrong"`, "unknown port"}},
		{New("nil", nil, Config{}), []string{`server "nil"`, "nil *http.Server"}},
		{New("tls", &http.Server{}, Config{}, WithListener(tlsTaken)), []string{`server "tls"`, "set TLSConfig", taken.Addr().String()}},
		{bound, []string{"already bound", bound.Addr().String()}},
		{shut, []string{"closed"}},
	} {
		err := tt.s.Bind(t.Context())
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		}
	}
}

// A Bind that takes its time, as with a slow name server, keeps nobody waiting:
// not T0, not a look, not the end, after which the listener is closed.
func TestBindKeepsNobodyWaiting(t *testing.T) {
	for name, end := range map[string]func(s *Server) error{
		"served":   nil,
		"Shutdown": func(s *Server) error { _, err := s.Shutdown(context.Background()); return err },
		"Close":    (*Server).Close,
	} {
		t.Run(name, func(t *testing.T) {
			listening, release := make(chan struct{}), make(chan struct{})
			s := New("test", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(hello)}, Config{})
			s.lc.Control = func(string, string, syscall.RawConn) error { close(listening); <-release; return nil }
			bound, others := make(chan error, 1), make(chan error, 1)
			go func() { bound <- s.Bind(context.Background()) }()
			receive(t, "listen", listening)
			go func() {
				s.BeginDrain(time.Now(), 0)
				if addr := s.Addr(); addr != nil {
					t.Errorf("on %v before it is bound", addr)
				}
				s.Stats()
				if err := s.Bind(context.Background()); err == nil || !strings.Contains(err.Error(), `server "test": it is being bound already`) {
					t.Errorf("a second Bind: %v", err)
				}
				var err error
				if end != nil {
					err = end(s)
				} else {
					s.EndWindow()
				}
				others <- err
			}()
			if err := receive(t, "the others while Bind is on its way", others); err != nil {
				t.Error(err)
			}
			close(release)
			err := receive(t, "the end of Bind", bound)
			if end != nil {
				if !errors.Is(err, http.ErrServerClosed) || s.Addr() != nil {
					t.Errorf("bound to %v after the end: %v", s.Addr(), err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			serve(t, s)
			c := dial(t, s)
			c.send(get)
			if res, body := c.response("GET"); body != "hello" || !res.Close {
				t.Errorf("%q, close %v", body, res.Close)
			}
		})
	}
}

// The listener that comes too late is closed.
func TestListenerThatComesAfterTheEndIsClosed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	s := New("test", &http.Server{Addr: addr}, Config{})
	s.lc.Control = func(string, string, syscall.RawConn) error { return s.Close() }
	if err := s.Bind(t.Context()); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("the listener is open")
	}
}

// An empty address means the port of the scheme, as net/http has it.
func TestBindDefaultAddress(t *testing.T) {
	for _, tt := range []struct {
		addr    string
		config  *tls.Config
		want    string
		withTLS bool
	}{
		{"", nil, ":http", false},
		{"", &tls.Config{}, ":http", false},
		{"", serverTLS(), ":https", true},
		{"", &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }}, ":https", true},
		{"", &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, nil }}, ":https", true},
		{"localhost:1", serverTLS(), "localhost:1", true},
	} {
		if addr, withTLS := listenAddr(&http.Server{Addr: tt.addr, TLSConfig: tt.config}); addr != tt.want || withTLS != tt.withTLS {
			t.Errorf("%q: %s, %v, want %s, %v", tt.addr, addr, withTLS, tt.want, tt.withTLS)
		}
	}
}

type failingListener struct{ net.Listener }

func (failingListener) Accept() (net.Conn, error) { return nil, errors.New("out of luck") }

type tlsOneByOne struct{ net.Listener }

func (l tlsOneByOne) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(nc, serverTLS()), nil
}

func TestServeErrors(t *testing.T) {
	check := func(err error, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		}
	}
	check(New("early", &http.Server{}, Config{}).Serve(t.Context()), `serve "early"`, "call Bind first")

	s := start(t, &http.Server{}, Config{})
	eventually(t, "serving", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.serving })
	check(s.Serve(t.Context()), "already serving", s.Addr().String())

	bind := func(srv *http.Server, wrap func(net.Listener) net.Listener) *Server {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := New("odd", srv, Config{}, WithListener(wrap(ln)))
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s = bind(&http.Server{}, func(ln net.Listener) net.Listener { return failingListener{ln} })
	check(s.Serve(t.Context()), `serve "odd" on `+s.Addr().String(), "out of luck")

	srv := &http.Server{}
	s = bind(srv, func(ln net.Listener) net.Listener { return ln })
	_ = srv.Close()
	check(s.Serve(t.Context()), "closed by somebody else")

	s = bind(&http.Server{}, func(ln net.Listener) net.Listener { return tlsOneByOne{ln} })
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	dialAddr(t, s.Addr().String()).Close()
	check(receive(t, "Serve", served), "set TLSConfig")

	// A bad TLS configuration leaves no listener behind.
	config := serverTLS()
	config.CipherSuites = []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}
	config.MinVersion = tls.VersionTLS12
	s = bind(&http.Server{TLSConfig: config}, func(ln net.Listener) net.Listener { return ln })
	check(s.Serve(t.Context()), "CipherSuites")
	if nc, err := net.Dial("tcp", s.Addr().String()); err == nil {
		nc.Close()
		t.Error("the listener is open")
	}
}

// A server that is never bound leaves nothing behind.
func TestBeginDrainBeforeBindStartsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails when a goroutine is left
		begin := time.Now()
		s := New("unbound", &http.Server{}, Config{GoAwayAfter: time.Minute})
		s.BeginDrain(begin, time.Hour)
		synctest.Wait()
		if !isClosed(s.goodbye) || s.spoken != nil {
			t.Error("it waits for somebody to tell")
		}
	})
}

// Everything may be called in any order, again, and at once.
func TestAnyOrder(t *testing.T) {
	verbs := []func(*Server){
		func(s *Server) { s.BeginDrain(time.Now(), time.Hour) },
		func(s *Server) { s.EndWindow() },
		func(s *Server) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = s.CloseWhenQuiet(ctx)
		},
		func(s *Server) { s.LingerOpen(context.Background()) },
		func(s *Server) { _, _ = s.Shutdown(context.Background()) },
		func(s *Server) { _ = s.Close() },
		func(s *Server) { s.Stats() },
	}
	unbound := New("unbound", &http.Server{Addr: "127.0.0.1:0"}, Config{})
	for i := range verbs {
		verbs[len(verbs)-1-i](unbound)
	}
	if unbound.Addr() != nil {
		t.Error(unbound.Addr())
	}
	for i := range verbs {
		s := New("order", &http.Server{Addr: "127.0.0.1:0"}, Config{})
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		for j := range verbs {
			verbs[(i+j)%len(verbs)](s)
		}
		if err := s.Serve(context.Background()); err != nil {
			t.Error(err)
		}
	}
	s := start(t, &http.Server{Handler: http.HandlerFunc(hello)}, Config{})
	var wg sync.WaitGroup
	for range 4 {
		for _, verb := range verbs {
			wg.Go(func() { verb(s) })
		}
	}
	wg.Wait()
}

// What the user set on the server is called as before, with the values of
// both contexts; the base's end is a request's end.
func TestUsersHooksAreCalled(t *testing.T) {
	type name string
	var mu sync.Mutex
	var states []http.ConnState
	entered := make(chan context.Context, 1)
	s := New("hooks", &http.Server{
		Addr: "127.0.0.1:0",
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			entered <- r.Context()
			<-r.Context().Done()
		}),
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.Background(), name("user"), "mine")
		},
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, name("conn"), "one")
		},
		ConnState: func(_ net.Conn, state http.ConnState) {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, state)
		},
	}, Config{})
	if err := s.Bind(t.Context()); err != nil {
		t.Fatal(err)
	}
	base, stop := context.WithCancelCause(context.WithValue(t.Context(), name("app"), "app's"))
	defer stop(nil)
	served := make(chan error, 1)
	go func() { served <- s.Serve(base) }()
	c := dial(t, s)
	c.send(get)
	ctx := receive(t, "request", entered)
	if ctx.Value(name("user")) != "mine" || ctx.Value(name("conn")) != "one" || ctx.Value(name("app")) != "app's" || ctx.Value(http.ServerContextKey) == nil {
		t.Error("values are lost")
	}
	why := errors.New("stopping")
	stop(why)
	c.response("GET")
	if !errors.Is(context.Cause(ctx), why) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := receive(t, "Serve", served); err != nil {
		t.Error(err)
	}
	eventually(t, "states", func() bool { mu.Lock(); defer mu.Unlock(); return len(states) == 4 })
}

// A ConnContext that loses our context loses Draining, not the counts.
func TestConnContextThatStartsAfresh(t *testing.T) {
	s := start(t, &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok := Draining(r.Context()); ok {
				t.Error("found")
			}
			hello(w, r)
		}),
		ConnContext: func(context.Context, net.Conn) context.Context { return context.Background() },
	}, Config{})
	s.EndWindow()
	c := dial(t, s)
	c.send(get)
	if res, _ := c.response("GET"); !res.Close {
		t.Error("does not say close")
	}
	eventually(t, "counts are back", func() bool { return s.Stats().InFlight == 0 })
}

// The connection keeps what net/http and handlers look for below it.
func TestConnKeepsItsParts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(ln, newTracker())
	defer l.Close()
	client := newRaw(t, dialAddr(t, ln.Addr().String()))
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := nc.(*conn)
	if _, ok := c.NetConn().(*net.TCPConn); !ok {
		t.Errorf("below is a %T", c.NetConn())
	}
	if raw, err := c.SyscallConn(); err != nil || raw == nil {
		t.Error(err)
	}
	if _, err := c.ReadFrom(strings.NewReader("hello")); err != nil {
		t.Error(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
	if got := client.rest(); got != "hello" {
		t.Error(got)
	}

	a, b := net.Pipe()
	defer b.Close()
	pipe := newTracker().admit(a)
	defer pipe.Close()
	if _, err := pipe.SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	if err := pipe.CloseWrite(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	got := make([]byte, 5)
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.ReadFull(b, got) }()
	if _, err := pipe.ReadFrom(strings.NewReader("hello")); err != nil {
		t.Error(err)
	}
	<-done
	if string(got) != "hello" {
		t.Errorf("%q", got)
	}
}

// A file is served whole through sendfile's path, before and after T0.
func TestServeFile(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	path := filepath.Join(t.TempDir(), "file.bin")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) })}, Config{})
	for range 2 {
		c := dial(t, s)
		c.send(get)
		if _, body := c.response("GET"); body != string(want) {
			t.Errorf("%d bytes", len(body))
		}
		s.BeginDrain(time.Now(), time.Hour)
	}
}
