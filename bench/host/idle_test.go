package host

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
)

// BenchmarkHostedIdle measures what a worker costs its host while no message comes: the
// goroutines and the bytes of heap and stacks. All workers are on one stream, whose
// server is another process. It reports how long the host took to recover them, too.
//
// To create them, the host runs their code in its own process: otherwise each trial of
// code would start a process, which takes longer than the rest.
//
// BENCH_WORKERS is how many there are, 500 without it. With it the benchmark also
// reports how long it takes to create a worker, to list all, to count what waits for
// them, to stop their host, to hand half of them to another host, and to take over those
// of a host that was killed; the
// processor time that host and server need while no message comes, and the server's
// memory.
func BenchmarkHostedIdle(b *testing.B) {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("BENCH_WORKERS"), "500"))
	check(b, err)
	all := os.Getenv("BENCH_WORKERS") != ""
	if testing.Short() {
		n = 20
	}
	b.Run(fmt.Sprint("workers=", n), func(b *testing.B) {
		server := brokertest.StartCluster(b, 1)
		bd := &bed{trusted: true, js: brokertest.Connect(b, broker.Config{URL: server.URL(), Streams: []jetstream.StreamConfig{
			{Name: "WORK", Subjects: []string{"work.>"}, MaxConsumers: 2 * n},
		}}).JetStream()}
		pid := firstChild()
		metrics := make(map[string]float64) // reported at the end: a reset of the timer forgets them
		took := func(name string, began time.Time) { metrics[name+"-s"] = time.Since(began).Seconds() }
		began := time.Now()
		first := bd.start(b, "a")
		each := make(chan int)
		var creators sync.WaitGroup
		for range 16 {
			creators.Go(func() {
				for i := range each {
					_, err := first.Create(b.Context(), host.Spec{ID: fmt.Sprint("w", i), MIMEType: "text/x-starlark", Topic: fmt.Sprint("work.", i), Code: []byte("def handle(message): pass")})
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
		metrics["create-s/worker"] = time.Since(began).Seconds() / float64(n)
		began = time.Now()
		records, err := first.List(b.Context())
		check(b, err)
		took("list", began)
		began = time.Now()
		_, err = first.Waiting(b.Context(), records...)
		check(b, err)
		took("backlogs", began)
		began = time.Now()
		stop(b, first)
		took("stop", began)
		bd.trusted = false // no code runs from here on
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
			if all {
				const rest = 20 * time.Second
				ours, its := spent(os.Getpid()), spent(pid)
				time.Sleep(rest)
				b.ReportMetric(float64(spent(os.Getpid())-ours)/float64(rest), "host-cpus")
				b.ReportMetric(float64(spent(pid)-its)/float64(rest), "server-cpus")
				b.ReportMetric(float64(resident(pid)), "server-B")
			}
			stop(b, h)
			b.StartTimer()
		}
		b.StopTimer()
		if all {
			other := startProcess(b, server.URL())
			began = time.Now()
			h := bd.start(b, "c")
			took("handover", began)
			share := len(h.Local())
			check(b, other.Process.Kill())
			_ = other.Wait()
			began = time.Now()
			for len(h.Local()) < n {
				time.Sleep(10 * time.Millisecond)
			}
			took("takeover", began)
			b.ReportMetric(float64(n-share), "taken-over")
			stop(b, h)
			for unit, v := range metrics {
				b.ReportMetric(v, unit)
			}
		}
	})
}

// hostEnv makes this program a host of the server that it names.
const hostEnv = "BENCH_HOST_URL"

// startProcess starts a host in a process of its own, and returns when it has all workers.
func startProcess(b *testing.B, url string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hostEnv+"="+url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check(b, err)
	check(b, cmd.Start())
	if _, err := out.Read(make([]byte, 1)); err != nil {
		b.Fatal(err)
	}
	return cmd
}

// runProcess is that host. It runs until it is killed.
func runProcess(url string) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	engines, err := engine.NewRegistry(starlark.New())
	if err != nil {
		return err
	}
	h, err := host.New(js, host.Config{HostID: "p", Engines: engines})
	if err != nil {
		return err
	}
	if err := h.Start(context.Background()); err != nil {
		return err
	}
	for h.Check(context.Background()) != nil {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("ready")
	<-h.Done()
	return h.Err()
}

// used returns the number of goroutines and the bytes of heap and stacks in use.
func used() (goroutines, bytes int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), int(m.HeapAlloc + m.StackInuse)
}

// stat returns the fields of a process behind its name (proc_pid_stat(5)), and nil where
// there are none.
func stat(pid string) []string {
	text, _ := os.ReadFile("/proc/" + pid + "/stat")
	_, fields, _ := strings.Cut(string(text), ") ")
	return strings.Fields(fields)
}

// firstChild returns a process that this one has started, or 0.
func firstChild() int {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		pid := filepath.Base(dir)
		if f := stat(pid); len(f) > 2 && f[1] == strconv.Itoa(os.Getpid()) {
			n, _ := strconv.Atoi(pid)
			return n
		}
	}
	return 0
}

// spent returns the processor time of a process.
func spent(pid int) time.Duration {
	f := stat(strconv.Itoa(pid))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * (time.Second / 100) // USER_HZ
}

// resident returns the memory of a process.
func resident(pid int) int {
	f := stat(strconv.Itoa(pid))
	if len(f) < 22 {
		return 0
	}
	pages, _ := strconv.Atoi(f[21])
	return pages * syscall.Getpagesize()
}
