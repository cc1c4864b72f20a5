package cron_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cron"
	"github.com/pleme-io/lifecycle-go/internal/asynclog"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bubble runs a test with a real server whose clock is the bubble's, at a time. serve starts the
// server on the same folder each time; the function that it returns stops it.
func bubble(t *testing.T, at time.Time, test func(t *testing.T, serve func() (jetstream.JetStream, func()))) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cron-")
	must(t, err)
	defer os.RemoveAll(dir)
	forget := func() { // nats.go keeps timers for the process: those of one bubble are of no use in another
		runtime.GC()
		runtime.GC()
	}
	forget()
	defer forget()
	ats.Register() // the server's clock must not be in the bubble
	defer ats.Unregister()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(at))
		test(t, func() (jetstream.JetStream, func()) {
			cfg := broker.Config{
				StoreDir: filepath.Join(dir, "store"), Sync: broker.SyncInterval, Logger: slog.New(slog.DiscardHandler),
				Streams: []jetstream.StreamConfig{cron.Stream("CRON")},
			}
			b, err := broker.Connect(context.Background(), cfg)
			must(t, err)
			return b.JetStream(), func() { _ = b.Close(context.Background()) }
		})
	})
}

// times collects when a schedule has fired.
type times struct {
	mu  sync.Mutex
	all []string
}

func (s *times) note(_ context.Context, t cron.Tick) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, t.At.UTC().Truncate(time.Minute).Format("Jan 2 15:04"))
	return nil
}

func (s *times) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

func run(t *testing.T, js jetstream.JetStream, name string, do func(context.Context, cron.Tick) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- cron.Handle(ctx, js, "CRON", name, do) }()
	return func() {
		cancel()
		must(t, <-ended)
	}
}

// TestZonesAndDaylightSavingTime goes through the nights in which clocks change. Times are in UTC.
func TestZonesAndDaylightSavingTime(t *testing.T) {
	for _, one := range []struct {
		name, cron, zone, from string
		hours                  int
		want                   []string
	}{
		{"no zone", "30 2 * * *", "", "2000-03-26 02:00", 1, []string{"Mar 26 02:30"}},
		{"a zone, on a Friday", "0 9 * * MON-FRI", "Asia/Kolkata", "2000-01-07 03:00", 1, []string{"Jan 7 03:30"}},
		{"a zone, on a Saturday", "0 9 * * MON-FRI", "Asia/Kolkata", "2000-01-08 03:00", 1, nil},
		{"the day before the clock skips the time", "30 2 * * *", "Europe/Berlin", "2000-03-25 01:00", 1, []string{"Mar 25 01:30"}},
		{"the clock skips the time", "30 2 * * *", "Europe/Berlin", "2000-03-26 00:00", 3, nil},
		{"the day after", "30 2 * * *", "Europe/Berlin", "2000-03-27 00:00", 1, []string{"Mar 27 00:30"}},
		{"the clock skips another time", "30 3 * * *", "Europe/Berlin", "2000-03-26 00:00", 2, []string{"Mar 26 01:30"}},
		{"the clock shows the time twice", "30 2 * * *", "Europe/Berlin", "2000-10-29 00:00", 3, []string{"Oct 29 00:30", "Oct 29 01:30"}},
		{"each hour", "0 * * * *", "Europe/Berlin", "2000-10-28 23:30", 3, []string{"Oct 29 00:00", "Oct 29 01:00", "Oct 29 02:00"}},
	} {
		t.Run(one.name, func(t *testing.T) {
			from, err := time.Parse("2006-01-02 15:04", one.from)
			must(t, err)
			bubble(t, from, func(t *testing.T, serve func() (jetstream.JetStream, func())) {
				js, stop := serve()
				defer stop()
				must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: one.cron, Zone: one.zone}))
				var got times
				end := run(t, js, "s", got.note)
				defer end()
				time.Sleep(time.Duration(one.hours)*time.Hour + time.Minute)
				if !slices.Equal(got.list(), one.want) {
					t.Errorf("%s in %q fired at %q, want %q", one.cron, one.zone, got.list(), one.want)
				}
			})
		})
	}
}

