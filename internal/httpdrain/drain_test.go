package httpdrain

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const post = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody"

// gated is a listener with a gate. When the gate is shut, the next read holds back its
// data until the gate opens, as if the request were still on its way.
type gated struct {
	net.Listener
	held chan struct{} // a read is being held
	open chan struct{}
	shut atomic.Bool
}

type gatedConn struct {
	net.Conn
	l *gated
}

func (l *gated) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatedConn{nc, l}, nil
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.l.shut.CompareAndSwap(true, false) {
		close(c.l.held)
		<-c.l.open
	}
	return n, err
}

func newGated(t *testing.T) *gated {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &gated{Listener: ln, held: make(chan struct{}), open: make(chan struct{})}
}

// The control: a request that is on its way when http.Server.Shutdown begins
// is lost, so the tests below can see a loss.
func TestShutdownAloneLosesARequest(t *testing.T) {
	ln := newGated(t)
	srv := &http.Server{Handler: http.HandlerFunc(hello)}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	c := newRaw(t, dialAddr(t, ln.Addr().String()))
	c.send(post)
	c.response("POST")

	ln.shut.Store(true)
	c.send(post)
	receive(t, "request on its way", ln.held)
	down := make(chan error, 1)
	go func() { down <- srv.Shutdown(t.Context()) }()
	receive(t, "Serve returned", served)
	close(ln.open)
	if _, err := http.ReadResponse(c.r, nil); err == nil {
		t.Error("the request was answered: this control no longer shows the loss that the rest prevents")
	}
	if err := receive(t, "Shutdown returned", down); err != nil {
		t.Error(err)
	}
}

// Here the same request comes when the window is over and the listener is closed.
// Its response says close, and nothing is cut.
func TestLateRequestOnAnOpenConnection(t *testing.T) {
	ln := newGated(t)
	s := start(t, &http.Server{Handler: http.HandlerFunc(hello)}, Config{Linger: patience}, WithListener(ln))
	c := dial(t, s)
	c.send(post)
	c.response("POST")

	ln.shut.Store(true)
	s.BeginDrain(time.Now(), 0)
	s.EndWindow()
	c.send(post)
	receive(t, "request on its way", ln.held)
	if err := s.CloseWhenQuiet(t.Context()); err != nil {
		t.Fatal(err)
	}
	lingered := make(chan struct{})
	go func() { s.LingerOpen(t.Context()); close(lingered) }()
	close(ln.open)
	if res, body := c.response("POST"); !res.Close || body != "hello" {
		t.Errorf("close %v, body %q", res.Close, body)
	}
	receive(t, "linger ends with the last connection", lingered)
	if cut, err := s.Shutdown(soon(t)); cut != 0 || err != nil {
		t.Errorf("cut %d, %v", cut, err)
	}
}

// A rolling update with a window of 0.3 s, a tenth of the usual times. Some clients
// keep their connections and pause for up to 0.4 s; others connect for every request.
// From the middle of the window on, new connections reach the new server. No
// client retries, and none loses a request.
func TestRollingUpdateLosesNothing(t *testing.T) {
	const (
		window    = 300 * time.Millisecond
		keepers   = 24
		newcomers = 6
	)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(rand.N(20 * time.Millisecond)) // work
		_, _ = io.Copy(w, r.Body)
	})
	cfg := Config{AcceptQuiet: 100 * time.Millisecond, Linger: 900 * time.Millisecond, GoAwayAfter: 100 * time.Millisecond}
	before, after := start(t, &http.Server{Handler: echo}, cfg), start(t, &http.Server{Handler: echo}, cfg)
	var endpoint atomic.Pointer[Server]
	endpoint.Store(before)

	exchange := func(c *raw) (closing bool, err error) {
		if _, err := io.WriteString(c, post); err != nil {
			return false, err
		}
		res, err := http.ReadResponse(c.r, nil)
		if err != nil {
			return false, err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return false, err
		}
		if string(body) != "body" || res.StatusCode != 200 {
			return false, fmt.Errorf("%s %q", res.Status, body)
		}
		return res.Close, nil
	}
	// Endpoints that reach a client late are not tested here: no client
	// is between the look-up and the connection when they change.
	var propagation sync.RWMutex
	connect := func() (*raw, error) {
		propagation.RLock()
		defer propagation.RUnlock()
		nc, err := net.Dial("tcp", endpoint.Load().Addr().String())
		if err != nil {
			return nil, err
		}
		_ = nc.SetDeadline(time.Now().Add(patience))
		return &raw{t, nc, bufio.NewReader(nc)}, nil
	}

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var sent, lost atomic.Int64
	client := func(gap time.Duration, keep bool) {
		var c *raw
		defer func() {
			if c != nil {
				c.Close()
			}
		}()
		for !isClosed(stop) {
			if c == nil {
				var err error
				if c, err = connect(); err != nil {
					lost.Add(1)
					t.Errorf("connect: %v", err)
					return
				}
			}
			sent.Add(1)
			closing, err := exchange(c)
			if err != nil {
				lost.Add(1)
				t.Errorf("request: %v", err)
			}
			if closing || err != nil || !keep {
				c.Close()
				c = nil
			}
			time.Sleep(rand.N(gap + 1))
		}
	}
	for i := range keepers {
		wg.Go(func() { client(400*time.Millisecond*time.Duration(i)/keepers, true) })
	}
	for range newcomers {
		wg.Go(func() { client(10*time.Millisecond, false) })
	}

	time.Sleep(200 * time.Millisecond)
	before.BeginDrain(time.Now(), window)
	time.Sleep(window / 2)
	propagation.Lock()
	endpoint.Store(after)
	propagation.Unlock()
	time.Sleep(window / 2)
	before.EndWindow()
	if err := before.CloseWhenQuiet(t.Context()); err != nil {
		t.Error(err)
	}
	before.LingerOpen(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if cut, err := before.Shutdown(ctx); cut != 0 || err != nil {
		t.Errorf("cut %d, %v", cut, err)
	}
	time.Sleep(100 * time.Millisecond)
	close(stop)
	wg.Wait()
	t.Logf("%d requests, %d lost, %d connections before, %d after", sent.Load(), lost.Load(), before.Stats().Accepted, after.Stats().Accepted)
}

