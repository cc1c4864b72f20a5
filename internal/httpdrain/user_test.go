package httpdrain

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// The hooks that the user set on the server are called as before, with the values of both
// contexts. When the base context ends, the contexts of requests end.
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
	l, err := newListener(ln, newTracker())
	if err != nil {
		t.Fatal(err)
	}
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
