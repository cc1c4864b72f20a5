package lifecycle_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// EndWindow moves the end of the window, within DrainMin and DrainMax.
func TestEndWindow(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name string
		at   time.Duration // of the call, from T0; -1: no call, -2: just before T0
		end  time.Duration // asked for, from T0
		busy time.Duration // a request is in flight until then
		held time.Duration // a drainer runs until then
		want time.Duration
		how  string
	}{
		{"not called", -1, 0, 0, 0, 10 * s, "full"},
		{"early", 0, 3 * s, 0, 0, 3 * s, "ended early"},
		{"in the past", 4 * s, s, 0, 0, 4 * s, "ended early"},
		{"before DrainMin", 0, s, 0, 0, 2 * s, "ended early"},
		{"at the end", 0, 10 * s, 0, 0, 10 * s, "full"},
		{"later", 0, 12 * s, 0, 0, 12 * s, "held longer"},
		{"after DrainMax", 0, time.Minute, 0, 0, 15 * s, "held longer"},
		{"a request in flight", 0, 3 * s, 5 * s, 0, 5 * s, "ended early"},
		{"an endless request", 0, 3 * s, 20 * s, 0, 10 * s, "full"},
		{"a drainer", 0, 3 * s, 0, 6 * s, 6 * s, "ended early"},
		{"later does not wait for a request", 0, 12 * s, 20 * s, 0, 12 * s, "held longer"},
		{"its own length again", 0, 3 * s, 0, 0, 10 * s, "full"},
		{"before T0", -2, s, 0, 0, 10 * s, "full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{DrainInterval: 10 * s, DrainMin: 2 * s, DrainMax: 15 * s, ShutdownGrace: 40 * s})
				ln := newPipeListener()
				r.Serve("http", &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					time.Sleep(test.busy + s)
				})}, lifecycle.WithListener(ln))
				r.OnDrain("drainer", lifecycle.DrainFunc(func(context.Context) error { time.Sleep(test.held); return nil }))
				if test.busy > 0 {
					r.after(s, func() { _ = ln.request() })
				}
				t0 := time.Now().Add(2 * s)
				r.after(2*s, func() {
					if test.at == -2 {
						r.EndWindow(t0.Add(test.end))
					}
					r.Stop(nil)
				})
				if test.name == "its own length again" {
					r.after(3*s, func() { r.EndWindow(time.Time{}) })
				}
				if test.at >= 0 {
					r.after(2*s+test.at+time.Millisecond, func() { r.EndWindow(t0.Add(test.end)) })
				}
				if err := r.Run(t.Context()); err != nil {
					t.Error(err)
				}
				// A look for the last client takes 50 ms.
				over := windowOver(t, r).Sub(t0)
				if over < test.want || over > test.want+60*time.Millisecond || r.Report().Window != test.how {
					t.Errorf("the window took %v and ended %q, want %v, %q", over, r.Report().Window, test.want, test.how)
				}
			})
		})
	}
}

// windowOver returns when the App logged the end of the window.
func windowOver(t *testing.T, r *rig) time.Time {
	t.Helper()
	for line := range strings.Lines(r.log.String()) {
		if stamp, _, ok := strings.Cut(strings.TrimPrefix(line, "time="), " "); ok && strings.Contains(line, "the drain window is over") {
			at, err := time.Parse(time.RFC3339, stamp)
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
	}
	t.Fatal("the log has no end of the window")
	return time.Time{}
}

// An early end takes no time from a connection that is open and idle: it is served as
// long as after a whole window.
func TestEndWindowLeavesOpenConnectionsTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		r := newRig(t, lifecycle.Config{DrainInterval: 10 * s, Linger: 3 * s})
		ln := newPipeListener()
		r.Serve("http", &http.Server{Handler: http.NotFoundHandler()}, lifecycle.WithListener(ln))
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.Dial(ctx) }}}
		defer client.CloseIdleConnections()
		ask := func() {
			resp, err := client.Get("http://app/")
			if err != nil {
				t.Errorf("after %v: %v", time.Since(r.began), err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body) // or the client would not use the connection again
			_ = resp.Body.Close()
		}
		r.after(s, ask)
		r.after(2*s, func() { r.Stop(nil) })
		r.after(2*s+time.Millisecond, func() { r.EndWindow(time.Now()) })
		r.after(2*s+12900*time.Millisecond, ask) // idle since T0 - 1 s
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(r.began) - 2*s; took < 12900*time.Millisecond || took > 13100*time.Millisecond {
			t.Errorf("the stop took %v, want as long as the connection was open", took)
		}
	})
}

