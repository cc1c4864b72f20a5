package httpdrain

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// planes stands for the handler of the health planes.
var planes = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
	fmt.Fprintln(w, "planes:", req.URL.Path)
})

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// startServer returns a server that serves until the test ends.
func startServer(t *testing.T, h http.Handler, extra map[string]http.Handler) *HealthServer {
	t.Helper()
	s := NewHealthServer("127.0.0.1:0", Route(h, extra), slog.New(slog.DiscardHandler), nil)
	s.srv.ReadHeaderTimeout, s.srv.ReadTimeout, s.srv.WriteTimeout = patience, patience, patience // a busy machine must not look like a slow client
	must(t, s.Bind(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		must(t, s.Close(ctx))
		must(t, s.Close(ctx))
		must(t, <-served)
	})
	return s
}

// fetchHealth sends one request on a connection of its own, as a kubelet does.
func fetchHealth(t *testing.T, s *HealthServer, path string) (status int, body string, err error) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get("http://" + s.Addr().String() + path)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func dialHealth(t *testing.T, s *HealthServer) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestHealthServerServesPlanesAndExtras(t *testing.T) {
	text := func(s string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) })
	}
	s := startServer(t, planes, map[string]http.Handler{"/metrics": text("metrics")})
	for path, want := range map[string]string{
		"/readyz":    "200 planes: /readyz",
		"/livez":     "200 planes: /livez",
		"/metrics":   "200 metrics",
		"/metrics/x": "200 planes: /metrics/x",
		"/":          "200 planes: /",
	} {
		status, body, err := fetchHealth(t, s, path)
		must(t, err)
		if got := fmt.Sprintf("%d %s", status, strings.TrimSuffix(body, "\n")); got != want {
			t.Errorf("GET %s: %s, want %s", path, got, want)
		}
	}
}

func TestHealthServerPanicCutsItsAnswer(t *testing.T) {
	s := startServer(t, planes, map[string]http.Handler{
		"/panic": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			panic("boom")
		}),
		"/begun": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "some")
			_ = http.NewResponseController(w).Flush()
			panic("boom")
		}),
	})
	for range 3 {
		for _, path := range []string{"/panic", "/begun"} {
			if status, _, err := fetchHealth(t, s, path); err == nil {
				t.Errorf("%s: the answer of a handler that panics is %d", path, status)
			}
		}
		if status, _, err := fetchHealth(t, s, "/livez"); status != 200 || err != nil {
			t.Errorf("/livez after a panic: %d, %v", status, err)
		}
	}
}

func TestHealthServerSlowlorisCannotStarveTheKubelet(t *testing.T) {
	s := startServer(t, planes, nil)
	conns := make([]net.Conn, 500)
	for i := range conns {
		conns[i] = dialHealth(t, s)
		switch i % 3 { // nothing, half a header, half a request behind a whole one
		case 1:
			_, _ = io.WriteString(conns[i], "GET /livez HTTP/1.1\r\nHost: x\r\nX-")
		case 2:
			_, _ = io.WriteString(conns[i], "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /li")
		}
	}
	// Long before any of the timeouts, which would free a connection too.
	for range 50 {
		if status, _, err := fetchHealth(t, s, "/livez"); status != 200 || err != nil {
			t.Fatalf("/livez behind %d slow clients: %d, %v", len(conns), status, err)
		}
	}
	last := conns[len(conns)-1]
	_, err := io.WriteString(last, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	must(t, last.SetReadDeadline(time.Now().Add(patience)))
	if _, err := bufio.NewReader(last).ReadString('\n'); err != nil {
		t.Errorf("a slow client got %v, want an answer", err)
	}
}

func TestHealthServerFinishesItsAnswers(t *testing.T) {
	enter, release := make(chan struct{}), make(chan struct{})
	s := startServer(t, planes, map[string]http.Handler{
		"/slow": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(enter)
			<-release
			fmt.Fprint(w, "done")
		}),
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if status, body, err := fetchHealth(t, s, "/slow"); status != 200 || body != "done" || err != nil {
			t.Errorf("the answer of the slow handler is %d %q, %v", status, body, err)
		}
	})
	<-enter
	for range 300 {
		dialHealth(t, s)
	}
	if status, _, err := fetchHealth(t, s, "/livez"); status != 200 || err != nil {
		t.Errorf("/livez: %d, %v", status, err)
	}
	close(release)
	wg.Wait()
}