// TestMissedTimesFireOnce has hours without a process, and hours without a server.
func TestMissedTimesFireOnce(t *testing.T) {
	bubble(t, time.Date(2000, 1, 3, 0, 30, 0, 0, time.UTC), func(t *testing.T, serve func() (jetstream.JetStream, func())) {
		js, stop := serve()
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "@hourly"}))
		time.Sleep(4 * time.Hour) // no process looks
		var got times
		end := run(t, js, "s", got.note)
		time.Sleep(time.Hour)
		end()
		stop()
		time.Sleep(4*time.Hour + 20*time.Minute) // no server runs
		js, stop = serve()
		defer stop()
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "@hourly"}))
		end = run(t, js, "s", got.note)
		time.Sleep(time.Hour)
		end()
		want := []string{"Jan 3 04:00", "Jan 3 05:00", "Jan 3 09:50", "Jan 3 10:00"}
		if !slices.Equal(got.list(), want) {
			t.Errorf("it fired at %q, want %q", got.list(), want)
		}
	})
}

// TestFailureIsTriedAgainUntilTheNextTime has a function that fails and panics.
func TestFailureIsTriedAgainUntilTheNextTime(t *testing.T) {
	bubble(t, time.Date(2000, 1, 3, 0, 30, 0, 0, time.UTC), func(t *testing.T, serve func() (jetstream.JetStream, func())) {
		js, stop := serve()
		defer stop()
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "0 * * * *", Data: []byte("x")}))
		var mu sync.Mutex
		ids, attempts := map[string]int{}, 0
		do := func(_ context.Context, tick cron.Tick) error {
			mu.Lock()
			defer mu.Unlock()
			ids[tick.ID]++
			attempts++
			switch {
			case string(tick.Data) != "x" || tick.Schedule != "s" || tick.Attempt != ids[tick.ID]:
				t.Errorf("%+v, want attempt %d", tick, ids[tick.ID])
			case tick.Attempt == 1:
				panic("first")
			case len(ids) == 1:
				return errors.New("until the next time")
			}
			return nil
		}
		end, other := run(t, js, "s", do), run(t, js, "s", do)
		defer end()
		defer other()
		time.Sleep(2 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if len(ids) != 2 || attempts < 15 || attempts > 30 {
			t.Errorf("%d calls of %v, want many of the first and two of the second", attempts, ids)
		}
	})
}

// TestFailureIsLogged has a function that fails, and then one that ignores the end of its context: Handle
// logs the failure with the App's logger, and does not wait for ever.
func TestFailureIsLogged(t *testing.T) {
	bubble(t, time.Date(2000, 1, 3, 0, 30, 0, 0, time.UTC), func(t *testing.T, serve func() (jetstream.JetStream, func())) {
		js, stop := serve()
		defer stop()
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "0 * * * *"}))
		var text strings.Builder
		log := slog.New(slog.NewTextHandler(&text, nil))
		ctx, cancel := context.WithCancel(asynclog.WithLogger(context.Background(), log))
		began, release := make(chan bool, 1), make(chan bool)
		ended := make(chan error, 1)
		go func() {
			ended <- cron.Handle(ctx, js, "CRON", "s", func(_ context.Context, tick cron.Tick) error {
				if tick.Attempt == 1 {
					return errors.New("the disk is full")
				}
				began <- true
				<-release
				return nil
			})
		}()
		<-began
		cancel()
		must(t, <-ended)
		close(release)
		if said := text.String(); strings.Count(said, "a schedule's function failed") != 1 || !strings.Contains(said, "the disk is full") {
			t.Errorf("the log says %s", said)
		}
	})
}

// TestLongCallKeepsItsTime has a call that takes longer than the server's patience.
func TestLongCallKeepsItsTime(t *testing.T) {
	bubble(t, time.Date(2000, 1, 3, 0, 30, 0, 0, time.UTC), func(t *testing.T, serve func() (jetstream.JetStream, func())) {
		js, stop := serve()
		defer stop()
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "0 0 * * *"}))
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "0 1 * * *"})) // in its place
		calls := 0
		end := run(t, js, "s", func(context.Context, cron.Tick) error {
			calls++
			time.Sleep(10 * time.Minute)
			return nil
		})
		time.Sleep(time.Hour)
		end()
		if calls != 1 {
			t.Errorf("%d calls, want one", calls)
		}
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "@hourly"}))
		must(t, cron.Remove(t.Context(), js, "CRON", "s"))
		must(t, cron.Remove(t.Context(), js, "CRON", "s"))
		var got times
		end = run(t, js, "s", got.note)
		time.Sleep(2 * time.Hour)
		end()
		if len(got.list()) > 0 {
			t.Errorf("a removed schedule fired at %q", got.list())
		}
	})
}

