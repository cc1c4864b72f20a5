package stop

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/bench/internal/rawhttp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c" //nolint:staticcheck // deprecated, and what servers have
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
)

// The tests of this file measure what docs/reference/guarantees/app.md does not guarantee. They log the
// numbers that it states. HTTP2_STOPS says how many stops they measure.

// limited runs an App with what add adds to it, and returns its stop.
func limited(t *testing.T, cfg lifecycle.Config, add func(*lifecycle.App)) (a *lifecycle.App, stop func() error) {
	t.Helper()
	cfg.HealthAddr, cfg.TerminationLog = lifecycle.HealthOff, "off"
	a, err := lifecycle.New(cfg, lifecycle.WithLogger(slog.New(slog.DiscardHandler)), lifecycle.WithSignals(nil))
	if err != nil {
		t.Fatal(err)
	}
	add(a)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(context.Background()) }()
	<-a.Reached(lifecycle.PhaseRunning)
	return a, func() error {
		a.Stop(nil)
		return <-ended
	}
}

func loopback(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func echo(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }

// A client that was silent from T0 on loses a request that it sends as the server closes
// its connection. Here requests take 4 ms to the server, and clients pause for up to
// twice the window and Linger together.
func TestSilentClientsAreLost(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for many seconds: make test-long runs it")
	}
	const window, linger, late = 300 * time.Millisecond, 300 * time.Millisecond, 4 * time.Millisecond
	var sent, lost, stops int64
	for range siegeStops(t) {
		listeners := []net.Listener{loopback(t), loopback(t)}
		svc := &service{old: listeners[0].Addr().String(), successor: listeners[1].Addr().String()}
		var stop [2]func() error
		for i, ln := range listeners {
			_, stop[i] = limited(t, lifecycle.Config{DrainInterval: window, Linger: linger, AcceptQuiet: window / 4}, func(a *lifecycle.App) {
				a.Serve("http", &http.Server{Handler: http.HandlerFunc(echo)}, lifecycle.WithListener(ln))
			})
		}
		var nSent, nLost atomic.Int64
		over := make(chan struct{})
		var wg sync.WaitGroup
		for range keepAliveClients {
			wg.Go(func() {
				var c client
				defer c.close()
				for pause(rand.N(2*(window+linger)), over) {
					if c.nc != nil && c.gone() {
						c.close()
					}
					if c.nc == nil {
						nc, err := svc.dial()
						if err != nil {
							t.Error(err)
							return
						}
						c.nc = nc
						slow := newLateConn(nc)
						defer slow.Close()
						c.c = rawhttp.New(slow)
					}
					nSent.Add(1)
					_ = c.nc.SetDeadline(time.Now().Add(time.Minute))
					err := c.c.Do(keepAlive)
					if err != nil {
						nLost.Add(1)
					}
					if err != nil || c.c.Closes() {
						c.close()
					}
				}
			})
		}
		time.Sleep(2 * (window + linger))
		svc.moved.Store(true)
		if err := stop[0](); err != nil {
			t.Error(err)
		}
		close(over)
		wg.Wait()
		if err := stop[1](); err != nil {
			t.Error(err)
		}
		stops, sent, lost = stops+1, sent+nSent.Load(), lost+nLost.Load()
	}
	t.Logf("%d stops under %d clients: %d requests, %d lost", stops, keepAliveClients, sent, lost)
	if sent == 0 || lost > sent/4 {
		t.Error("more is lost than what the close of a connection meets")
	}
}

