package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// testApp returns an App that takes its signals from the test. When it would exit, it
// tells the test instead.
func testApp(t *testing.T, cfg Config, signals <-chan os.Signal) *App {
	t.Helper()
	cfg.Name = "svc"
	if cfg.HealthAddr == "" {
		cfg.HealthAddr = HealthOff
	}
	if cfg.TerminationLog == "" {
		cfg.TerminationLog = "off"
	}
	a, err := New(cfg, WithSignals(signals), WithLogger(discard))
	if err != nil {
		t.Fatal(err)
	}
	a.forced.exit = func(code int) { t.Errorf("exit %d", code) }
	return a
}

func TestHangupsDuringAReloadCauseOneMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal)
		a := testApp(t, Config{DrainInterval: Off}, signals)
		count := 0
		a.OnReload("config", func(context.Context) error {
			count++
			time.Sleep(time.Minute)
			return nil
		})
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		for range 10 {
			signals <- syscall.SIGHUP
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if count != 2 {
			t.Errorf("%d reloads for ten hangups within one, want 2", count)
		}
		signals <- syscall.SIGHUP
		time.Sleep(time.Hour)
		synctest.Wait()
		if count != 3 {
			t.Errorf("%d reloads after one more, want 3", count)
		}
		a.Stop(nil)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestReloadEndsWithTheWindow(t *testing.T) {
	for name, test := range map[string]struct {
		by    func(a *App, signals chan<- os.Signal)
		minds bool
		want  Result
	}{
		"by a hangup":                   {func(_ *App, s chan<- os.Signal) { s <- syscall.SIGHUP }, true, ResultFailed},
		"by Reload":                     {func(a *App, _ chan<- os.Signal) { go a.Reload(context.Background()) }, true, ResultFailed},
		"by a hangup, and ignores that": {func(_ *App, s chan<- os.Signal) { s <- syscall.SIGHUP }, false, ResultAbandoned},
		"by Reload, and ignores that":   {func(a *App, _ chan<- os.Signal) { go a.Reload(context.Background()) }, false, ResultAbandoned},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal)
				a := testApp(t, Config{DrainInterval: 10 * time.Second, DrainWait: WaitAlways}, signals)
				release := make(chan struct{})
				var steps []string
				a.OnReload("one", func(ctx context.Context) error {
					if !test.minds {
						<-release
						return nil
					}
					<-ctx.Done()
					steps = append(steps, "reload cancelled")
					return ctx.Err()
				})
				a.OnReload("behind", func(context.Context) error {
					t.Error("a reload began while it drained")
					return nil
				})
				a.OnShutdown("hook", func(context.Context) error {
					steps = append(steps, "hook")
					return nil
				})
				ended := make(chan error)
				go func() { ended <- a.Run(context.Background()) }()
				<-a.Reached(PhaseRunning)
				test.by(a, signals)
				time.Sleep(time.Second)
				a.Stop(nil)
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if got := steps[len(steps)-1]; got != "hook" || len(steps) != 1 && steps[0] != "reload cancelled" {
					t.Errorf("happened: %v", steps)
				}
				if r := a.Report(); len(r.Reloads) != 1 || r.Reloads[0].Result != test.want || r.Phases[3].Duration < 10*time.Second {
					t.Errorf("reported: %+v, %v", r.Reloads, r.Phases)
				}
				if err := a.Reload(context.Background()); !errors.Is(err, ErrReloadRefused) {
					t.Errorf("a reload after the end: %v", err)
				}
				close(release)
			})
		})
	}
}

func TestReloadReturnsWhatWentWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testApp(t, Config{DrainInterval: Off}, nil)
		boom := errors.New("boom")
		a.OnReload("good", func(context.Context) error { return nil })
		a.OnReload("bad", func(context.Context) error { return boom })
		a.OnReload("panics", func(context.Context) error { panic("ouch") })
		a.OnReload("behind", func(context.Context) error { return nil })
		if err := a.Reload(context.Background()); !errors.Is(err, ErrReloadRefused) {
			t.Errorf("a reload before Run: %v", err)
		}
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		<-a.Reached(PhaseRunning)
		err := a.Reload(context.Background())
		var panicked *PanicError
		if !errors.Is(err, boom) || !errors.As(err, &panicked) || !strings.Contains(err.Error(), "reload bad: boom") {
			t.Errorf("got %v", err)
		}
		var got []string
		for _, r := range a.Report().Reloads {
			got = append(got, fmt.Sprint(r.Name, " ", r.Result))
		}
		if want := []string{"good ok", "bad failed", "panics panicked", "behind ok"}; !slices.Equal(got, want) {
			t.Errorf("reported %v, want %v", got, want)
		}
		a.Stop(nil)
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestReloadWaitsForAnotherUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testApp(t, Config{DrainInterval: Off}, nil)
		running := 0
		a.OnReload("config", func(context.Context) error {
			running++
			defer func() { running-- }()
			if running > 1 {
				t.Error("two reloads at a time")
			}
			time.Sleep(time.Minute)
			return nil
		})
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		<-a.Reached(PhaseRunning)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := a.Reload(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.Reload(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		all.Wait()
		a.Stop(nil)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A process that lives for a year may reload a hundred thousand times.
func TestReloadsAreCountedAndOnlyTheLastAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testApp(t, Config{DrainInterval: Off}, nil)
		n := 0
		a.OnReload("config", func(context.Context) error {
			if n++; n%4 == 0 {
				return fmt.Errorf("failure %d", n)
			}
			return nil
		})
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		<-a.Reached(PhaseRunning)
		const asked = 10_000
		for range asked {
			_ = a.Reload(context.Background())
		}
		r := a.Report()
		if len(r.Reloads) != keptReloads || cap(a.reloads.last) > 2*keptReloads {
			t.Errorf("the report has %d reloads and the App has room for %d, want %d kept", len(r.Reloads), cap(a.reloads.last), keptReloads)
		}
		if last := r.Reloads[len(r.Reloads)-1]; last.Error != fmt.Sprintf("failure %d", asked) {
			t.Errorf("the last one kept is %v, want the last that ended", last)
		}
		if first := r.Reloads[3]; first.Error != fmt.Sprintf("failure %d", asked-keptReloads+4) {
			t.Errorf("the fourth one kept is %v, want the %dth", first, asked-keptReloads+4)
		}
		if want := map[Result]uint64{ResultOK: asked * 3 / 4, ResultFailed: asked / 4}; len(r.ReloadCounts) != 1 || !maps.Equal(r.ReloadCounts["config"], want) {
			t.Errorf("counted %v, want %v", r.ReloadCounts, want)
		}
		if page, want := string(a.Status().page()), "Reloads, the last 32 of 10000"; !strings.Contains(page, want) {
			t.Errorf("the page does not say %q:\n%s", want, page)
		}
		r.ReloadCounts["config"][ResultOK], r.Reloads[0].Name = 0, "" // a copy
		if again := a.Report(); again.ReloadCounts["config"][ResultOK] == 0 || again.Reloads[0].Name == "" {
			t.Error("a report shares what the App counts")
		}
		a.Stop(nil)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestReloadsMayBeRegisteredAtTheSameTime(t *testing.T) {
	a := testApp(t, Config{}, nil)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			a.OnReload(fmt.Sprint("reload ", i), func(context.Context) error { return nil })
			a.OnDrain(fmt.Sprint("drainer ", i), DrainFunc(func(context.Context) error { return nil }))
		})
	}
	all.Wait()
	if len(a.parts.reloads) != 8 || len(a.parts.drainers) != 8 {
		t.Errorf("%d reloads and %d drainers of 8 each", len(a.parts.reloads), len(a.parts.drainers))
	}
}

var discard = slog.New(slog.DiscardHandler)

