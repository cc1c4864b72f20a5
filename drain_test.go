package lifecycle_test

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
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// Tests of the App's servers during a drain. Tests that measure time run in a synctest
// bubble with pipes; tests of sockets use real ones.

// serveNothing adds a server that listens and has no clients.
func serveNothing(r *rig) {
	r.Serve("http", &http.Server{Handler: http.NotFoundHandler()}, lifecycle.WithListener(newPipeListener()))
}

// holdingGRPC has the shape of a grpc.Server that keeps its connections open
// for as long as their clients do.
type holdingGRPC struct{ quit chan struct{} }

func (g holdingGRPC) Serve(ln net.Listener) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			<-g.quit
			return nil //nolint:nilerr // as grpc does once it was told to stop
		}
		go func() { _, _ = io.Copy(io.Discard, c); c.Close() }()
	}
}

func (g holdingGRPC) GracefulStop() { close(g.quit) }
func (g holdingGRPC) Stop()         {}

// A drainer that asks whether the App drains is told so, also as the very first one to ask:
// an answer that says "serving" then sends it another client.
func TestDrainersSeeThatTheAppDrains(t *testing.T) {
	for range 500 {
		app, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainMin: lifecycle.Off}, lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		app.OnDrain("asks", lifecycle.DrainFunc(func(ctx context.Context) error {
			select {
			case <-lifecycle.Draining(ctx):
				return nil
			default:
				return errors.New("the App does not drain, says Draining")
			}
		}))
		app.Go("stops", func(context.Context) error { app.Stop(nil); return nil })
		if err := app.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// DrainQuiet ends the window only when the App serves no client any more, and no
// client has come for that long.
func TestDrainQuietWaitsForRequests(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name string
		use  func(r *rig, ln *pipeListener) // begins 1 s before T0
		grpc bool
		want time.Duration // of the window, at the least
	}{
		{"a request in flight", func(r *rig, ln *pipeListener) {
			if err := ln.request(); err != nil { // which takes 6.5 s
				r.t.Error(err)
			}
		}, false, 5500 * time.Millisecond},
		{"a request that arrives", func(r *rig, ln *pipeListener) {
			time.Sleep(2500 * time.Millisecond)
			if err := ln.request(); err != nil { // which takes no time
				r.t.Error(err)
			}
		}, false, 3500 * time.Millisecond},
		{"a connection that was taken over", func(r *rig, ln *pipeListener) {
			c := ln.dial()
			defer c.Close()
			_, _ = io.WriteString(c, "GET /hijack HTTP/1.1\r\nHost: test\r\n\r\n")
			_, _ = io.ReadAll(c) // closed after 6.5 s
		}, false, 5500 * time.Millisecond},
		{"a connection to a gRPC server", func(_ *rig, ln *pipeListener) {
			c := ln.dial()
			time.Sleep(6500 * time.Millisecond)
			c.Close()
		}, true, 5500 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{
					DrainInterval: 30 * s, DrainQuiet: 2 * s, DrainMin: lifecycle.Off, Linger: lifecycle.Off, AcceptQuiet: lifecycle.Off,
				})
				ln := newPipeListener()
				if test.grpc {
					r.GRPC("grpc", holdingGRPC{make(chan struct{})}, ln, nil)
				} else {
					r.Serve("http", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
						if req.URL.Path == "/hijack" {
							c, _, err := w.(http.Hijacker).Hijack()
							if err != nil {
								t.Error(err)
								return
							}
							defer c.Close()
						}
						if !draining(r) {
							time.Sleep(6500 * time.Millisecond)
						}
					})}, lifecycle.WithListener(ln))
				}
				r.after(s, func() { test.use(r, ln) })
				r.after(2*s, func() { r.Stop(nil) })
				took := make(chan time.Duration, 1)
				go func() {
					<-ln.closed // at the window's end, where draining goes on for what is in flight
					took <- time.Since(r.began) - 2*s
				}()
				if err := r.Run(t.Context()); err != nil {
					t.Error(err)
				}
				// A quiet window is noticed within a quarter of a second.
				if got := <-took; got < test.want || got > test.want+250*time.Millisecond || r.Report().Window != "quiet" {
					t.Errorf("the window took %v and ended %q, want %v and a little, quiet", got, r.Report().Window, test.want)
				}
			})
		})
	}
}