// deadEnd is a connection that loses all in both directions when it is cut, and does not break.
type deadEnd struct {
	net.Conn
	isCut *atomic.Bool
}

func (c deadEnd) Write(b []byte) (int, error) {
	if c.isCut.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c deadEnd) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.isCut.Load() {
			return n, err
		}
	}
}

// wire connects to the server of another connection.
type wire struct {
	to    nats.InProcessConnProvider
	isCut *atomic.Bool
}

func (w wire) InProcessConn() (net.Conn, error) {
	conn, err := w.to.InProcessConn()
	return deadEnd{conn, w.isCut}, err
}

// overAWire connects to the server of js over a wire that the test can cut.
func overAWire(t *testing.T, js jetstream.JetStream, isCut *atomic.Bool) (cuttable jetstream.JetStream, hangUp func()) {
	t.Helper()
	opts := js.Conn().Opts
	nc, err := nats.Connect("", nats.InProcessServer(wire{opts.InProcessServer, isCut}),
		nats.Token(opts.Token), nats.NoReconnect(), nats.PingInterval(time.Hour))
	must(t, err)
	cuttable, err = jetstream.New(nc)
	must(t, err)
	return cuttable, nc.Close
}

// The server gives a tick to another process when it hears no more of the first one. That one has ended
// its call by then, also when its connection only seems to work.
func TestCallEndsBeforeTheNextBegins(t *testing.T) {
	bubble(t, time.Date(2000, 1, 3, 0, 30, 0, 0, time.UTC), func(t *testing.T, serve func() (jetstream.JetStream, func())) {
		js, stop := serve()
		defer stop()
		var isCut atomic.Bool
		first, hangUp := overAWire(t, js, &isCut)
		defer hangUp()
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "0 1 * * *"}))
		begun := make(chan struct{})
		var ended, again time.Time
		done := make(chan error)
		go func() {
			done <- cron.Handle(t.Context(), first, "CRON", "s", func(ctx context.Context, _ cron.Tick) error {
				close(begun)
				<-ctx.Done()
				ended = time.Now()
				return ctx.Err()
			})
		}()
		<-begun
		time.Sleep(time.Minute) // the server hears of the call
		isCut.Store(true)
		end := run(t, js, "s", func(context.Context, cron.Tick) error {
			again = time.Now()
			return nil
		})
		time.Sleep(10 * time.Minute)
		end()
		select {
		case err := <-done:
			if err == nil || again.IsZero() || !ended.Before(again) {
				t.Errorf("the first call ended at %v (%v), the next began at %v", ended, err, again)
			}
		default:
			t.Errorf("the first call goes on; the next began at %v", again)
			first.Conn().Close()
			<-done
		}
	})
}

// A connection that comes back after one lost heartbeat is no reason to end the call.
func TestCallGoesOnAfterALostHeartbeat(t *testing.T) {
	at := time.Date(2000, 1, 3, 0, 30, 0, 0, time.UTC)
	bubble(t, at, func(t *testing.T, serve func() (jetstream.JetStream, func())) {
		js, stop := serve()
		defer stop()
		var isCut atomic.Bool
		first, hangUp := overAWire(t, js, &isCut)
		defer hangUp()
		must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "0 1 * * *"}))
		begun := make(chan struct{})
		calls, cause := 0, error(nil)
		end := run(t, first, "s", func(ctx context.Context, _ cron.Tick) error {
			if calls++; calls == 1 {
				close(begun)
			}
			time.Sleep(5 * time.Minute)
			cause = ctx.Err()
			return nil
		})
		<-begun
		time.Sleep(68500 * time.Millisecond) // a heartbeat comes each ten seconds
		isCut.Store(true)
		time.Sleep(3 * time.Second)
		isCut.Store(false)
		time.Sleep(10 * time.Minute)
		end()
		if calls != 1 || cause != nil {
			t.Errorf("%d calls, the last one ended by %v, want one to its end", calls, cause)
		}
	})
}

