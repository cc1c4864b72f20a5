package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPlanesTriState(t *testing.T) {
	unknown := fmt.Errorf("sensor: %w", ErrUnknown)
	for name, tc := range map[string]struct {
		err                error
		live, rest         int
		liveBody, restBody string
	}{
		"up":      {nil, 200, 200, `{"status":"ok","checks":{"c":"ok"}}`, `{"status":"ok","checks":{"c":"ok"}}`},
		"down":    {errDown, 503, 503, `{"status":"fail","checks":{"c":"connection refused"}}`, `{"status":"fail","checks":{"c":"connection refused"}}`},
		"unknown": {unknown, 200, 503, `{"status":"ok","checks":{"c":"sensor: state unknown"}}`, `{"status":"fail","checks":{"c":"sensor: state unknown"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := NewRegistry(), new(fake)
			f.set(tc.err)
			must(t, r.RegisterLiveness("c", f))
			must(t, r.RegisterReadiness("c", f))
			must(t, r.RegisterStartup("c", f))
			expect(t, r, "/livez", tc.live, tc.liveBody)
			expect(t, r, "/healthz", tc.live, tc.liveBody)
			expect(t, r, "/readyz", tc.rest, tc.restBody)
			expect(t, r, "/startupz", tc.rest, tc.restBody)
			expect(t, r, "/readyz/c", tc.rest, tc.restBody)
			expect(t, r, "/healthz/c", tc.live, tc.liveBody)
		})
	}
}

func TestEmptyRegistryPasses(t *testing.T) {
	r := NewRegistry()
	for _, path := range []string{"/livez", "/healthz", "/readyz", "/startupz"} {
		expect(t, r, path, 200, `{"status":"ok","checks":{}}`)
	}
}

func TestUncachedCheckRunsForEveryProbe(t *testing.T) {
	r, f := NewRegistry(), new(fake)
	must(t, r.RegisterReadiness("c", f))
	for i, err := range []error{nil, errDown, nil, nil, errDown, errDown, nil} {
		f.set(err)
		want := 200
		if err != nil {
			want = 503
		}
		expect(t, r, "/readyz", want, "")
		if n := f.runs.Load(); n != int64(i+1) {
			t.Fatalf("%d runs after %d probes", n, i+1)
		}
	}
}

func TestRegistrationIsRefused(t *testing.T) {
	r := NewRegistry(WithProbeTimeout(-1), WithEvents(nil), nil)
	ok := ProbeFunc(passing)
	must(t, r.RegisterReadiness("taken", ok))
	must(t, r.RegisterLiveness("taken", ok)) // another plane
	must(t, r.RegisterReadiness("A-z.0_9~:@", ok))
	bad := map[string]error{
		"empty name":      r.RegisterReadiness("", ok),
		"slash":           r.RegisterReadiness("a/b", ok),
		"space":           r.RegisterReadiness("a b", ok),
		"percent":         r.RegisterReadiness("a%41", ok),
		"ampersand":       r.RegisterReadiness("a&b", ok),
		"umlaut":          r.RegisterReadiness("ä", ok),
		"dots":            r.RegisterReadiness("..", ok),
		"long":            r.RegisterReadiness(strings.Repeat("x", 129), ok),
		"reserved":        r.RegisterStartup("lifecycle", ok),
		"used twice":      r.RegisterReadiness("taken", ok),
		"nil probe":       r.RegisterReadiness("x", nil),
		"typed nil":       r.RegisterReadiness("x", (*fake)(nil)),
		"nil func":        r.RegisterReadiness("x", ProbeFunc(nil)),
		"nil option":      r.RegisterReadiness("x", ok, nil),
		"timeout":         r.RegisterReadiness("x", ok, WithTimeout(-1)),
		"zero timeout":    r.RegisterReadiness("x", ok, WithTimeout(0)),
		"ttl":             r.RegisterReadiness("x", ok, WithCache(0)),
		"interval":        r.RegisterReadiness("x", ok, WithPeriodic(-time.Second)),
		"both":            r.RegisterReadiness("x", ok, WithPeriodic(time.Second), WithCache(time.Second)),
		"max age":         r.RegisterReadiness("x", ok, WithMaxAge(-1)),
		"low max age":     r.RegisterReadiness("x", ok, WithPeriodic(time.Minute), WithMaxAge(time.Second)),
		"fail threshold":  r.RegisterReadiness("x", ok, WithFailureThreshold(0)),
		"other threshold": r.RegisterReadiness("x", ok, WithSuccessThreshold(-1)),
	}
	all := r.Err()
	for name, err := range bad {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
			continue
		}
		if !strings.Contains(all.Error(), err.Error()) {
			t.Errorf("%s: errs does not have %v", name, err)
		}
	}
	if n := strings.Count(all.Error(), "\n") + 1; n != len(bad)+3 {
		t.Errorf("errs has %d lines, want %d and the three options", n, len(bad))
	}
	if !strings.Contains(all.Error(), "registry option 3 is nil") {
		t.Error("Err does not name the option that is nil")
	}
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"A-z.0_9~:@":"ok","taken":"ok"}}`)
	if NewRegistry().Err() != nil {
		t.Error("a new registry has errors")
	}
}

func TestRegisterWhileProbing(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("c0", ProbeFunc(passing), WithCache(time.Hour)))
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"c0":"ok"}}`)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				get(t, r, "/readyz")
			}
		})
		wg.Go(func() { must(t, r.RegisterReadiness(fmt.Sprintf("d%d", i), ProbeFunc(passing))) })
	}
	wg.Wait()
	must(t, r.RegisterReadiness("e", ProbeFunc(func(context.Context) error { return errDown })))
	status, body := get(t, r, "/readyz")
	var got struct {
		Status string
		Checks map[string]string
	}
	must(t, json.Unmarshal([]byte(body), &got))
	if status != 503 || got.Status != "fail" || len(got.Checks) != 10 || got.Checks["e"] != errDown.Error() || got.Checks["d7"] != "ok" {
		t.Errorf("got %d %s, want 503 and ten checks", status, body)
	}
}

func TestPanicGoexitAndHostileErrorsAreFailures(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("panics", ProbeFunc(func(context.Context) error { panic("boom") })))
	must(t, r.RegisterReadiness("panics-unknown", ProbeFunc(func(context.Context) error { panic(ErrUnknown) })))
	must(t, r.RegisterReadiness("exits", ProbeFunc(func(context.Context) error { runtime.Goexit(); return nil })))
	must(t, r.RegisterReadiness("nil-error", ProbeFunc(func(context.Context) error { var e *hostileError; return e })))
	must(t, r.RegisterReadiness("long", ProbeFunc(func(context.Context) error { return errors.New(strings.Repeat("x", 1<<20)) })))
	must(t, r.RegisterReadiness("binary", ProbeFunc(func(context.Context) error { return errors.New("\xff\x00\"\\") })))
	for range 2 {
		status, body := get(t, r, "/readyz")
		var got struct{ Checks map[string]string }
		must(t, json.Unmarshal([]byte(body), &got))
		if status != 503 {
			t.Errorf("status %d, want 503", status)
		}
		for name, want := range map[string]string{
			"panics":         "panic: boom",
			"panics-unknown": "panic: state unknown",
			"exits":          "exits: called runtime.Goexit",
			"long":           strings.Repeat("x", 1021) + "…",
			"binary":         "\uFFFD\x00\"\\",
		} {
			if got.Checks[name] != want {
				t.Errorf("%s: %.60q, want %.60q", name, got.Checks[name], want)
			}
		}
		if said := got.Checks["nil-error"]; !strings.HasPrefix(said, "panic: ") || !strings.Contains(said, "runtime error: invalid memory address") {
			t.Errorf("nil-error: %q, want the panic of its Error method", got.Checks["nil-error"])
		}
	}
	for _, st := range r.Snapshot() {
		if st.State != Down {
			t.Errorf("%s is %s, want down", st.Name, st.State)
		}
	}
}

// hostileError is the classic: a nil pointer in an error.
type hostileError struct{ text string }

func (e *hostileError) Error() string { return e.text }

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		began := time.Now()
		must(t, r.RegisterStartup("boot", f))
		must(t, r.RegisterReadiness("slow", ProbeFunc(func(context.Context) error { time.Sleep(100 * time.Millisecond); return errDown }), WithNonCritical()))
		must(t, r.RegisterLiveness("self", ProbeFunc(passing)))
		ownerOf(r).SetGate(Unknown, "starting")
		time.Sleep(time.Second)
		expect(t, r, "/readyz", 503, "")
		got := r.Snapshot()
		want := []Status{
			{Plane: "liveness", Name: "self", State: Unknown, Since: began, Critical: true, Error: "not checked yet"},
			{Plane: "readiness", Name: "lifecycle", State: Unknown, Since: began, Critical: true, Error: "starting"},
			{
				Plane: "readiness", Name: "slow", State: Down, Since: began.Add(1100 * time.Millisecond), Error: errDown.Error(),
				Checked: began.Add(1100 * time.Millisecond), Latency: 100 * time.Millisecond, Runs: 1,
			},
			{Plane: "startup", Name: "boot", State: Unknown, Since: began, Critical: true, Error: "not checked yet"},
		}
		if len(got) != len(want) {
			t.Fatalf("got %d entries, want %d", len(got), len(want))
		}
		for i := range want {
			g, w := got[i], want[i]
			if !g.Since.Equal(w.Since) || !g.Checked.Equal(w.Checked) {
				t.Errorf("%s: since %v checked %v, want %v and %v", w.Name, g.Since, g.Checked, w.Since, w.Checked)
			}
			g.Since, g.Checked, w.Since, w.Checked = time.Time{}, time.Time{}, time.Time{}, time.Time{}
			if !reflect.DeepEqual(g, w) {
				t.Errorf("got  %+v\nwant %+v", g, w)
			}
		}
	})
}
