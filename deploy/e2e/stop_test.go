package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestHandlersThatWatchTheirContext is R3 and R18: a handler that takes 1.5 s
// and ends early when its context ends is not cancelled by a stop.
func TestHandlersThatWatchTheirContext(t *testing.T) {
	full(t)
	c := onCluster(t)
	d := c.deploy(t, c.serviceOf("watching", 2))
	d.pods.onStop = c.slow(t)
	d.ready(t)
	idle := between(0, 300*time.Millisecond)
	load := d.load(t,
		crowd{"HTTP/1 1.5 s", 12, http1("/work?note=e2e&sleep=1.5s", 201, idle)},
		crowd{"HTTP/1 1.5 s fresh", 4, fresh("/work?note=e2e&sleep=1.5s", 201, idle)},
		crowd{"HTTP/2 1.5 s", 8, http2("/work?note=e2e&sleep=1.5s", 201, idle)})
	defer load.stop()
	pause(t.Context(), 3*time.Second)
	d.restart(t)
	pause(t.Context(), 2*time.Second)
	ledgers := load.stop()
	mustLoseNothing(t, d.pods.stops(), ledgers...)
	mustHaveDrained(t, ledgers[0], ledgers[2]) // the few fresh clients may all have used the other pod
	d.endedWell(t)
}

// TestSignalFromOutsideOfKubernetes is R13 without a deletion that
// would inform the cluster: readiness is the only signal, and the cluster sees it before
// the listener closes.
func TestSignalFromOutsideOfKubernetes(t *testing.T) {
	full(t)
	c := onCluster(t)
	d := c.deploy(t, c.serviceOf("signalled", 2)).ready(t)
	one := d.pods.running()[0]
	p := d.process(t, one)
	e := d.unreadyBeforeClosed(t, one, func() { d.signal(t, p, "SIGTERM") })
	if e.ExitCode != 0 || !strings.Contains(e.Message, "received signal: terminated") {
		t.Errorf("%s; want 0 and the signal", e)
	}
}

// TestFailingUnit is R22: a unit fails, and its App still drains while its
// server serves; R4 and R21: the exit status and the termination log say why.
func TestFailingUnit(t *testing.T) {
	full(t)
	c := onCluster(t)
	for how, want := range map[string]string{"error": "was told to fail", "panic": "panic: was told to panic"} {
		t.Run(how, func(t *testing.T) {
			d := c.deploy(t, c.serviceOf("failing-"+how, 2)).ready(t)
			one := d.pods.running()[0]
			way := d.wayTo(t, one)
			e := d.unreadyBeforeClosed(t, one, func() { tell(t, way, "/fail?how="+how, 202) })
			if e.ExitCode != 1 || !strings.Contains(e.Message, "unit faulty: ") || !strings.Contains(e.Message, want) {
				t.Errorf("%s; want 1, the unit and %q", e, want)
			}
		})
	}
}

// unreadyBeforeClosed stops one of the pods, under load, in a way that Kubernetes does
// not see, and returns how its container ended.
func (d *deployed) unreadyBeforeClosed(t *testing.T, one *pod, stopIt func()) end {
	t.Helper()
	slow := d.slow(t)
	slices := d.watchEndpoints(t, d.name, slow)
	eventually(t, "the endpoint to be ready", func() bool { return slices.isReady(one.uid) })
	p := d.process(t, one)
	load := d.load(t, keepAlive, newConns, replays)
	defer load.stop()
	pause(t.Context(), 3*time.Second)
	slow()
	t0 := time.Now()
	stopIt()
	closed := p.closed(t, 8080)
	unready := slices.unreadySince(t, one.uid)
	t.Logf("the endpoint is unready at T0+%v, the listener closes at T0+%v",
		unready.Sub(t0).Round(time.Millisecond), closed.Sub(t0).Round(time.Millisecond))
	if !unready.Before(closed) {
		t.Error("the listener closes before the cluster knows")
	}
	e := d.pods.ended(t, one.uid)
	d.pods.await(t, "the container to run again", func([]*pod) bool { return len(d.pods.running()) == 2 })
	pause(t.Context(), 2*time.Second)
	ledgers := load.stop()
	mustLoseNothing(t, []stop{{one.name, t0}}, ledgers...)
	mustHaveDrained(t, ledgers[:2]...) // the few HTTP/2 connections may all lead to the other pod
	return e
}

