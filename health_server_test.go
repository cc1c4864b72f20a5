package lifecycle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// generous is for waits on real time that must not take long and may on a busy
// machine.
const generous = 30 * time.Second

// startServer returns a server that serves until the test ends.
func startServer(t *testing.T, h http.Handler, extra map[string]http.Handler) *healthServer {
	t.Helper()
	s := newHealthServer("127.0.0.1:0", h, extra, quiet)
	must(t, s.bind(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), generous)
		defer cancel()
		must(t, s.close(ctx))
		must(t, s.close(ctx))
		must(t, <-served)
	})
	return s
}

// fetch sends one request on a connection of its own, as a kubelet does.
func fetch(t *testing.T, s *healthServer, path string) (status int, body string, err error) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: generous}
	res, err := client.Get("http://" + s.addr().String() + path)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func dial(t *testing.T, s *healthServer) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr().String())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestHealthServerServesPlanesAndExtras(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("db", ProbeFunc(passing)))
	text := func(s string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) })
	}
	s := startServer(t, r.Handler(), map[string]http.Handler{"/metrics": text("metrics"), "/debug/": text("debug"), "/debug/deep/": text("deep")})
	for path, want := range map[string]string{
		"/readyz":        `200 {"status":"ok","checks":{"db":"ok"}}`,
		"/livez":         `200 {"status":"ok","checks":{}}`,
		"/metrics":       "200 metrics",
		"/debug/":        "200 debug",
		"/debug/x/y":     "200 debug",
		"/debug/deep/xy": "200 deep",
		"/metrics/x":     "404 not found: the health planes are /livez, /readyz and /startupz",
		"/":              "404 not found: the health planes are /livez, /readyz and /startupz",
	} {
		status, body, err := fetch(t, s, path)
		must(t, err)
		if got := fmt.Sprintf("%d %s", status, strings.TrimSuffix(body, "\n")); got != want {
			t.Errorf("GET %s: %s, want %s", path, got, want)
		}
	}
}

func TestHealthServerPanicIs500(t *testing.T) {
	s := startServer(t, NewRegistry().Handler(), map[string]http.Handler{
		"/panic": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			panic("boom")
		}),
		"/begun": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "some")
			_ = http.NewResponseController(w).Flush()
			panic("boom")
		}),
	})
	for range 3 {
		status, body, err := fetch(t, s, "/panic")
		must(t, err)
		if status != 500 || body != "internal server error: the handler panicked\n" {
			t.Errorf("a panic is %d %q, want 500", status, body)
		}
		if _, _, err := fetch(t, s, "/begun"); err == nil {
			t.Error("a panic in the middle of a response looks like its end")
		}
		if status, _, err := fetch(t, s, "/livez"); status != 200 || err != nil {
			t.Errorf("/livez after a panic: %d, %v", status, err)
		}
	}
}

func TestHealthServerSlowlorisCannotStarveTheKubelet(t *testing.T) {
	s := startServer(t, NewRegistry().Handler(), nil)
	conns := make([]net.Conn, 2*healthMaxConns)
	for i := range conns {
		conns[i] = dial(t, s)
		switch i % 3 { // nothing, half a header, half a request behind a whole one
		case 1:
			_, _ = io.WriteString(conns[i], "GET /livez HTTP/1.1\r\nHost: x\r\nX-")
		case 2:
			_, _ = io.WriteString(conns[i], "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /li")
		}
	}
	// Long before any of the timeouts, which would free a connection too.
	for range 50 {
		if status, _, err := fetch(t, s, "/livez"); status != 200 || err != nil {
			t.Fatalf("/livez behind %d slow clients: %d, %v", len(conns), status, err)
		}
	}
	s.conns.mu.Lock()
	open := len(s.conns.open)
	s.conns.mu.Unlock()
	if open > healthMaxConns {
		t.Errorf("%d connections are open, at most %d may be", open, healthMaxConns)
	}
	// The oldest was closed, the youngest was not: it can finish its request.
	must(t, conns[0].SetReadDeadline(time.Now().Add(generous)))
	if _, err := conns[0].Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reading from the oldest connection: %v, want that it was closed", err)
	}
	last := conns[len(conns)-1]
	_, err := io.WriteString(last, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	must(t, last.SetReadDeadline(time.Now().Add(generous)))
	if _, err := bufio.NewReader(last).ReadString('\n'); err != nil {
		t.Errorf("the youngest slow client got %v, want an answer", err)
	}
}

func TestHealthServerKeepsWhoIsBeingAnswered(t *testing.T) {
	enter, release := make(chan struct{}), make(chan struct{})
	s := startServer(t, NewRegistry().Handler(), map[string]http.Handler{
		"/slow": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(enter)
			<-release
			fmt.Fprint(w, "done")
		}),
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if status, body, err := fetch(t, s, "/slow"); status != 200 || body != "done" || err != nil {
			t.Errorf("the answer of the oldest connection is %d %q, %v", status, body, err)
		}
	})
	<-enter
	for range healthMaxConns + 10 {
		dial(t, s)
	}
	if status, _, err := fetch(t, s, "/livez"); status != 200 || err != nil {
		t.Errorf("/livez: %d, %v", status, err)
	}
	close(release)
	wg.Wait()
}

