package health

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A snapshot tells a check that takes too long from one that fails by how it ended, not by the text of its error.
func TestSnapshotSaysSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry()
		late := func(d time.Duration, err error) ProbeFunc {
			return func(context.Context) error { time.Sleep(d); return err }
		}
		for name, p := range map[string]ProbeFunc{
			"fails":    late(0, errors.New("the queue timed out, says the peer")),
			"late":     late(1100*time.Millisecond, nil),
			"hangs":    late(time.Hour, nil),
			"waits":    func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"deadline": late(0, context.DeadlineExceeded),
			"passes":   late(900*time.Millisecond, nil),
		} {
			must(t, r.RegisterReadiness(name, p, WithPeriodic(time.Second), WithTimeout(time.Second)))
		}
		must(t, r.Start(t.Context()))
		time.Sleep(30*time.Second + 50*time.Millisecond)
		for _, c := range r.Snapshot() {
			if isSlow := c.Name != "fails" && c.Name != "passes"; c.Slow != isSlow {
				t.Errorf("%s is slow: %t: %+v", c.Name, c.Slow, c)
			}
		}
		must(t, r.Close(context.Background()))
		time.Sleep(2 * time.Hour)
	})
}

func TestPeriodicCheckRunsInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		began := time.Now()
		r := NewRegistry()
		must(t, r.RegisterReadiness("db", ProbeFunc(func(context.Context) error {
			at = append(at, time.Since(began))
			time.Sleep(time.Second)
			return nil
		}), WithPeriodic(10*time.Second), WithTimeout(5*time.Second)))
		must(t, r.Start(t.Context()))
		must(t, r.Start(t.Context()))
		// The first probe waits for the first result, within the probe timeout.
		expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"not checked yet"}}`)
		if took := time.Since(began); took != DefaultProbeTimeout {
			t.Errorf("the first probe took %v, want 900ms", took)
		}
		time.Sleep(35 * time.Second)
		for range 10 {
			before := time.Now()
			expect(t, r, "/readyz", 200, "")
			if took := time.Since(before); took != 0 {
				t.Errorf("a probe of a periodic check took %v", took)
			}
			time.Sleep(time.Second / 10)
		}
		must(t, r.Close(t.Context()))
		must(t, r.Close(t.Context()))
		// Each run begins ten seconds after the end of the previous one.
		want := []time.Duration{0, 11 * time.Second, 22 * time.Second, 33 * time.Second}
		if len(at) != len(want) {
			t.Fatalf("ran at %v, want %v", at, want)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("ran at %v, want %v", at, want)
			}
		}
	})
}

func TestPeriodicCheckThatHangsIsSeenWithoutAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, release := hanging()
		var wedged atomic.Bool
		r := NewRegistry()
		must(t, r.RegisterReadiness("db", ProbeFunc(func(ctx context.Context) error {
			if wedged.Load() {
				return hang(ctx)
			}
			return nil
		}), WithPeriodic(10*time.Second), WithTimeout(2*time.Second), WithFailureThreshold(2)))
		sub := r.Events().Subscribe(16) // before Start, which makes the first event
		defer sub.Close()
		began := time.Now()
		must(t, r.Start(t.Context()))
		wait := func(to State) time.Duration {
			t.Helper()
			e, err := sub.Next(t.Context())
			must(t, err)
			if e.To != string(to) {
				t.Fatalf("the check became %s, want %s", e.To, to)
			}
			return time.Since(began)
		}
		wait(Up)
		expect(t, r, "/readyz", 200, "")
		wedged.Store(true)
		if at := wait(Down); at != 14*time.Second {
			t.Errorf("down at %v, want 14s: two timeouts into the second run", at)
		}
		expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"still running for 4s"}}`)
		wedged.Store(false)
		release()
		if at := wait(Up); at != 24*time.Second {
			t.Errorf("up at %v, want 24s: one interval after the wedged run ended", at)
		}
		must(t, r.Close(t.Context()))
	})
}

func TestPeriodicCheckWithoutStartIsRenewedByProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		must(t, r.RegisterReadiness("db", f, WithPeriodic(10*time.Second)))
		expect(t, r, "/readyz", 200, "")
		expect(t, r, "/readyz", 200, "")
		f.set(errDown)
		time.Sleep(10 * time.Second)
		expect(t, r, "/readyz", 503, "")
		if n := f.runs.Load(); n != 2 {
			t.Errorf("%d runs, want 2", n)
		}
		// The same holds after Start when its context has ended.
		ctx, cancel := context.WithCancel(t.Context())
		must(t, r.Start(ctx))
		synctest.Wait()
		cancel()
		synctest.Wait()
		f.set(nil)
		time.Sleep(10 * time.Second)
		expect(t, r, "/readyz", 200, "")
		must(t, r.Close(t.Context()))
	})
}

func TestPeriodicCheckRegisteredAfterStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		must(t, r.Start(t.Context()))
		time.Sleep(time.Minute)
		must(t, r.RegisterReadiness("db", f, WithPeriodic(10*time.Second)))
		synctest.Wait()
		if n := f.runs.Load(); n != 1 {
			t.Errorf("%d runs after the registration, want 1 at once", n)
		}
		must(t, r.Close(t.Context()))
		if err := r.RegisterReadiness("late", f); !errors.Is(err, ErrClosed) {
			t.Errorf("registration after Close: %v, want ErrClosed", err)
		}
		if err := r.Start(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Start after Close: %v, want ErrClosed", err)
		}
	})
}

func TestStartedChecksHaveTheValuesAndNotTheEndOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		r := NewRegistry()
		must(t, r.RegisterReadiness("db", ProbeFunc(func(ctx context.Context) error {
			if ctx.Value(key{}) != "value" {
				return errors.New("the value is missing")
			}
			return ctx.Err()
		})))
		must(t, r.Start(ctx))
		expect(t, r, "/readyz", 200, "")
		cancel()
		synctest.Wait()
		expect(t, r, "/readyz", 200, "")
		must(t, r.Close(t.Context()))
	})
}

func TestCloseEndsRunsAndNamesThoseThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, release := hanging()
		defer synctest.Wait()
		defer release()
		r := NewRegistry()
		heeds := ProbeFunc(func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
		must(t, r.RegisterReadiness("heeds", heeds, WithTimeout(time.Hour), WithCache(time.Hour)))
		must(t, r.RegisterLiveness("hangs", hang, WithTimeout(time.Hour), WithCache(time.Hour)))
		get(t, r, "/readyz")
		get(t, r, "/livez")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := r.Close(ctx)
		const want = `close health registry: liveness check "hangs" has not returned: context deadline exceeded`
		if err == nil || err.Error() != want || time.Since(began) != time.Second {
			t.Errorf("Close returned %v after %v, want %s after 1s", err, time.Since(began), want)
		}
		expect(t, r, "/readyz", 503, "") // the handler answers and runs no check
	})
}