// TestSingleReplica is R13's choice: the only pod stops, and the next one starts
// slowly. With "serving" no request fails, also when the Service only uses pods of
// this node. With "down", the control, the Service has no endpoint until the next
// pod is ready.
func TestSingleReplica(t *testing.T) {
	full(t)
	c := onCluster(t)
	for _, tt := range []struct{ readiness, traffic string }{{"serving", "Cluster"}, {"serving", "Local"}, {"down", "Cluster"}} {
		t.Run(tt.readiness+"/"+tt.traffic, func(t *testing.T) {
			d := c.deploy(t, deployment{
				name: "single-" + tt.readiness + "-" + strings.ToLower(tt.traffic), image: c.app, grace: 45, traffic: tt.traffic,
				args: []string{"-start-after=6s", "-drain-interval=15s", "-drain-readiness=" + tt.readiness},
			}).ready(t)
			onLoss := d.evidence(t)
			if tt.readiness == "down" {
				onLoss = nil // losses are expected
			}
			load := startLoad(t.Context(), d.addr, onLoss, keepAlive, newConns, replays)
			defer load.stop()
			pause(t.Context(), 3*time.Second)
			one := d.pods.only(t)
			d.stopPod(t, one, -1)
			d.pods.await(t, "the old pod to be gone and a new one to be ready", func(all []*pod) bool {
				return len(d.pods.running()) == 1 && d.pods.running()[0].uid != one.uid && d.pods.isGone(one.uid)
			})
			pause(t.Context(), 2*time.Second)
			ledgers := load.stop()
			d.endedWell(t)
			if tt.readiness == "serving" {
				mustLoseNothing(t, d.pods.stops(), ledgers...)
				mustHaveDrained(t, ledgers...)
				return
			}
			mustLoseSome(t, ledgers...)
		})
	}
}

// TestPreStop is R32: the hook is the window, and the SIGTERM after it adds no
// second one. A hook that only sleeps comes before the window.
func TestPreStop(t *testing.T) {
	full(t)
	const token = "for-the-tests-only"
	c := onCluster(t)
	for name, hook := range map[string]struct {
		lifetime object
		env      string
		reason   string
		before   time.Duration // T0 comes this long after the deletion
	}{
		"endpoint": {
			object{"httpGet": object{"port": "health", "path": "/admin/prestop", "httpHeaders": []object{{"name": "Authorization", "value": "Bearer " + token}}}},
			"SERVICE_LIFECYCLE_ADMIN_TOKEN=" + token, "the preStop hook was called", 0,
		},
		"sleep": {object{"sleep": object{"seconds": 3}}, "SERVICE_LIFECYCLE_PRE_STOP=3s", "received signal: terminated", 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			spec := c.serviceOf("prestop-"+name, 2)
			key, value, _ := strings.Cut(hook.env, "=")
			spec.env[key] = value
			spec.lifetime = object{"preStop": hook.lifetime}
			d := c.deploy(t, spec)
			d.pods.onStop = c.slow(t)
			d.ready(t)
			load := d.load(t, keepAlive, newConns, replays)
			defer load.stop()
			pause(t.Context(), 3*time.Second)
			one := d.pods.running()[0]
			p := d.process(t, one)
			d.pods.onStop()
			deleted := time.Now()
			d.stopPod(t, one, -1)
			closed := p.closed(t, 8080)
			e := d.pods.ended(t, one.uid)
			d.settled(t)
			d.rolledOut(t)
			ledgers := load.stop()
			mustLoseNothing(t, d.pods.stops(), ledgers...)
			if hook.before == 0 { // otherwise the cluster knew before the drain began
				mustHaveDrained(t, ledgers[:2]...)
			}

			stopping := d.pods.log.await(t, one.uid, "stopping")
			t0 := at(t, stopping)
			t.Logf("T0 is %v after the deletion; the listener closes at T0+%v; %s",
				t0.Sub(deleted).Round(time.Millisecond), closed.Sub(t0).Round(time.Millisecond), e)
			if stopping["reason"] != hook.reason {
				t.Errorf("it stopped because %q, want %q", stopping["reason"], hook.reason)
			}
			if before := t0.Sub(deleted); before < hook.before {
				t.Errorf("T0 comes %v after the deletion, want %v or more", before, hook.before)
			}
			// It closes at the latest half of Linger, 2.5 s, after the window.
			if window := closed.Sub(t0); window < 5*time.Second || window > 10*time.Second {
				t.Errorf("the listener closes %v after T0, want one window of 5 s and less than two", window)
			}
			if e.ExitCode != 0 {
				t.Errorf("%s; want 0", e)
			}
		})
	}
}
