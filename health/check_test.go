package health

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

func TestProberThatHangsUpSpoilsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry()
		var cancelled atomic.Bool
		must(t, r.RegisterReadiness("db", ProbeFunc(func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				cancelled.Store(true)
				return ctx.Err()
			case <-time.After(500 * time.Millisecond):
				return nil
			}
		}), WithCache(time.Minute)))
		ctx, hangUp := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, hangUp)
		began := time.Now()
		r.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil))
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("the handler of a prober that hung up took %v, want 100ms", took)
		}
		time.Sleep(time.Second)
		if cancelled.Load() {
			t.Error("the check was cancelled by its prober")
		}
		expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"db":"ok"}}`)
	})
}

func TestConcurrentProbersShareOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry()
		var runs atomic.Int64
		must(t, r.RegisterReadiness("db", ProbeFunc(func(context.Context) error {
			runs.Add(1)
			time.Sleep(300 * time.Millisecond)
			return nil
		})))
		var wg sync.WaitGroup
		for _, path := range []string{"/readyz", "/readyz", "/readyz/db", "/readyz?verbose", "/readyz?exclude=x"} {
			for range 20 {
				wg.Go(func() { expect(t, r, path, 200, "") })
			}
		}
		wg.Wait()
		if runs.Load() != 1 {
			t.Errorf("100 probers made %d runs, want 1", runs.Load())
		}
	})
}

func TestHandlerAnswersWithinProbeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, release := hanging()
		defer synctest.Wait()
		defer release()
		r := NewRegistry()
		must(t, r.RegisterReadiness("hangs", hang))
		must(t, r.RegisterReadiness("patient", hang, WithTimeout(time.Minute), WithCache(time.Minute)))
		must(t, r.RegisterReadiness("quick", ProbeFunc(passing)))
		for i, want := range []string{
			`{"status":"fail","checks":{"hangs":"still running for 900ms","patient":"not checked yet","quick":"ok"}}`,
			`{"status":"fail","checks":{"hangs":"still running for 1.8s","patient":"not checked yet","quick":"ok"}}`,
		} {
			began := time.Now()
			expect(t, r, "/readyz", 503, want)
			if took := time.Since(began); took != DefaultProbeTimeout {
				t.Errorf("probe %d took %v, want 900ms", i, took)
			}
		}
	})
}

func TestWedgedCheckIsDownUntilItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wedge atomic.Pointer[chan struct{}]
		var runs atomic.Int64
		r := NewRegistry()
		must(t, r.RegisterLiveness("self", ProbeFunc(func(context.Context) error {
			runs.Add(1)
			if ch := wedge.Load(); ch != nil {
				<-*ch
			}
			return nil
		}), WithTimeout(200*time.Millisecond)))
		expect(t, r, "/livez", 200, "")
		ch := make(chan struct{})
		wedge.Store(&ch)
		expect(t, r, "/livez", 503, `{"status":"fail","checks":{"self":"still running for 200ms"}}`)
		time.Sleep(3 * time.Second)
		for range 20 { // a probe does not wait for a wedged check
			expect(t, r, "/livez", 503, `{"status":"fail","checks":{"self":"still running for 3.2s"}}`)
		}
		synctest.Wait()
		working := 0
		for range 10000 { // a goroutine that is about to end gets time for that
			if working = strings.Count(string(call.Dump()), "probe.(*Check).start.func1("); working == 1 {
				break
			}
			runtime.Gosched()
		}
		if working != 1 || runs.Load() != 2 {
			t.Errorf("%d goroutines and %d runs, want 1 and 2", working, runs.Load())
		}
		wedge.Store(nil)
		close(ch)
		synctest.Wait()
		if st := r.Snapshot()[0]; st.State != Down || st.Error != "took 3.2s, over its timeout of 200ms" {
			t.Errorf("after the late return: %s, %q", st.State, st.Error)
		}
		expect(t, r, "/livez", 200, `{"status":"ok","checks":{"self":"ok"}}`)
	})
}

func TestWedgedCheckPassesNoThresholdForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, release := hanging()
		defer synctest.Wait()
		defer release()
		var wedged atomic.Bool
		r := NewRegistry()
		must(t, r.RegisterLiveness("self", ProbeFunc(func(ctx context.Context) error {
			if wedged.Load() {
				return hang(ctx)
			}
			return nil
		}), WithTimeout(200*time.Millisecond), WithFailureThreshold(3)))
		expect(t, r, "/livez", 200, "")
		wedged.Store(true)
		expect(t, r, "/livez", 200, "") // one timeout
		time.Sleep(200 * time.Millisecond)
		expect(t, r, "/livez", 200, "") // two
		time.Sleep(200 * time.Millisecond)
		expect(t, r, "/livez", 503, "") // three
	})
}

func TestCachedCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		must(t, r.RegisterReadiness("db", f, WithCache(10*time.Second)))
		for range 5 {
			expect(t, r, "/readyz", 200, "")
		}
		f.set(errDown)
		time.Sleep(10*time.Second - 1)
		expect(t, r, "/readyz", 200, "")
		if n := f.runs.Load(); n != 1 {
			t.Errorf("%d runs within the ttl, want 1", n)
		}
		time.Sleep(1)
		expect(t, r, "/readyz", 503, "")
		if n := f.runs.Load(); n != 2 {
			t.Errorf("%d runs after the ttl, want 2", n)
		}
	})
}

// A cached result may bridge a slow run until its max age. After that the check
// is unknown on readiness and down on liveness.
func TestResultTooOldIsNeverGreen(t *testing.T) {
	for name, opts := range map[string][]Option{
		"cached":        {WithCache(10 * time.Second), WithTimeout(5 * time.Second)},
		"periodic":      {WithPeriodic(10 * time.Second), WithTimeout(5 * time.Second), WithMaxAge(15 * time.Second)},
		"cached, 3 bad": {WithCache(10 * time.Second), WithTimeout(5 * time.Second), WithFailureThreshold(100)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang, release := hanging()
				defer synctest.Wait()
				defer release()
				var wedged atomic.Bool
				p := ProbeFunc(func(ctx context.Context) error {
					if wedged.Load() {
						return hang(ctx)
					}
					return nil
				})
				r := NewRegistry()
				must(t, r.RegisterReadiness("db", p, opts...))
				must(t, r.RegisterLiveness("db", p, opts...))
				expect(t, r, "/readyz", 200, "")
				expect(t, r, "/livez", 200, "")
				wedged.Store(true)
				time.Sleep(12 * time.Second)
				expect(t, r, "/readyz", 200, "") // 12.9 s old, its renewal is running
				time.Sleep(3 * time.Second)
				// The runs began 3.9 s ago and are not overdue; the results are
				// 15.9 s old.
				expect(t, r, "/readyz", 503, "")
				if st := r.Snapshot(); st[1].State != Unknown {
					t.Errorf("a readiness check without a recent result is %s, want unknown", st[1].State)
				}
				expect(t, r, "/livez", 503, "")
				if st := r.Snapshot(); st[0].State != Down {
					t.Errorf("a liveness check without a recent result is %s, want down", st[0].State)
				}
				wedged.Store(false)
				release()
				synctest.Wait()
				time.Sleep(11 * time.Second)
				expect(t, r, "/readyz", 200, "") // the check is up again
				expect(t, r, "/livez", 200, "")
			})
		})
	}
}

// A check that every probe runs has less time than the probe: otherwise its result would never be
// the probe's own.
func TestCheckThatIsSlowerThanItsProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var delay atomic.Int64
		r := NewRegistry()
		p := ProbeFunc(func(context.Context) error { time.Sleep(time.Duration(delay.Load())); return nil })
		for _, slow := range []time.Duration{900 * time.Millisecond, 10 * time.Second} {
			err := r.RegisterReadiness("db", p, WithTimeout(slow))
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "add WithCache, WithPeriodic or WithMaxAge") {
				t.Errorf("a timeout of %v: %v", slow, err)
			}
		}
		must(t, r.RegisterReadiness("db", p, WithTimeout(899*time.Millisecond)))
		must(t, r.RegisterLiveness("db", p))
		expect(t, r, "/readyz", 200, "")
		expect(t, r, "/livez", 200, "")
		delay.Store(int64(2 * time.Second))
		expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"still running for 899ms"}}`)
		expect(t, r, "/livez", 503, `{"status":"fail","checks":{"db":"still running for 800ms"}}`)
		delay.Store(0)
		time.Sleep(5 * time.Second)
		expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"db":"ok"}}`)
		expect(t, r, "/livez", 200, `{"status":"ok","checks":{"db":"ok"}}`)
	})
}

func TestThresholds(t *testing.T) {
	r, f := NewRegistry(), new(fake)
	must(t, r.RegisterReadiness("db", f, WithFailureThreshold(3), WithSuccessThreshold(2)))
	for i, step := range []struct {
		err  error
		want State
	}{
		{nil, Unknown},
		{nil, Up},
		{errDown, Up},
		{errDown, Up},
		{nil, Up}, // a pass in between resets the count
		{errDown, Up},
		{ErrUnknown, Up},
		{errDown, Down},
		{ErrUnknown, Unknown},
		{nil, Unknown},
		{errDown, Unknown},
		{nil, Unknown},
		{nil, Up},
	} {
		f.set(step.err)
		want := 503
		if step.want == Up {
			want = 200
		}
		expect(t, r, "/readyz", want, "")
		if got := r.Snapshot()[0].State; got != step.want {
			t.Errorf("step %d, %v: %s, want %s", i, step.err, got, step.want)
		}
		if i == 2 {
			expect(t, r, "/readyz/db?verbose", 200, "[+]db ok, its last run failed: connection refused\nreadyz check passed")
			f.set(nil)
			get(t, r, "/readyz")
			f.set(errDown)
			get(t, r, "/readyz")
		}
	}
}

func TestNonCriticalCheckShowsAndDoesNotFail(t *testing.T) {
	r, f := NewRegistry(), new(fake)
	f.set(errDown)
	must(t, r.RegisterReadiness("cache", f, WithNonCritical()))
	must(t, r.RegisterLiveness("cache", f, WithNonCritical()))
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"cache":"connection refused"}}`)
	expect(t, r, "/livez", 200, `{"status":"ok","checks":{"cache":"connection refused"}}`)
}