// Of requests that a client has sent at once, those behind the first one that is answered
// with Connection: close are not served.
func TestPipelinedRequestsAreLost(t *testing.T) {
	const conns, behind = 50, 9
	entered, release := make(chan struct{}, conns), make(chan struct{})
	ln := loopback(t)
	app, stop := limited(t, lifecycle.Config{DrainInterval: 300 * time.Millisecond, Linger: time.Second}, func(a *lifecycle.App) {
		a.Serve("http", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/first" {
				entered <- struct{}{}
				<-release
			}
			_, _ = io.WriteString(w, "served")
		})}, lifecycle.WithListener(ln))
	})
	var served atomic.Int64
	var wg sync.WaitGroup
	for range conns {
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = nc.Write(append([]byte("GET /first HTTP/1.1\r\nHost: test\r\n\r\n"), bytes.Repeat([]byte("GET / HTTP/1.1\r\nHost: test\r\n\r\n"), behind)...))
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer nc.Close()
			in := bufio.NewReader(nc)
			for closes := false; ; {
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					if !closes {
						t.Error("the last response did not say that it is the last")
					}
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				served.Add(1)
				closes = resp.Close
			}
		})
		<-entered
	}
	go func() {
		<-app.Draining()
		time.Sleep(100 * time.Millisecond) // until the server knows too
		close(release)
	}()
	if err := stop(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	t.Logf("%d connections with %d requests sent before T0: %d of %d served", conns, 1+behind, served.Load(), conns*(1+behind))
	if served.Load() != 2*conns {
		t.Error("want the one that was being served, and the next, which says close")
	}
}

// With a TLSNextProto function of one's own the GOAWAY has one step, and loses requests.
func TestOwnNextProtoLoses(t *testing.T) {
	own := http2Server{"own", true, func(_ testing.TB, srv *http.Server) {
		implementation := new(http2.Server) //nolint:staticcheck // deprecated, and what servers have
		srv.TLSConfig.NextProtos = []string{"h2", "http/1.1"}
		srv.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
			"h2": func(srv *http.Server, tc *tls.Conn, h http.Handler) {
				implementation.ServeConn(tc, &http2.ServeConnOpts{Handler: h, BaseConfig: srv}) //nolint:staticcheck // as above
			},
		}
	}}
	run := func(tb testing.TB, srv *http.Server, ln net.Listener) func() error {
		stop := http2App(tb, srv, ln)
		return func() error {
			if err := stop(); err != nil {
				tb.Log("a stop failed too:", err) // a connection that had no response hears nothing
			}
			return nil
		}
	}
	stops := siegeStops(t)
	sent, lost, why := siege{kind: own, run: run, stops: stops}.lay(t)
	t.Logf("%d stops, %d requests, %d lost %s", stops, sent, lost, why)
	if sent == 0 || lost > sent/4*3 {
		t.Error("more is lost than a GOAWAY in one step explains")
	}
}

// Clients that still connect when the listener closes are refused, or reset when the
// socket is one that was given.
func TestConnectsAtTheClose(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for many seconds: make test-long runs it")
	}
	for name, given := range map[string]bool{"own socket": false, "given socket": true} {
		t.Run(name, func(t *testing.T) {
			var made, reset, stops int
			for range siegeStops(t) {
				var opts []lifecycle.ServeOption
				if given {
					opts = append(opts, lifecycle.WithListener(loopback(t)))
				}
				cfg := lifecycle.Config{DrainInterval: 200 * time.Millisecond, AcceptQuiet: lifecycle.Off, Linger: time.Second}
				a, stop := limited(t, cfg, func(a *lifecycle.App) {
					a.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(echo)}, opts...)
				})
				addr := a.Addr("http").String()
				var mu sync.Mutex
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						for {
							nc, err := net.Dial("tcp", addr)
							if err != nil {
								return // refused: the listener is closed
							}
							_ = nc.SetDeadline(time.Now().Add(time.Minute))
							err = rawhttp.New(nc).Do(oneShot)
							_ = nc.Close()
							mu.Lock()
							if made++; err != nil {
								reset++
							}
							mu.Unlock()
						}
					})
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				wg.Wait()
				stops++
			}
			t.Logf("%d stops under 8 clients without a pause: %d connections, %d reset", stops, made, reset)
			if made == 0 || reset > 8*stops || !given && reset > 0 {
				t.Error("want one reset for each client at most, and none with the App's own socket")
			}
		})
	}
}