// When a schedule is removed, the server takes no more heartbeats of its call, and gives the tick to
// no other process: the call goes on.
func TestCallGoesOnWhenItsScheduleIsRemoved(t *testing.T) {
	for name, result := range map[string]error{"it succeeds": nil, "it fails": errors.New("the disk is full")} {
		t.Run(name, func(t *testing.T) {
			at := time.Date(2000, 1, 3, 0, 30, 0, 0, time.UTC)
			bubble(t, at, func(t *testing.T, serve func() (jetstream.JetStream, func())) {
				js, stop := serve()
				defer stop()
				must(t, cron.Set(t.Context(), js, "CRON", cron.Schedule{Name: "s", Cron: "0 1 * * *"}))
				begun, done := make(chan struct{}), make(chan error, 1)
				calls, cause := 0, error(nil)
				go func() {
					done <- cron.Handle(t.Context(), js, "CRON", "s", func(ctx context.Context, _ cron.Tick) error {
						if calls++; calls == 1 {
							close(begun)
						}
						time.Sleep(5 * time.Minute)
						cause = ctx.Err()
						return result
					})
				}()
				<-begun
				time.Sleep(time.Minute)
				must(t, cron.Remove(t.Context(), js, "CRON", "s"))
				if err := <-done; err == nil || calls != 1 || cause != nil {
					t.Errorf("Handle returned %v after %d calls, the last one ended by %v; want an error after one to its end",
						err, calls, cause)
				}
			})
		})
	}
}

func TestWrongSchedulesAreRefused(t *testing.T) {
	plain := cron.Stream("PLAIN")
	plain.AllowMsgSchedules = false
	b := brokertest.Server(t, broker.Config{Streams: []jetstream.StreamConfig{cron.Stream("CRON"), plain}})
	js, ctx := b.JetStream(), t.Context()
	for _, one := range []struct {
		stream, name, cron, zone, want string
		is                             error
	}{
		{"CRON", "a b", "@daily", "", "1 to 64 letters", cron.ErrInvalid},
		{"CRON", "", "@daily", "", "1 to 64 letters", cron.ErrInvalid},
		{"CRON", "s", "", "", "want five fields", cron.ErrInvalid},
		{"CRON", "s", "every day", "", "want five fields", cron.ErrInvalid},
		{"CRON", "s", "61 * * * *", "", "want five fields", cron.ErrInvalid},
		{"CRON", "s", "* * * *", "", "want five fields", cron.ErrInvalid},
		{"CRON", "s", "0 0 30 2 *", "", "want five fields", cron.ErrInvalid},
		{"CRON", "s", "@daily", "Mars/Base", `no time zone "Mars/Base"`, cron.ErrInvalid},
		{"CRON", "s", "@every 1h", "Europe/Berlin", "takes no zone", cron.ErrInvalid},
		{"CRON", "s", "@every 1ms", "", "want five fields", cron.ErrInvalid},
		{"PLAIN", "s", "@daily", "", "declare it with cron.Stream", cron.ErrInvalid},
		{"NONE", "s", "@daily", "", "declare it to the broker", jetstream.ErrStreamNotFound},
	} {
		err := cron.Set(ctx, js, one.stream, cron.Schedule{Name: one.name, Cron: one.cron, Zone: one.zone})
		if !errors.Is(err, one.is) || !strings.Contains(err.Error(), one.want) {
			t.Errorf("%q in %q of %s: %v, want %q", one.cron, one.zone, one.stream, err, one.want)
		}
	}
	for name, do := range map[string]func(context.Context, cron.Tick) error{"": func(context.Context, cron.Tick) error { return nil }, "s": nil} {
		if err := cron.Handle(ctx, js, "CRON", name, do); !errors.Is(err, cron.ErrInvalid) {
			t.Errorf("Handle: %v", err)
		}
	}
	if err := cron.Handle(ctx, js, "NONE", "s", func(context.Context, cron.Tick) error { return nil }); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("Handle: %v", err)
	}
}

// TestScheduleOnRealTime sets a schedule for each second, twice, and hears it.
func TestScheduleOnRealTime(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Streams: []jetstream.StreamConfig{cron.Stream("CRON")}})
	ticks := make(chan cron.Tick)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- cron.Handle(ctx, b.JetStream(), "CRON", "s", func(ctx context.Context, tick cron.Tick) error {
			select {
			case ticks <- tick:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	must(t, cron.Set(ctx, b.JetStream(), "CRON", cron.Schedule{Name: "s", Cron: "* * * * * *", Zone: "Europe/Berlin"}))
	first, second := <-ticks, <-ticks
	if !second.At.After(first.At) || first.ID == second.ID {
		t.Errorf("%+v, then %+v", first, second)
	}
	cancel()
	must(t, <-ended)
}
