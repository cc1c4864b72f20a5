package health

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestGateHoldsReadinessAndStartup(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("db", ProbeFunc(passing), WithCache(time.Hour)))
	expect(t, r, "/readyz", 200, "")
	ownerOf(r).SetGate(Unknown, "starting")
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"ok","lifecycle":"starting"}}`)
	expect(t, r, "/startupz", 503, `{"status":"fail","checks":{"lifecycle":"starting"}}`)
	expect(t, r, "/livez", 200, `{"status":"ok","checks":{}}`)
	ownerOf(r).SetGate(Up, "")
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"db":"ok","lifecycle":"ok"}}`)
	expect(t, r, "/startupz", 200, `{"status":"ok","checks":{"lifecycle":"ok"}}`)
	ownerOf(r).SetGate(Down, "listener closed")
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"ok","lifecycle":"listener closed"}}`)
	expect(t, r, "/startupz", 200, "") // latched
}

func TestStartupLatches(t *testing.T) {
	r, f := NewRegistry(), new(fake)
	f.set(errDown)
	must(t, r.RegisterStartup("migrations", f))
	must(t, r.RegisterStartup("warm", ProbeFunc(passing)))
	ownerOf(r).SetGate(Unknown, "starting")
	expect(t, r, "/startupz", 503, "")
	ownerOf(r).SetGate(Up, "")
	expect(t, r, "/startupz", 503, `{"status":"fail","checks":{"lifecycle":"ok","migrations":"connection refused","warm":"ok"}}`)
	// A probe that excludes the failing check does not latch the startup plane.
	expect(t, r, "/startupz?exclude=migrations", 200, "")
	expect(t, r, "/startupz", 503, "")
	f.set(nil)
	expect(t, r, "/startupz", 200, `{"status":"ok","checks":{"lifecycle":"ok","migrations":"ok","warm":"ok"}}`)
	runs := f.runs.Load()
	f.set(errDown)
	ownerOf(r).SetGate(Down, "draining")
	must(t, r.RegisterStartup("late", f))
	for range 3 {
		expect(t, r, "/startupz", 200, `{"status":"ok","checks":{"late":"not checked yet","lifecycle":"ok","migrations":"ok","warm":"ok"}}`)
		expect(t, r, "/startupz/migrations", 200, "")
	}
	if f.runs.Load() != runs {
		t.Error("startup checks run after the plane has passed")
	}
}

func TestLivenessPassesOnceDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, release := hanging()
		defer synctest.Wait()
		defer release()
		r := NewRegistry()
		must(t, r.RegisterLiveness("wedged", hang))
		expect(t, r, "/livez", 503, "")
		ownerOf(r).SetDraining(true)
		began := time.Now()
		expect(t, r, "/livez", 200, `{"status":"ok","checks":{"lifecycle":"draining","wedged":"still running for 800ms"}}`)
		expect(t, r, "/livez?verbose", 200, "[+]lifecycle ok: draining\n[-]wedged failed: still running for 800ms\nlivez check passed")
		expect(t, r, "/livez/wedged", 200, "")
		expect(t, r, "/healthz", 200, "")
		if took := time.Since(began); took != 0 {
			t.Errorf("liveness took %v while draining: it waits for checks", took)
		}
	})
}

func TestReadinessFlipIsImmediate(t *testing.T) {
	r, f := NewRegistry(), new(fake)
	must(t, r.RegisterReadiness("db", f, WithCache(time.Hour), WithFailureThreshold(1000)))
	for range 3 {
		expect(t, r, "/readyz", 200, "")
	}
	ownerOf(r).SetDraining(false) // DrainReadiness: serving
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"db":"ok"}}`)
	ownerOf(r).SetDraining(true)
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"ok","lifecycle":"draining"}}`)
	if n := f.runs.Load(); n != 1 {
		t.Errorf("%d runs, want 1: the change of readiness must not run the checks", n)
	}
}

func TestSuspendAndResume(t *testing.T) {
	r := NewRegistry()
	expect(t, r, "/readyz", 200, "")
	ownerOf(r).Suspend("by operator")
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"lifecycle":"suspended: by operator"}}`)
	expect(t, r, "/livez", 200, `{"status":"ok","checks":{}}`)
	ownerOf(r).Resume()
	expect(t, r, "/readyz", 200, `{"status":"ok","checks":{}}`)
	ownerOf(r).Suspend("")
	expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"lifecycle":"suspended"}}`)
}

func TestSuspendedSinceTheFirstCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, own := NewOwned()
		if reason, since := own.Suspended(); reason != "" || !since.IsZero() {
			t.Errorf("a new registry is suspended: %q since %v", reason, since)
		}
		began := time.Now()
		own.Suspend("disk")
		time.Sleep(time.Hour)
		own.Suspend("disk and memory")
		if reason, since := own.Suspended(); reason != "disk and memory" || !since.Equal(began) {
			t.Errorf("suspended for %q since %v, want the last reason and the first time", reason, since)
		}
		own.Resume()
		own.Resume()
		if reason, since := own.Suspended(); reason != "" || !since.IsZero() {
			t.Errorf("resumed, and suspended for %q since %v", reason, since)
		}
	})
}

func TestReadyAndFirstReady(t *testing.T) {
	r, f := NewRegistry(), new(fake)
	must(t, r.RegisterReadiness("db", f))
	must(t, r.RegisterLiveness("self", ProbeFunc(passing)))
	f.set(errDown)
	ownerOf(r).SetGate(Unknown, "starting")
	closed := func() bool {
		select {
		case <-r.FirstReady():
			return true
		default:
			return false
		}
	}
	if r.Ready(t.Context()) || closed() {
		t.Error("ready while starting and down")
	}
	ownerOf(r).SetGate(Up, "")
	if r.Ready(t.Context()) || closed() {
		t.Error("ready while a check is down")
	}
	f.set(nil)
	if !r.Ready(t.Context()) || !closed() {
		t.Error("not ready with the gate and the check up")
	}
	f.set(errDown)
	if r.Ready(t.Context()) || !closed() {
		t.Error("ready while a check is down, or no longer once ready")
	}
	if !r.Alive(t.Context()) {
		t.Error("not alive with every liveness check up")
	}
}