// untilCut is a request that ends when the App cuts it.
var untilCut = http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })

// EndBy tells the App when it will be killed. The App ends before that, and every step
// gets its share of the time.
func TestEndBy(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name   string
		at     time.Duration // of the call, from T0
		by     time.Duration // from T0
		window time.Duration
		total  time.Duration // of the stop, whose parts all hang
	}{
		{"enough time", 0, 40 * s, 5 * s, 25 * s},
		{"less", 0, 13500 * time.Millisecond, 2500 * time.Millisecond, 12500 * time.Millisecond},
		{"enough time for a longer window", 0, 27 * s, 5 * s, 25 * s},
		{"late", 4 * s, 12 * s, 4 * s, 11272 * time.Millisecond},
		{"two seconds", 0, 2 * s, 370 * time.Millisecond, 1851 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{})
				ln := newPipeListener()
				r.Serve("http", &http.Server{Handler: untilCut}, lifecycle.WithListener(ln))
				r.Go("unit", untilCancelled)
				r.OnShutdown("hook", func(ctx context.Context) error { <-ctx.Done(); return nil })
				r.after(s, func() { _ = ln.request() })
				t0 := time.Now().Add(2 * s)
				r.after(2*s, func() { r.Stop(nil) })
				r.after(2*s+test.at+time.Millisecond, func() { r.EndBy(t0.Add(test.by)); r.EndBy(t0.Add(test.by + s)) })
				_ = r.Run(t.Context()) // the request is cut
				if got := windowOver(t, r).Sub(t0); got < test.window-10*time.Millisecond || got > test.window+10*time.Millisecond {
					t.Errorf("the window took %v, want %v", got, test.window)
				}
				if got := time.Since(t0); got > test.by || got < test.total-20*time.Millisecond || got > test.total+20*time.Millisecond {
					t.Errorf("the stop took %v, want %v", got, test.total)
				}
			})
		})
	}
}

// A stop that does not wait for the window has less time too: its drainers have the window that is
// left, so that units and hooks keep theirs.
func TestEndByWithoutAWait(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name string
		cfg  lifecycle.Config
		add  func(r *rig)
	}{
		{"DrainWait never", lifecycle.Config{DrainWait: lifecycle.WaitNever}, serveNothing},
		{"nothing listens", lifecycle.Config{HealthAddr: lifecycle.HealthOff}, func(*rig) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, test.cfg)
				test.add(r)
				r.Go("unit", untilCancelled)
				var drained, hooked time.Duration
				t0 := time.Now().Add(2 * s)
				r.OnDrain("hangs", lifecycle.DrainFunc(func(ctx context.Context) error {
					<-ctx.Done()
					drained = time.Since(t0)
					return nil
				}))
				r.OnShutdown("hook", func(ctx context.Context) error {
					end, _ := ctx.Deadline()
					hooked = time.Until(end)
					return nil
				})
				r.after(2*s, func() { r.Stop(nil) })
				r.after(2*s+time.Millisecond, func() { r.EndBy(t0.Add(3 * s)) })
				if err := r.Run(t.Context()); err != nil {
					t.Error(err)
				}
				if drained > s {
					t.Errorf("the drainer had %v of the 3s after which the process is killed", drained)
				}
				if hooked < s/4 {
					t.Errorf("the hook had %v", hooked)
				}
			})
		})
	}
}