// When the listener closes, the connections that the kernel has already accepted are
// served, not reset. They wait because the accept loop is busy.
func TestBacklogIsServedBeforeTheListenerCloses(t *testing.T) {
	const waiting = 8
	enter, leave := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	s := start(t, &http.Server{
		Handler: http.HandlerFunc(hello),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			if first.CompareAndSwap(true, false) {
				close(enter)
				<-leave
			}
			return ctx
		},
	}, Config{})
	clients := []*raw{dial(t, s)}
	receive(t, "accept loop is busy", enter)
	for range waiting {
		clients = append(clients, dial(t, s))
	}
	for _, c := range clients {
		c.send(get)
	}
	s.EndWindow()
	closed := make(chan error, 1)
	go func() { closed <- s.CloseWhenQuiet(t.Context()) }()
	eventually(t, "the listener retires", s.ln.isRetiring)
	close(leave)
	for _, c := range clients {
		if res, body := c.response("GET"); !res.Close || body != "hello" {
			t.Errorf("close %v, body %q", res.Close, body)
		}
	}
	if err := receive(t, "the listener closes", closed); err != nil {
		t.Error(err)
	}
	if st := s.Stats(); st.Accepted != waiting+1 {
		t.Errorf("%d accepted", st.Accepted)
	}
	if nc, err := net.Dial("tcp", s.Addr().String()); err == nil {
		nc.Close()
		t.Error("the listener is open")
	}
}

// Requests that outlast the in-flight slice are cut and counted. Their contexts are
// cancelled, and their connections are closed.
func TestShutdownCutsAndCounts(t *testing.T) {
	var wg sync.WaitGroup
	defer wg.Wait()
	entered := make(chan struct{})
	s := start(t, &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		wg.Add(1)
		defer wg.Done()
		entered <- struct{}{}
		<-r.Context().Done()
	})}, Config{})
	clients := []*raw{dial(t, s), dial(t, s), dial(t, s)}
	for _, c := range clients {
		c.send(get)
		receive(t, "request", entered)
	}
	idle := dial(t, s)
	eventually(t, "accepted", func() bool { return s.Stats().Conns == 4 })
	why := errors.New("in-flight slice is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	cut, err := s.Shutdown(ctx)
	if cut != 3 || !errors.Is(err, why) || !strings.Contains(err.Error(), `server "test": 3 requests cut`) {
		t.Errorf("cut %d, %v", cut, err)
	}
	for _, c := range append(clients, idle) {
		if _, err := c.r.ReadByte(); err == nil {
			t.Error("a connection is open")
		}
	}
	if cut, err := s.Shutdown(soon(t)); cut != 0 || err != nil {
		t.Errorf("again: cut %d, %v", cut, err)
	}
}

// Shutdown waits for a request in flight. It does not wait for a connection that never
// sent anything; net/http alone would wait five seconds for that.
func TestShutdownWaitsForRequestsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipeListener()
		s := New("pipes", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Second)
			_, _ = fmt.Fprint(w, context.Cause(r.Context()))
		})}, Config{}, WithListener(ln))
		if err := s.Bind(t.Context()); err != nil {
			t.Fatal(err)
		}
		serve(t, s)
		spare, c := ln.dial(t), ln.dial(t)
		c.send(get)
		synctest.Wait()
		begin := time.Now()
		go func() {
			if res, body := c.response("GET"); res.StatusCode != 200 || body != "<nil>" {
				t.Errorf("%s %s", res.Status, body)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if cut, err := s.Shutdown(ctx); cut != 0 || err != nil {
			t.Errorf("cut %d, %v", cut, err)
		}
		if took := time.Since(begin); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("took %v", took)
		}
		if _, err := spare.r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("spare connection: %v", err)
		}
	})
}