// It makes many calls, because a call that finds both its turn and the drain could choose
// either.
func TestNoReloadIsTakenOnInTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 64)
		a := testApp(t, Config{DrainInterval: time.Minute, DrainWait: WaitAlways}, signals)
		count := 0
		a.OnReload("config", func(context.Context) error { count++; return nil })
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		<-a.Reached(PhaseRunning)
		signals <- syscall.SIGHUP // at the same moment
		a.Stop(nil)
		<-a.Reached(PhaseDraining)
		synctest.Wait()
		before := count
		for range 50 {
			signals <- syscall.SIGHUP
			if err := a.Reload(context.Background()); !errors.Is(err, ErrReloadRefused) {
				t.Errorf("a reload in the window returns %v, want %v", err, ErrReloadRefused)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if count != before {
			t.Errorf("%d reloads began in the window", count-before)
		}
	})
}

// A function that hangs delays the reloads behind it by its timeout, and does not run
// again while it hangs.
func TestReloadThatHangsIsBounded(t *testing.T) {
	for _, test := range []struct {
		name    string
		timeout time.Duration
		minds   bool
		first   Result        // of the function that hangs
		took    time.Duration // of the first reload
		second  Result
	}{
		{"it ends with its context", 0, true, ResultFailed, 90 * time.Second, ResultFailed},
		{"it ignores its context", 0, false, ResultAbandoned, 90*time.Second + settle, ResultSkipped},
		{"configured", time.Second, false, ResultAbandoned, time.Second + settle, ResultSkipped},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := testApp(t, Config{DrainInterval: Off, ReloadTimeout: test.timeout}, nil)
				var calls atomic.Int32
				behind := 0
				hung := make(chan struct{})
				a.OnReload("hangs", func(ctx context.Context) error {
					if calls.Add(1) > 2 {
						return nil
					}
					if test.minds {
						<-ctx.Done()
						return ctx.Err()
					}
					<-hung
					return nil
				}).OnReload("behind", func(context.Context) error { behind++; return nil })
				ended := make(chan error)
				go func() { ended <- a.Run(context.Background()) }()
				<-a.Reached(PhaseRunning)
				began := time.Now()
				if err := a.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "hangs") {
					t.Errorf("the first reload: %v", err)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("the first reload took %v, want %v", took, test.took)
				}
				err := a.Reload(t.Context())
				if err == nil || test.second == ResultSkipped && !strings.Contains(err.Error(), "reload hangs: it has not returned since the reload of ") {
					t.Errorf("the second reload: %v", err)
				}
				if behind != 2 {
					t.Errorf("the function behind ran %d times, want 2", behind)
				}
				calls.Store(2)
				close(hung)
				synctest.Wait()
				if err := a.Reload(t.Context()); err != nil {
					t.Errorf("the reload after it has returned: %v", err)
				}
				var got []Result
				for _, out := range a.Report().Reloads {
					if out.Name == "hangs" {
						got = append(got, out.Result)
					}
				}
				if want := []Result{test.first, test.second, ResultOK}; !slices.Equal(got, want) {
					t.Errorf("the report: %v, want %v", got, want)
				}
				a.Stop(nil)
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestReloadWithoutATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testApp(t, Config{DrainInterval: Off, ReloadTimeout: Off}, nil)
		a.OnReload("slow", func(ctx context.Context) error { time.Sleep(24 * time.Hour); return ctx.Err() })
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		<-a.Reached(PhaseRunning)
		if err := a.Reload(t.Context()); err != nil {
			t.Error(err)
		}
		a.Stop(nil)
		<-ended
	})
}

// A hangup during a reload is in the log at once, and not only when its turn comes.
func TestHangupDuringAReloadIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal)
		a := testApp(t, Config{DrainInterval: Off}, signals)
		var log syncedBuffer
		a.log = slog.New(slog.NewTextHandler(&log, nil))
		a.OnReload("config", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ended := make(chan error)
		go func() { ended <- a.Run(context.Background()) }()
		<-a.Reached(PhaseRunning)
		signals <- syscall.SIGHUP
		time.Sleep(time.Second)
		const says = "SIGHUP: a reload is running, and one more follows it"
		if strings.Contains(log.String(), says) {
			t.Errorf("it says %q of the first", says)
		}
		signals <- syscall.SIGHUP
		synctest.Wait()
		if !strings.Contains(log.String(), says) {
			t.Errorf("the log does not say %q:\n%s", says, log.String())
		}
		a.Stop(nil)
		<-ended
	})
}

type syncedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