// A gRPC server behind a full LimitListener resets the clients that wait.
func TestGRPCBehindALimitResets(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for many seconds: make test-long runs it")
	}
	t.Parallel() // grpc waits 5 s for clients that acknowledge nothing
	const places, clients = 2, 10
	ln := loopback(t)
	_, stop := limited(t, lifecycle.Config{DrainInterval: 300 * time.Millisecond}, func(a *lifecycle.App) {
		a.GRPC("grpc", grpc.NewServer(), netutil.LimitListener(ln, places), nil)
	})
	var conns []net.Conn
	for range clients {
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(nc, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, nc)
	}
	time.Sleep(100 * time.Millisecond)
	if err := stop(); err != nil {
		t.Error(err)
	}
	reset := 0
	for _, nc := range conns {
		_ = nc.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, nc); errors.Is(err, syscall.ECONNRESET) {
			reset++
		}
		_ = nc.Close()
	}
	t.Logf("%d clients, %d places: %d reset", clients, places, reset)
	if reset > clients-places {
		t.Error("a client that was served was reset")
	}
}

// A client that sends its HTTP/2 preface in one segment with Upgrade: h2c is closed a second
// after the window, with its request in flight.
func TestEarlyPrefaceIsClosed(t *testing.T) {
	t.Parallel()
	const clients = 20
	entered, release := make(chan struct{}, clients), make(chan struct{})
	ln := loopback(t)
	_, stop := limited(t, lifecycle.Config{DrainInterval: 300 * time.Millisecond, Linger: time.Second}, func(a *lifecycle.App) {
		work := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			entered <- struct{}{}
			<-release // the window is over by then, and the second after it
			_, _ = io.WriteString(w, "served")
		})
		a.Serve("http", &http.Server{Handler: h2c.NewHandler(work, new(http2.Server))}, lifecycle.WithListener(ln)) //nolint:staticcheck // as above
	})
	var served atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprint(nc, "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
			http2.ClientPreface, "\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer nc.Close()
			if all, _ := io.ReadAll(nc); bytes.Contains(all, []byte("served")) {
				served.Add(1)
			}
		})
		<-entered
		if _, err := io.WriteString(nc, "\x00\x00\x00\x04\x01\x00\x00\x00\x00"); err != nil { // the server's SETTINGS are seen
			t.Fatal(err)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	close(release)
	t.Logf("%d clients: %d served", clients, served.Load())
	if served.Load() != 0 {
		t.Error("they are served: docs/reference/guarantees/app.md says that they are not")
	}
}

// A handler that writes its header through the writer below the App's does not say goodbye
// with it.
func TestUnwrappedHeaderSaysNoGoodbye(t *testing.T) {
	const clients = 50
	for name, want := range map[string]int{"own": clients, "unwrapped": 0} {
		t.Run(name, func(t *testing.T) {
			ln := loopback(t)
			a, stop := limited(t, lifecycle.Config{DrainWait: lifecycle.WaitAlways, DrainInterval: time.Minute, DrainQuiet: 300 * time.Millisecond}, func(a *lifecycle.App) {
				a.Serve("http", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if name == "unwrapped" {
						w = w.(interface{ Unwrap() http.ResponseWriter }).Unwrap() //nolint:forcetypeassert // the App's
					}
					w.WriteHeader(http.StatusOK)
				})}, lifecycle.WithListener(ln))
			})
			var conns []net.Conn
			for range clients {
				nc, err := net.Dial("tcp", ln.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, nc)
			}
			ended := make(chan error, 1)
			go func() { ended <- stop() }()
			<-a.Reached(lifecycle.PhaseDraining)
			said := 0
			for _, nc := range conns {
				_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
				resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
				if err != nil {
					t.Fatal(err)
				}
				if resp.Close {
					said++
				}
				_ = resp.Body.Close()
				_ = nc.Close()
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			t.Logf("%d of %d responses say goodbye", said, clients)
			if said != want {
				t.Errorf("want %d", want)
			}
		})
	}
}