func TestHealthServerLimitsHeaders(t *testing.T) {
	s := startServer(t, NewRegistry().Handler(), nil)
	conn := dial(t, s)
	must(t, conn.SetDeadline(time.Now().Add(generous)))
	_, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 16<<10)+"\r\n\r\n")
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.Contains(line, " 431 ") {
		t.Errorf("a header of 16 KiB got %q, %v; want 431", line, err)
	}
	for _, d := range []time.Duration{s.srv.ReadHeaderTimeout, s.srv.ReadTimeout, s.srv.WriteTimeout, s.srv.IdleTimeout} {
		if d <= 0 {
			t.Error("a timeout of the server is not set")
		}
	}
}

func TestHealthServerBindErrors(t *testing.T) {
	s := newHealthServer("127.0.0.1:0", NewRegistry().Handler(), nil, nil)
	if s.addr() != nil {
		t.Error("an address before bind")
	}
	if err := s.serve(); err == nil {
		t.Error("serve before bind returned nil")
	}
	must(t, s.bind(t.Context()))
	if err := s.bind(t.Context()); err == nil {
		t.Error("a second bind returned nil")
	}
	taken := newHealthServer(s.addr().String(), NewRegistry().Handler(), nil, nil)
	if err := taken.bind(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "listen on health address: ") {
		t.Errorf("bind to a taken address: %v", err)
	}
	must(t, s.close(t.Context())) // bound and never served
	if err := s.bind(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("bind after close: %v, want net.ErrClosed", err)
	}
	must(t, s.serve())
	again := newHealthServer(s.address, NewRegistry().Handler(), nil, nil)
	must(t, again.close(t.Context())) // never bound
}

func TestHealthServerCloseIsBounded(t *testing.T) {
	enter, release := make(chan struct{}), make(chan struct{})
	s := newHealthServer("127.0.0.1:0", NewRegistry().Handler(), map[string]http.Handler{
		"/hang": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(enter)
			<-release
		}),
	}, quiet)
	must(t, s.bind(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.serve() }()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, err := fetch(t, s, "/hang"); err == nil {
			t.Error("a request that was cut got an answer")
		}
	})
	<-enter
	slow := dial(t, s)
	_, _ = io.WriteString(slow, "GET /li")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close with a handler that hangs: %v, want the deadline", err)
	}
	wg.Wait()
	must(t, <-served)
	close(release)
}

func TestHealthServerCloseDoesNotWaitForSlowClients(t *testing.T) {
	s := newHealthServer("127.0.0.1:0", NewRegistry().Handler(), nil, quiet)
	s.srv.ReadTimeout, s.srv.ReadHeaderTimeout, s.srv.IdleTimeout = 0, 0, 0 // none of them helps
	must(t, s.bind(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.serve() }()
	for range 20 {
		conn := dial(t, s)
		must(t, conn.SetDeadline(time.Now().Add(generous)))
		_, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /li")
		must(t, err)
		_, err = bufio.NewReader(conn).ReadString('\n')
		must(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	must(t, s.close(ctx))
	must(t, <-served)
}

func TestConnTableClosesTheOldestThatWaits(t *testing.T) {
	table := &connTable{limit: 4, open: make(map[net.Conn]*healthConn)}
	var conns []net.Conn
	isOpen := func(i int) bool {
		_, open := table.open[conns[i]]
		return open
	}
	accept := func() *healthConn {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = ours.Close(); _ = theirs.Close() })
		conns = append(conns, ours)
		return table.context(t.Context(), ours).Value(healthConnKey{}).(*healthConn)
	}
	for i := range 4 {
		if hc := accept(); i < 2 {
			table.mark(hc, true) // the two oldest are being answered
		}
	}
	accept() // closes 2
	accept() // closes 3
	for i, want := range []bool{true, true, false, false, true, true} {
		if isOpen(i) != want {
			t.Errorf("connection %d is open: %v, want %v", i, isOpen(i), want)
		}
	}
	for _, hc := range table.open {
		table.mark(hc, true)
	}
	accept() // all are being answered: closes 0
	if isOpen(0) || !isOpen(1) || !isOpen(6) || len(table.open) != 4 {
		t.Error("with every connection being answered, not the oldest one was closed")
	}
	if _, err := conns[0].Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("writing to a closed connection: %v", err)
	}
	waiting := accept() // 7, for 1
	table.mark(waiting, false)
	table.closeWaiting()
	for i, want := range map[int]error{4: nil, 7: io.ErrClosedPipe} {
		_ = conns[i].SetWriteDeadline(time.Now()) // a pipe that is open has nobody who reads
		if _, err := conns[i].Write([]byte("x")); errors.Is(err, io.ErrClosedPipe) != (want != nil) {
			t.Errorf("closeWaiting: writing to connection %d gives %v", i, err)
		}
	}
	conns[1] = conns[4] // one that is open
	table.state(conns[1], http.StateClosed)
	if isOpen(1) {
		t.Error("a connection that was closed is still counted")
	}
}
