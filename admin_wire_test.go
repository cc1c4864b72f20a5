package lifecycle

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
)

// pipes is a listener whose connections live in a synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// The health server's own timeouts are 5 s for a request and 10 s for an answer.
// They must not cut the answer to a preStop hook that waits for a window of a
// minute.
func TestPreStopOutlivesTheServersTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app, err := New(Config{
			HealthAddr: HealthOff, TerminationLog: "off", AdminToken: "0123456789abcdef",
			DrainInterval: time.Minute, DrainWait: WaitAlways,
		}, WithSignals(nil), WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan error, 1)
		go func() { over <- app.Run(context.Background()) }()
		<-app.Reached(PhaseRunning)

		ln, h := newPipes(), httpdrain.NewHealthServer("", app.Handler(), nil, nil)
		h.Use(ln)
		served := make(chan error, 1)
		go func() { served <- h.Serve() }()
		transport := &http.Transport{DialContext: ln.dial}

		req, err := http.NewRequest(http.MethodPost, "http://app/admin/prestop", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer 0123456789abcdef")
		began := time.Now()
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		_ = resp.Body.Close()
		if took := time.Since(began); took != time.Minute || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "over") {
			t.Errorf("answered after %v with %d %q, want 200 at the window's end", took, resp.StatusCode, body)
		}
		transport.CloseIdleConnections()
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}
