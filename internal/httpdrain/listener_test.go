package httpdrain

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
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
		window time.Duration
		want   time.Duration
	}{
		{name: "nothing comes", config: Config{AcceptQuiet: time.Second, AcceptMax: 10 * time.Second}, want: time.Second},
		{name: "some come", config: Config{AcceptQuiet: time.Second, AcceptMax: 10 * time.Second},
			dials: []time.Duration{900 * time.Millisecond, 1500 * time.Millisecond}, want: 3 * time.Second},
		{name: "they never stop", config: Config{AcceptQuiet: time.Second, AcceptMax: 1500 * time.Millisecond},
			dials: []time.Duration{500 * time.Millisecond, time.Second, 1400 * time.Millisecond}, want: 1500 * time.Millisecond},
		{name: "quiet beyond the bound", config: Config{AcceptQuiet: time.Minute, AcceptMax: 2 * time.Second}, want: 2 * time.Second},
		{name: "cancelled", config: Config{AcceptQuiet: time.Minute, AcceptMax: time.Hour}, cancel: 3 * time.Second, want: 3 * time.Second},
		{name: "the last one came early in the window", window: 5 * time.Second, config: Config{AcceptQuiet: time.Second, AcceptMax: time.Minute},
			dials: []time.Duration{-3 * time.Second}, want: time.Second},
		{name: "the last one came late in the window", window: 5 * time.Second, config: Config{AcceptQuiet: time.Second, AcceptMax: time.Minute},
			dials: []time.Duration{-time.Second}, want: 3 * time.Second}, // 4 s after T0: as long again
		{name: "one came after it", window: 5 * time.Second, config: Config{AcceptQuiet: time.Second, AcceptMax: time.Minute},
			dials: []time.Duration{-time.Second, 2 * time.Second}, want: 9 * time.Second}, // 7 s after T0
		{name: "no time at all", config: Config{}},
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
				s.BeginDrain(time.Now(), tt.window)
				end := time.Now().Add(tt.window)
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
				time.Sleep(tt.window)
				s.EndWindow()
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
		{name: "the last one is hijacked", hijack: 2 * time.Second, want: 2*time.Second + timeToClose},
		{name: "no connection leaves", want: 7 * time.Second},
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
				if err := s.CloseWhenQuiet(t.Context()); err != nil {
					t.Error(err)
				}
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
				if got := time.Since(start); got < tt.want || got > tt.want+clientLook {
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
	s := bind(&http.Server{}, func(ln net.Listener) net.Listener { return failingListener{ln} })
	check(s.Serve(t.Context()), `serve "odd" on `+s.Addr().String(), "out of luck")

	srv := &http.Server{}
	s = bind(srv, func(ln net.Listener) net.Listener { return ln })
	_ = srv.Close()
	check(s.Serve(t.Context()), "closed by other code")

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
		if !isClosed(s.goodbye) || s.goodbyeTimer != nil {
			t.Error("it waits for a client to tell")
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