// A window that ends early leaves its rest to requests, but never more than the time until the
// process is killed.
func TestEndByAfterAnEarlyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		r := newRig(t, lifecycle.Config{DrainMin: s})
		ln := newPipeListener()
		r.Serve("http", &http.Server{Handler: untilCut}, lifecycle.WithListener(ln))
		r.OnShutdown("hook", func(ctx context.Context) error { <-ctx.Done(); return nil })
		t0 := time.Now().Add(20 * s)
		r.after(20*s, func() { r.Stop(nil) })
		r.after(20*s+time.Millisecond, func() { r.EndBy(t0.Add(24 * s)); r.EndWindow(t0) })
		r.after(21*s+500*time.Millisecond, func() { _ = ln.request() })
		_ = r.Run(t.Context()) // the request is cut
		if got := windowOver(t, r).Sub(t0); got > s+10*time.Millisecond {
			t.Fatalf("the window took %v, want %v: it did not end early", got, s)
		}
		if got := time.Since(t0); got < 20*s || got > 24*s {
			t.Errorf("the stop took %v, want most of the 24s after which the process is killed, and no more", got)
		}
	})
}

// DrainMax belongs to the budget, and is not shorter than the window.
func TestDrainMaxIsValidated(t *testing.T) {
	const s = time.Second
	wantErr(t, lifecycle.Config{DrainInterval: 5 * s, DrainMax: 4 * s}.Validate(), nil, "DrainMax (4s) is shorter than the window, DrainInterval (5s)")
	wantErr(t, lifecycle.Config{DrainMax: 9 * s, TerminationGrace: 30 * s}.Validate(), nil, "PreStop + DrainMax + ShutdownGrace + margin is 0s + 9s + 20s + 2s = 31s")
	for _, cfg := range []lifecycle.Config{{DrainMax: 8 * s, TerminationGrace: 30 * s}, {DrainMax: lifecycle.Off}, {DrainInterval: lifecycle.Off, DrainMax: 3 * s}} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// Slices that no unit and no hook uses belong to requests: an upload has nearly all of
// ShutdownGrace in an App with a server alone, and less when others need their slices.
func TestUnusedSlicesBelongToRequests(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name  string
		parts func(r *rig)
		least time.Duration // of the time that a request has after the window
		most  time.Duration
	}{
		{"a server alone", func(*rig) {}, 18 * s, 20 * s},
		{"and a hook", func(r *rig) { r.OnShutdown("db", func(context.Context) error { return nil }) }, 13 * s, 15 * s},
		{"and a unit", func(r *rig) { r.Go("u", untilCancelled) }, 14 * s, 15 * s},
		{"and both", func(r *rig) {
			r.Go("u", untilCancelled)
			r.OnShutdown("db", func(context.Context) error { return nil })
		}, 9 * s, 10 * s},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{DrainInterval: 5 * s, ShutdownGrace: 20 * s})
				ln := newPipeListener()
				ended := make(chan time.Duration, 1)
				r.Serve("http", &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
					<-req.Context().Done()
					ended <- time.Since(r.began) - 7*s // after the window
				})}, lifecycle.WithListener(ln))
				test.parts(r)
				r.after(s, func() { _ = ln.request() })
				r.after(2*s, func() { r.Stop(nil) })
				if err := r.Run(t.Context()); lifecycle.ExitCode(err) != lifecycle.ExitCut {
					t.Errorf("Run returned %v, want a request that was cut", err)
				}
				cut := <-ended
				if cut < test.least || cut > test.most {
					t.Errorf("the request had %v, want %v to %v", cut, test.least, test.most)
				}
			})
		})
	}
}

// A time that has passed leaves the stop a second: its hooks still run.
func TestEndByATimeThatHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{})
		r.Serve("http", &http.Server{Handler: untilCut}, lifecycle.WithListener(newPipeListener()))
		hooked := false
		r.OnShutdown("hook", func(context.Context) error { hooked = true; return nil })
		t0 := time.Now().Add(2 * time.Second)
		r.after(2*time.Second, func() { r.Stop(nil) })
		r.after(2*time.Second+time.Millisecond, func() { r.EndBy(t0.Add(-time.Minute)) })
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(t0); took > time.Second || !hooked {
			t.Errorf("the stop took %v, and the hook ran: %v", took, hooked)
		}
	})
}
