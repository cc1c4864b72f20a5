package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// What the clients ask of examples/service, and how often.
var (
	keepAlive = crowd{"HTTP/1 keep-alive", 24, http1("/work?note=e2e", 201, between(0, 4*time.Second))}
	newConns  = crowd{"HTTP/1 fresh", 3, fresh("/work?note=e2e", 201, between(20*time.Millisecond, 150*time.Millisecond))}
	replays   = crowd{"HTTP/2 replaying", 6, http2("/work?note=e2e", 201, between(0, 300*time.Millisecond))}
	longIdle  = crowd{"HTTP/1 long idle", 6, http1("/work?note=e2e", 201, between(5500*time.Millisecond, 9*time.Second))}
	silent    = crowd{"HTTP/1 silent", 6, hesitant{silent: 3 * time.Second}.client("/work?note=e2e", 201, between(0, time.Second))}
	trickling = crowd{"HTTP/1 trickling", 4, hesitant{trickle: 600 * time.Millisecond}.client("/work?note=e2e", 201, between(0, time.Second))}
	sse       = crowd{"SSE", 1, events("/events")}
	sockets   = crowd{"websocket", 1, socket("/socket")}
)

// serviceOf returns a Deployment of examples/service with its own settings: nothing is
// tuned for the test.
func (c *cluster) serviceOf(name string, replicas int) deployment {
	return deployment{
		name: name, image: c.service, replicas: replicas,
		env: map[string]string{"SERVICE_LIFECYCLE_TERMINATION_GRACE": "30s", "SERVICE_ALLOW_FAULTS": "true"},
	}
}

// TestRollingRestarts shows R13 to R15, R21 and R22 as a user meets them: a
// Deployment is rolled again and again under load, and no request fails.
func TestRollingRestarts(t *testing.T) {
	c := onCluster(t)
	d := c.deploy(t, c.serviceOf("rolling", 3))
	d.pods.onStop = c.slow(t)
	d.ready(t)
	rounds := [][]crowd{{keepAlive}, {newConns}, {replays}, {sse, sockets}}
	if !short() {
		all := append(slices.Concat(rounds...), longIdle, silent, trickling)
		rounds = [][]crowd{all, all, all, all, all}
	}
	met := make(map[string]*ledger) // the last of each kind, or one that met a server that drains
	for i, crowds := range rounds {
		t.Run(fmt.Sprintf("%d", i+1), func(t *testing.T) {
			load := d.load(t, crowds...)
			defer load.stop()
			pause(t.Context(), 3*time.Second)
			d.restart(t)
			pause(t.Context(), 2*time.Second)
			ledgers := load.stop()
			mustLoseNothing(t, d.pods.stops(), ledgers...)
			for _, l := range ledgers {
				if met[l.kind] == nil || met[l.kind].seen() == 0 {
					met[l.kind] = l
				}
			}
		})
	}
	mustHaveDrained(t, slices.Collect(maps.Values(met))...)
	d.endedWell(t)
}

// TestDeleteAndScale stops pods in the other ways that people stop them.
func TestDeleteAndScale(t *testing.T) {
	full(t)
	c := onCluster(t)
	d := c.deploy(t, c.serviceOf("scaling", 3))
	d.pods.onStop = c.slow(t)
	d.ready(t)
	load := d.load(t, keepAlive, newConns, replays, sse, sockets)
	defer load.stop()
	pause(t.Context(), 3*time.Second)
	first := d.pods.running()
	d.must(t, "delete", "pod", first[0].name, "--wait=false")
	d.rolledOut(t)
	d.settled(t)
	d.scale(t, 1)
	d.scale(t, 3)
	// None of the pods stays to which the clients connected first: each client is sent away.
	for _, p := range d.pods.running() {
		if slices.ContainsFunc(first, func(q *pod) bool { return q.name == p.name }) {
			d.must(t, "delete", "pod", p.name, "--wait=false")
			d.rolledOut(t)
			d.settled(t)
		}
	}
	pause(t.Context(), 2*time.Second)
	ledgers := load.stop()
	mustLoseNothing(t, d.pods.stops(), ledgers...)
	mustHaveDrained(t, ledgers[:3]...) // the two streams may have been on a pod that stays
	d.endedWell(t)
}

// TestControlPlainServer shows that the clients see what they look for: the
// same restart of an http.Server that calls Shutdown at SIGTERM loses requests.
func TestControlPlainServer(t *testing.T) {
	c := onCluster(t)
	d := c.deploy(t, deployment{name: "plain", image: c.app, replicas: 3, args: []string{"-server=plain"}})
	d.pods.onStop = c.slow(t)
	d.ready(t)
	load := startLoad(t.Context(), d.addr, nil, keepAlive, newConns, replays)
	defer load.stop()
	pause(t.Context(), 3*time.Second)
	d.restart(t)
	pause(t.Context(), 2*time.Second)
	ledgers := load.stop()
	mustLoseSome(t, ledgers...)
	for _, l := range ledgers {
		t.Logf("for example:\n%s", l.explain(d.pods.stops(), 3))
	}
}

// endedWell checks that each stopped pod exited 0 and logged its report,
// and prints how long the stops took.
func (d *deployed) endedWell(t *testing.T) {
	t.Helper()
	d.endedWith(t, 0)
}

// endedWith checks that every pod that was stopped ended once, with this exit status and
// last words.
func (d *deployed) endedWith(t *testing.T, status int) {
	t.Helper()
	var took []time.Duration
	for _, p := range d.pods.list() {
		if p.stopped.IsZero() {
			continue
		}
		if len(p.ends) != 1 {
			t.Errorf("pod %s has %d ends, want one", p.name, len(p.ends))
			continue
		}
		e := p.ends[0]
		if e.ExitCode != status || e.Message == "" {
			t.Errorf("pod %s: %s; want %d and last words", p.name, e, status)
		}
		took = append(took, e.seen.Sub(p.stopped))
	}
	if len(took) == 0 {
		t.Error("no pod was stopped")
		return
	}
	slices.Sort(took)
	t.Logf("%d pods stopped; from T0 to the end of the container was known: min %v, median %v, max %v",
		len(took), took[0].Round(time.Millisecond), took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
}
