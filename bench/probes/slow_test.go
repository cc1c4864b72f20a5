package probes

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	alex "github.com/alexliesenfeld/health"
	lifecycle "github.com/pleme-io/lifecycle-go"
)

const probers = 50

// slowPlanes are the planes that face fifty probers. The periodic ones answer
// from a snapshot for every client, and are not in it.
var slowPlanes = []plane{
	{"lifecycle-go", "uncached", ours()},
	{"alexliesenfeld", "uncached", alexliesenfeld(false, alex.WithDisabledCache(), alex.WithCheck)},
	{"hellofresh", "uncached", healthGo},
	{"controller-runtime", "uncached", controllerRuntime},
	{"lifecycle-go", "cached", ours(lifecycle.WithCache(time.Second))},
	{"alexliesenfeld", "cached", alexliesenfeld(false, alex.WithCacheDuration(time.Second), alex.WithCheck)}, // its default
}

// BenchmarkSlowCheck sends fifty probers at once at a plane whose one check
// takes 500 ms (10 ms with -short). It reports when the 99th percentile of them
// was answered, how many got their answer within the second that a kubelet
// waits, how often the check ran, how many of its runs there were at a time,
// and how many goroutines there were beside the probers' own.
func BenchmarkSlowCheck(b *testing.B) {
	slow, patience := 500*time.Millisecond, time.Second
	if testing.Short() {
		slow, patience = 10*time.Millisecond, 20*time.Millisecond
	}
	for _, p := range slowPlanes {
		b.Run("mode="+p.mode+"/peer="+p.peer, func(b *testing.B) {
			var took []time.Duration
			var runs, busiest, goroutines int64
			for range b.N {
				r := crowd(b, p, slow)
				took = append(took, r.took...)
				runs += r.runs
				busiest, goroutines = max(busiest, r.busiest), max(goroutines, r.goroutines)
			}
			slices.Sort(took)
			inTime, _ := slices.BinarySearch(took, patience)
			b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
			b.ReportMetric(float64(inTime)/float64(b.N), "in-time")
			b.ReportMetric(float64(runs)/float64(b.N), "runs")
			b.ReportMetric(float64(busiest), "runs-at-once")
			b.ReportMetric(float64(goroutines), "goroutines")
		})
	}
}

type outcome struct {
	took       []time.Duration
	runs       int64
	busiest    int64 // runs of the check at the same time
	goroutines int64 // at most, beside the probers
}

// crowd sends all probers at once and waits for all of them.
func crowd(b *testing.B, p plane, slow time.Duration) outcome {
	var running, busiest, runs atomic.Int64
	h := mounted(p.make(b, 1, func(ctx context.Context) error {
		runs.Add(1)
		now := running.Add(1)
		defer running.Add(-1)
		for most := busiest.Load(); now > most && !busiest.CompareAndSwap(most, now); {
			most = busiest.Load()
		}
		t := time.NewTimer(slow)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}))

	var res outcome
	res.took = make([]time.Duration, probers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	var refused atomic.Int64
	for i := range probers {
		wg.Go(func() {
			w, req := newWriter(), newRequest(b)
			<-start
			began := time.Now()
			h.ServeHTTP(w, req)
			res.took[i] = time.Since(began)
			if w.status != http.StatusOK {
				refused.Add(1)
			}
		})
	}
	before := runtime.NumGoroutine() // the probers, waiting
	close(start)
	all := make(chan struct{})
	go func() { wg.Wait(); close(all) }()
	look := time.NewTicker(slow / 10)
	defer look.Stop()
	for done := false; !done; {
		select {
		case <-all:
			done = true
		case <-look.C:
			res.goroutines = max(res.goroutines, int64(runtime.NumGoroutine()-before-1)) // less the one that waits for all
		}
	}
	if n := refused.Load(); n > 0 {
		b.Fatalf("%d of %d probers were told that the plane fails", n, probers)
	}
	res.runs, res.busiest = runs.Load(), busiest.Load()
	if res.runs == 0 {
		b.Fatal("the check did not run")
	}
	return res
}