// Requests in flight may take the time that is not reserved for units and hooks.
func TestRequestsInFlightLeaveTheSlicesOfUnitsAndHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		r := newRig(t, lifecycle.Config{DrainInterval: 5 * s, ShutdownGrace: 20 * s, UnitSlice: 4 * s, HookSlice: 3 * s, Linger: 2 * s})
		ln := newPipeListener()
		r.Serve("http", &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			r.mark("request cut")
		})}, lifecycle.WithListener(ln))
		r.Go("unit", func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(4*s - time.Millisecond) // all that it has
			r.mark("unit returns")
			return nil
		})
		r.OnShutdown("hook", func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			r.mark("hook with %v", time.Until(deadline))
			return nil
		})
		r.after(s, func() { _ = ln.request() })
		r.after(2*s, func() { r.began = time.Now(); r.Stop(nil) })
		wantErr(t, r.Run(t.Context()), context.DeadlineExceeded, "1 requests cut")
		r.wantTrail("18s request cut", "21.999s unit returns", "21.999s hook with 3.001s")
	})
}

// closingListener says when it is closed, before it is.
type closingListener struct {
	*net.TCPListener
	closing func()
}

func (l closingListener) Close() error {
	l.closing()
	return l.TCPListener.Close()
}

// The test follows readiness on the wire, the listener and an open connection from T0 to
// the end. Readiness goes down at T0, or exactly when the listener closes with
// DrainReadiness serving. The listener closes AcceptQuiet after the window or later, and
// the connection is still served then.
func TestReadinessListenerAndLingerOnTheWire(t *testing.T) {
	for _, mode := range []lifecycle.DrainReadiness{lifecycle.ReadinessDown, lifecycle.ReadinessServing} {
		t.Run(string(mode), func(t *testing.T) {
			cfg := small()
			cfg.HealthAddr, cfg.DrainReadiness = "127.0.0.1:0", mode
			cfg.DrainInterval = 4 * time.Second                            // the drainer's requests fit on a busy machine
			cfg.Linger, cfg.ShutdownGrace = 10*time.Second, 30*time.Second // cut short by the connection's end
			inWindow := "503"
			if mode == lifecycle.ReadinessServing {
				inWindow = "200"
			}
			r := newRig(t, cfg)
			ask := func(when, plane, want string) {
				if got := fetch(t, "http://"+r.HealthAddr().String()+plane); !strings.HasPrefix(got, want) {
					t.Errorf("%s %s is %s, want %s", when, plane, got, want)
				}
			}
			below, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var windowEnd time.Time
			drained, closed := make(chan struct{}), make(chan struct{})
			ln := closingListener{below.(*net.TCPListener), func() {
				select {
				case <-closed: // for the second time
					return
				default:
				}
				at := time.Now()
				<-drained
				if quiet := at.Sub(windowEnd); quiet < cfg.AcceptQuiet {
					t.Errorf("the listener closes %v after the window, want at least %v", quiet, cfg.AcceptQuiet)
				}
				ask("as the listener closes", "/readyz", inWindow)
				close(closed)
			}}
			r.Serve("http", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })},
				lifecycle.WithListener(ln))
			r.OnDrain("prober", lifecycle.DrainFunc(func(ctx context.Context) error {
				defer close(drained)
				windowEnd, _ = ctx.Deadline()
				ask("in the window", "/readyz", inWindow)
				ask("in the window", "/livez", "200")
				return nil
			}))
			r.Go("client", func(ctx context.Context) error {
				<-r.Reached(lifecycle.PhaseRunning)
				ask("before", "/readyz", "200")
				c, err := net.Dial("tcp", below.Addr().String())
				if err != nil {
					return err
				}
				defer c.Close()
				in := bufio.NewReader(c)
				request := func() error {
					if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
						return err
					}
					resp, err := http.ReadResponse(in, nil)
					if err != nil {
						return err
					}
					defer resp.Body.Close()
					_, err = io.ReadAll(resp.Body)
					return err
				}
				if err := request(); err != nil {
					return err
				}
				r.Stop(nil)
				select {
				case <-closed:
				case <-ctx.Done():
					t.Error("units are told to stop before the listener has closed")
					return nil
				}
				for !strings.HasPrefix(fetch(t, "http://"+r.HealthAddr().String()+"/readyz"), "503") && ctx.Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
				time.Sleep(100 * time.Millisecond) // an end without a linger would have come by now
				if err := request(); err != nil {
					t.Errorf("once the listener is closed and readiness is down, on an open connection: %v", err)
				}
				ask("while it lingers", "/livez", "200")
				return nil
			})
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if c, err := net.Dial("tcp", below.Addr().String()); err == nil {
				c.Close()
				t.Error("it still listens")
			}
		})
	}
}
