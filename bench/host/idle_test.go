package host

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// BenchmarkHostedIdle measures what a worker costs its host while no message comes: the
// goroutines and the bytes of heap and stacks. All workers are on one stream, whose
// server is another process. It reports how long the host took to recover them, too.
// BENCH_WORKERS is how many there are, 500 without it.
func BenchmarkHostedIdle(b *testing.B) {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("BENCH_WORKERS"), "500"))
	check(b, err)
	if testing.Short() {
		n = 20
	}
	b.Run(fmt.Sprint("workers=", n), func(b *testing.B) {
		server := brokertest.StartCluster(b, 1)
		bd := &bed{js: brokertest.Connect(b, broker.Config{URL: server.URL(), Streams: []jetstream.StreamConfig{
			{Name: "WORK", Subjects: []string{"work.>"}, MaxConsumers: 2 * n},
		}}).JetStream()}
		first := bd.start(b, "a")
		each := make(chan int)
		var creators sync.WaitGroup
		for range 16 {
			creators.Go(func() {
				for i := range each {
					_, err := first.Create(b.Context(), host.CreateRequest{ID: fmt.Sprint("w", i), MIMEType: "text/x-starlark", Topic: fmt.Sprint("work.", i), Code: []byte("def handle(message): pass")})
					if err != nil {
						b.Error(err)
					}
				}
			})
		}
		for i := range n {
			each <- i
		}
		close(each)
		creators.Wait()
		stop(b, first)
		b.ResetTimer()
		for i := range b.N {
			goroutines, bytes := used()
			h := bd.start(b, fmt.Sprint("b", i))
			b.StopTimer()
			if got := len(h.Local()); got != n {
				b.Fatalf("%d of %d workers run", got, n)
			}
			g, by := used()
			b.ReportMetric(float64(g-goroutines)/float64(n), "goroutines/worker")
			b.ReportMetric(float64(by-bytes)/float64(n), "B/worker")
			stop(b, h)
			b.StartTimer()
		}
	})
}

// used returns the number of goroutines and the bytes of heap and stacks in use.
func used() (goroutines, bytes int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), int(m.HeapAlloc + m.StackInuse)
}
