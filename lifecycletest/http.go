package lifecycletest

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// Listener is a listener whose connections are in memory, so that a server can run in a
// synctest bubble. Pass it to a server with [lifecycle.WithListener].
type Listener struct {
	conns  chan net.Conn
	closed fsm.Signal
}

// NewListener returns a listener without connections.
func NewListener() *Listener {
	return &Listener{conns: make(chan net.Conn)}
}

// Accept waits for the next connection and returns it. It returns net.ErrClosed once the
// listener is closed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed.Signaled():
		return nil, &net.OpError{Op: "accept", Net: "memory", Addr: l.Addr(), Err: net.ErrClosed}
	}
}

// Close refuses every further connection. Existing connections stay open.
func (l *Listener) Close() error {
	l.closed.Signal()
	return nil
}

// Addr returns an address that is the same for all listeners of this kind.
func (l *Listener) Addr() net.Addr { return memoryAddr{} }

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "memory" }

// Dial connects and waits until the listener accepts the connection. It returns an
// error when the listener is closed.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed.Signaled():
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: l.Addr(), Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Client returns an HTTP client that sends every request to this listener, for any host
// name, and uses a new connection for each.
func (l *Listener) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) },
	}}
}

// Held is a handler that holds every request until the test releases it, so that the
// test can have a request in flight for as long as it wants.
type Held struct {
	next     http.Handler
	arrived  fsm.Signal
	released fsm.Signal
}

// Hold returns a handler that holds requests before it passes them to next. A nil next
// answers 200. When the client goes away or the App cuts the request, the request's
// context releases it.
func Hold(next http.Handler) *Held {
	if next == nil {
		next = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	}
	return &Held{next: next}
}

// ServeHTTP holds the request and gives it to the next handler once it is released.
func (h *Held) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h.arrived.Signal()
	select {
	case <-h.released.Signaled():
	case <-req.Context().Done():
	}
	h.next.ServeHTTP(w, req)
}

// Arrived returns a channel that is closed when the handler holds the first request.
func (h *Held) Arrived() <-chan struct{} { return h.arrived.Signaled() }

// Release releases the held requests. After that the handler holds none. A second call
// does nothing.
func (h *Held) Release() { h.released.Signal() }

// Answer is the answer to a request, once it has come.
type Answer struct {
	t    TB
	url  string
	done chan struct{}
	resp *http.Response
	body string
	err  error
	took time.Duration
}

// Get sends a GET in a goroutine of its own and returns at once.
func Get(t TB, client *http.Client, url string) *Answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatalf("lifecycletest: %v", err)
	}
	return Send(t, client, req)
}

// Send sends a request in a goroutine of its own and returns at once. When the test ends
// it cancels a request that has no answer yet.
func Send(t TB, client *http.Client, req *http.Request) *Answer {
	t.Helper()
	a := &Answer{t: t, url: req.URL.String(), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(req.Context())
	began := time.Now()
	go func() {
		defer close(a.done)
		defer cancel()
		defer func() { a.took = time.Since(began) }()
		resp, err := client.Do(req.WithContext(ctx))
		if err != nil {
			a.err = err
			return
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		a.resp, a.body, a.err = resp, string(body), err
	}()
	t.Cleanup(func() {
		cancel()
		<-a.done
	})
	return a
}

// Wait waits for the answer and returns the response, the body, which it has read and
// closed, and the error of the request.
func (a *Answer) Wait() (resp *http.Response, body string, err error) {
	a.t.Helper()
	a.await()
	return a.resp, a.body, a.err
}

func (a *Answer) await() {
	a.t.Helper()
	select {
	case <-a.done:
	case <-time.After(Patience):
		a.t.Fatalf("lifecycletest: no answer from %s in %v", a.url, Patience)
	}
}

// WantStatus waits for the answer and fails the test unless it has that status.
func (a *Answer) WantStatus(status int) {
	a.t.Helper()
	a.await()
	switch {
	case a.err != nil:
		a.t.Errorf("lifecycletest: %s: lost after %v: %v; want status %d", a.url, a.took, a.err, status)
	case a.resp.StatusCode != status:
		a.t.Errorf("lifecycletest: %s: status %d %s, want %d", a.url, a.resp.StatusCode, a.body, status)
	}
}
