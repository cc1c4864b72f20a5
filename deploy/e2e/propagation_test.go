package e2e

import (
	"context"
	"flag"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var stops = flag.Int("stops", 8, "how many pods TestPropagation stops, in each of its parts")

// TestPropagation measures how long a stopping pod still gets new connections: the
// number that the drain window has to cover. It stops one pod after the other while clients open a connection for each
// request. An answer on a new connection that says goodbye comes from a pod that
// stops. With kube-proxy paused, the same is longer, as the other tests have it.
func TestPropagation(t *testing.T) {
	full(t)
	c := onCluster(t)
	for _, tt := range []struct {
		how    string
		paused bool
	}{{"as it is", false}, {"kube-proxy paused for 1.5 s", true}} {
		t.Run(tt.how, func(t *testing.T) {
			d := c.deploy(t, c.serviceOf("spread-"+strings.Fields(tt.how)[0], 4))
			if tt.paused {
				d.pods.onStop = c.slow(t)
			}
			d.ready(t)
			slicesOf := d.watchEndpoints(t, d.name, nil)
			p := &prober{}
			ctx, cancel := context.WithCancel(t.Context())
			var clients sync.WaitGroup
			for range 3 {
				clients.Go(func() { p.run(ctx, d.addr) })
			}
			defer clients.Wait()
			defer cancel()
			var signal, slice, last []time.Duration
			for range *stops {
				d.pods.await(t, "pods to run", func([]*pod) bool { return len(d.pods.running()) >= 3 })
				one := d.pods.running()[0]
				eventually(t, "the endpoint to be ready", func() bool { return slicesOf.isReady(one.uid) })
				deleted := time.Now()
				d.stopPod(t, one, -1)
				t0 := at(t, d.pods.log.await(t, one.uid, "stopping"))
				signal = append(signal, t0.Sub(deleted))
				slice = append(slice, slicesOf.unreadySince(t, one.uid).Sub(t0))
				pause(t.Context(), 3*time.Second)
				last = append(last, max(0, p.lastAfter(t0).Sub(t0)))
			}
			cancel()
			clients.Wait()
			t.Logf("%d stops, %d new connections, %d of them to a stopping pod, %d refused or reset", *stops, p.sent, len(p.goodbyes), p.lost)
			t.Logf("from the request to delete to T0:             %s", spread(signal))
			t.Logf("from T0 to the EndpointSlice that says so:     %s", spread(slice))
			t.Logf("from T0 to the last new connection to the pod: %s", spread(last))
			t.Logf("each of the latter in ms: %v", milliseconds(last))
			if p.lost > 0 {
				t.Errorf("%d requests on new connections were lost", p.lost)
			}
			if len(p.goodbyes) == 0 && tt.paused {
				t.Error("no new connection reached a stopping pod although kube-proxy was paused: the measurement is blind")
			}
		})
	}
}

// prober opens a connection for each request and remembers when it reached a pod that
// stops.
type prober struct {
	mu       sync.Mutex // guards the fields below
	sent     int
	lost     int
	goodbyes []time.Time // when the connection was made
}

func (p *prober) run(ctx context.Context, addr string) {
	for pause(ctx, 4*time.Millisecond) {
		conn, err := dialRaw(addr)
		made := time.Now()
		var a answer
		if err == nil {
			a = conn.post("/work?note=e2e")
			conn.Close()
		}
		p.mu.Lock()
		p.sent++
		if err != nil || a.err != nil {
			p.lost++
		} else if a.goodbye {
			p.goodbyes = append(p.goodbyes, made)
		}
		p.mu.Unlock()
	}
}

// lastAfter returns when the last connection to a stopping pod was made after t0, or t0.
func (p *prober) lastAfter(t0 time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := t0
	for _, at := range p.goodbyes {
		if at.After(last) {
			last = at
		}
	}
	return last
}

func spread(all []time.Duration) string {
	all = slices.Sorted(slices.Values(all))
	at := func(q float64) time.Duration {
		return all[min(len(all)-1, int(q*float64(len(all))))].Round(time.Millisecond)
	}
	return "min " + at(0).String() + ", median " + at(0.5).String() + ", 90 % " + at(0.9).String() + ", max " + at(1).String()
}

func milliseconds(all []time.Duration) (ms []int64) {
	for _, d := range slices.Sorted(slices.Values(all)) {
		ms = append(ms, d.Milliseconds())
	}
	return ms
}
