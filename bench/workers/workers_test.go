package workers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/worker"
)

// aretw0Most: its supervisor copies the state of all children whenever one ends,
// so that a stop takes the square of their number: 140 s for 10 000.
const aretw0Most = 1000

const childEnv = "BENCH_WORKERS_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(0) // the process that is spawned
	}
	goleak.VerifyTestMain(m)
}

var errFails = errors.New("fails")

func TestTreesDoTheWork(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.peer, func(t *testing.T) {
			c, err := gather(k, 3)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.stop(); err != nil || c.ended.Load() != 3 {
				t.Errorf("%v, %d of 3 have ended", err, c.ended.Load())
			}
			if starts, err := restarts(k, 20); err != nil || starts < 20 {
				t.Errorf("%v, %d starts", err, starts)
			}
		})
	}
}

// memory returns the memory that the heap and the stacks of this process use.
func memory() (bytes int64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// sizes returns the numbers of idle workers to measure.
func sizes() []int {
	if testing.Short() {
		return []int{1000}
	}
	return []int{1000, 10_000, 100_000}
}

// BenchmarkIdle holds a crowd of workers that do nothing.
func BenchmarkIdle(b *testing.B) {
	for _, n := range sizes() {
		for _, k := range kinds {
			if k.most > 0 && n > k.most {
				continue
			}
			b.Run(fmt.Sprintf("workers=%d/peer=%s", n, k.peer), func(b *testing.B) {
				var bytes, goroutines float64
				for b.Loop() {
					before, running := memory(), runtime.NumGoroutine()
					c, err := gather(k, n)
					if err != nil {
						b.Fatal(err)
					}
					settle(n)
					bytes += float64(memory()-before) / float64(n)
					goroutines += float64(runtime.NumGoroutine()-running) / float64(n)
					if err := c.stop(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(bytes/float64(b.N), "B/worker")
				b.ReportMetric(goroutines/float64(b.N), "goroutines/worker")
			})
		}
	}
}

// settle waits until no goroutine has anything to do, as far as the
// number of goroutines tells.
func settle(n int) {
	for before, same := runtime.NumGoroutine(), 0; same < 5; {
		time.Sleep(time.Millisecond + time.Duration(n)*100*time.Nanosecond)
		if now := runtime.NumGoroutine(); now == before {
			same++
		} else {
			before, same = now, 0
		}
	}
}

// restarts lets one child fail at once until it was started n times.
func restarts(k kind, n int64) (starts int64, err error) {
	var begun atomic.Int64
	all := make(chan struct{})
	t, err := k.grow(1, func(ctx context.Context) error {
		switch now := begun.Add(1); {
		case now < n:
			return errFails
		case now == n:
			close(all)
		}
		<-ctx.Done()
		return nil
	})
	if err != nil {
		return 0, err
	}
	<-all
	return begun.Load(), t.stop()
}

// BenchmarkRestart lets a function fail as soon as it is called.
func BenchmarkRestart(b *testing.B) {
	for _, k := range kinds {
		b.Run("peer="+k.peer, func(b *testing.B) {
			b.ReportAllocs()
			report := cpu.Measure(b)
			if _, err := restarts(k, int64(b.N)+1); err != nil {
				b.Fatal(err)
			}
			report()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "restarts/s")
		})
	}
}

// BenchmarkGrowth says how much more memory is in use after a million restarts,
// with the tree still there.
func BenchmarkGrowth(b *testing.B) {
	n := int64(1_000_000)
	if testing.Short() {
		n = 1000
	}
	for _, k := range kinds {
		b.Run("peer="+k.peer, func(b *testing.B) {
			grown := 0.0
			for b.Loop() {
				var begun atomic.Int64
				var before int64
				all := make(chan struct{})
				t, err := k.grow(1, func(ctx context.Context) error {
					switch begun.Add(1) {
					case n / 100: // one-time allocations have been made
						before = memory()
					case n:
						close(all)
						<-ctx.Done()
						return nil
					}
					return errFails
				})
				if err != nil {
					b.Fatal(err)
				}
				<-all
				grown += float64(memory() - before)
				if err := t.stop(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(grown/float64(b.N), "grown-B")
		})
	}
}

// BenchmarkStop10k stops ten thousand idle workers.
func BenchmarkStop10k(b *testing.B) {
	n := 10_000
	if testing.Short() {
		n = 500
	}
	for _, k := range kinds {
		if k.most > 0 && n > k.most {
			continue
		}
		b.Run("peer="+k.peer, func(b *testing.B) {
			var took time.Duration
			for b.Loop() {
				c, err := gather(k, n)
				if err != nil {
					b.Fatal(err)
				}
				began := time.Now()
				if err := c.stop(); err != nil {
					b.Fatal(err)
				}
				took += time.Since(began)
				if ended := c.ended.Load(); ended != int64(n) {
					b.Fatalf("%d of %d have ended", ended, n)
				}
			}
			b.ReportMetric(took.Seconds()*1e3/float64(b.N), "stop-ms")
		})
	}
}

// BenchmarkProcess runs a program that exits at once, from its start until it
// has been reaped; spawn-sec is the part until Start returns.
func BenchmarkProcess(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	command := func() *exec.Cmd {
		cmd := exec.Command(self)
		cmd.Env = []string{childEnv + "=1"}
		return cmd
	}
	b.Run("peer=os-exec", func(b *testing.B) {
		spawned := time.Duration(0)
		for b.Loop() {
			began := time.Now()
			cmd := command()
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			spawned += time.Since(began)
			if err := cmd.Wait(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(spawned.Seconds()/float64(b.N), "spawn-sec")
	})
	b.Run("peer=lifecycle-go", func(b *testing.B) {
		spawned := time.Duration(0)
		for b.Loop() {
			began := time.Now()
			p := worker.NewProcess("p", command())
			if err := p.Start(context.Background()); err != nil {
				b.Fatal(err)
			}
			spawned += time.Since(began)
			<-p.Gone()
			if err := p.Err(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(spawned.Seconds()/float64(b.N), "spawn-sec")
	})
}

// BenchmarkStopProcesses stops a thousand programs at once, until the last one has been reaped.
func BenchmarkStopProcesses(b *testing.B) {
	n := 1000
	if testing.Short() {
		n = 50
	}
	command := func() *exec.Cmd { return exec.Command("sleep", "1000") }
	b.Run("peer=os-exec", func(b *testing.B) {
		var took time.Duration
		for b.Loop() {
			var all []*exec.Cmd
			for range n {
				cmd := command()
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				all = append(all, cmd)
			}
			began := time.Now()
			var ends sync.WaitGroup
			for _, cmd := range all {
				ends.Go(func() {
					_ = cmd.Process.Signal(syscall.SIGTERM)
					_ = cmd.Wait() // it was terminated
				})
			}
			ends.Wait()
			took += time.Since(began)
		}
		b.ReportMetric(took.Seconds()*1e3/float64(b.N), "stop-ms")
	})
	b.Run("peer=lifecycle-go", func(b *testing.B) {
		var took time.Duration
		for b.Loop() {
			var all []*worker.Process
			for range n {
				p := worker.NewProcess("p", command())
				if err := p.Start(context.Background()); err != nil {
					b.Fatal(err)
				}
				all = append(all, p)
			}
			began := time.Now()
			var ends sync.WaitGroup
			for _, p := range all {
				ends.Go(func() {
					_ = p.Stop(context.Background())
					<-p.Gone()
				})
			}
			ends.Wait()
			took += time.Since(began)
		}
		b.ReportMetric(took.Seconds()*1e3/float64(b.N), "stop-ms")
	})
}