// The end of a handler is not the end of its response: net/http may still have to write it.
func TestHealthServerFinishesItsWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipeListener()
		s := NewHealthServer("127.0.0.1:0", planes, slog.New(slog.DiscardHandler), nil)
		s.Use(ln)
		served, closed := make(chan error, 1), make(chan error, 1)
		go func() { served <- s.Serve() }()
		c := ln.dial(t)
		c.send(get)
		synctest.Wait() // the handler has returned, and the client reads nothing
		go func() { closed <- s.Close(t.Context()) }()
		synctest.Wait()
		if res, _ := c.response("GET"); res.StatusCode != 200 {
			t.Error(res.Status)
		}
		must(t, <-closed)
		must(t, <-served)
	})
}

func TestHealthServerLimitsHeaders(t *testing.T) {
	s := startServer(t, planes, nil)
	conn := dialHealth(t, s)
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 16<<10)+"\r\n\r\n")
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, " 431 ") {
		t.Errorf("a header of 16 KiB got %q, %v; want 431", line, err)
	}
	made := NewHealthServer("127.0.0.1:0", planes, slog.New(slog.DiscardHandler), nil).srv
	for _, d := range []time.Duration{made.ReadHeaderTimeout, made.ReadTimeout, made.WriteTimeout, made.IdleTimeout} {
		if d <= 0 {
			t.Error("a timeout of the server is not set")
		}
	}
}

func TestHealthServerBindErrors(t *testing.T) {
	s := NewHealthServer("127.0.0.1:0", planes, nil, nil)
	if s.Addr() != nil {
		t.Error("an address before bind")
	}
	must(t, s.Bind(t.Context()))
	taken := NewHealthServer(s.Addr().String(), planes, nil, nil)
	if err := taken.Bind(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "listen on health address: ") {
		t.Errorf("bind to a taken address: %v", err)
	}
	must(t, s.Close(t.Context())) // bound and never served
	must(t, s.Serve())
	again := NewHealthServer(s.address, planes, nil, nil)
	must(t, again.Close(t.Context())) // never bound
}

func TestHealthServerCloseIsBounded(t *testing.T) {
	enter, release := make(chan struct{}), make(chan struct{})
	s := NewHealthServer("127.0.0.1:0", Route(planes, map[string]http.Handler{
		"/hang": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(enter)
			<-release
		}),
	}), slog.New(slog.DiscardHandler), nil)
	must(t, s.Bind(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, err := fetchHealth(t, s, "/hang"); err == nil {
			t.Error("a request that was cut got an answer")
		}
	})
	<-enter
	slow := dialHealth(t, s)
	_, _ = io.WriteString(slow, "GET /li")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close with a handler that hangs: %v, want the deadline", err)
	}
	wg.Wait()
	must(t, <-served)
	close(release)
}

func TestHealthServerCloseDoesNotWaitForSlowClients(t *testing.T) {
	s := NewHealthServer("127.0.0.1:0", planes, slog.New(slog.DiscardHandler), nil)
	s.srv.ReadTimeout, s.srv.ReadHeaderTimeout, s.srv.IdleTimeout = 0, 0, 0 // none of them helps
	must(t, s.Bind(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	for range 20 {
		conn := dialHealth(t, s)
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /li")
		must(t, err)
		_, err = bufio.NewReader(conn).ReadString('\n')
		must(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, s.Close(ctx))
	must(t, <-served)
}
