package lifecycle_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// limited is a listener like that of golang.org/x/net/netutil.LimitListener: it takes a
// connection from the kernel only when one of its places is free, and has no deadlines.
type limited struct {
	net.Listener
	places chan struct{}
	once   sync.Once
	done   chan struct{}
}

func limit(ln net.Listener, n int) net.Listener {
	return &limited{Listener: ln, places: make(chan struct{}, n), done: make(chan struct{})}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: c, release: func() { <-l.places }}, nil
}

func (l *limited) Close() error {
	err := l.Listener.Close()
	l.once.Do(func() { close(l.done) })
	return err
}

type limitedConn struct {
	net.Conn
	once    sync.Once
	release func()
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}

// exchange sends one request on conn and returns its answer.
func exchange(conn net.Conn, r *bufio.Reader, path string) (string, error) {
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: test\r\n\r\n", path); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// Two clients have the two places of a limited listener. Two more wait in the kernel,
// with their requests sent. The App serves these before it closes the listener, whether
// the first two are idle, in the middle of a request, or streams.
func TestClientsBehindALimitAreServed(t *testing.T) {
	for _, first := range []string{"/idle", "/busy", "/stream"} {
		t.Run(first[1:], func(t *testing.T) {
			t.Parallel()
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			cfg := small()
			cfg.Linger, cfg.ShutdownGrace = 600*time.Millisecond, time.Minute // a busy machine has time to serve
			r := newRig(t, cfg)
			r.Serve("http", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				switch req.URL.Path {
				case "/busy":
					time.Sleep(2 * time.Second) // longer than the window and Linger
				case "/stream":
					<-lifecycle.Stream(req.Context())
				}
				_, _ = io.WriteString(w, "served")
			})}, lifecycle.WithListener(limit(tcp, 2)))
			var wg sync.WaitGroup
			client := func(path string) {
				conn, err := net.Dial("tcp", tcp.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				wg.Go(func() {
					defer conn.Close()
					if body, err := exchange(conn, bufio.NewReader(conn), path); err != nil || body != "served" {
						t.Errorf("%s: got %q, %v", path, body, err)
					}
					if path == "/idle" {
						_, _ = conn.Read(make([]byte, 1)) // until the server closes
					}
				})
			}
			r.Go("clients", func(context.Context) error {
				<-r.Reached(lifecycle.PhaseRunning)
				client(first)
				client(first)
				for r.Status().Servers[0].Accepted < 2 || first == "/idle" && r.Status().Servers[0].InFlight > 0 {
					time.Sleep(time.Millisecond)
				}
				client("/waits")
				client("/waits")
				r.Stop(nil)
				return nil
			})
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			wg.Wait()
		})
	}
}
