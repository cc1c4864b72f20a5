package worker_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// scaled returns the number in an environment variable, or a smaller default. CI
// tests only a part of the numbers that W15 promises.
func scaled(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

func inUse() (heap, stacks uint64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.StackInuse
}

func idle(ctx context.Context) error { <-ctx.Done(); return nil }

// crowd returns a running supervisor with n idle children.
func crowd(t testing.TB, n int) *worker.Supervisor {
	cfg := worker.SupervisorConfig{Children: make([]worker.Spec, n)}
	for i := range n {
		cfg.Children[i] = worker.FuncSpec("w"+strconv.Itoa(i), idle)
	}
	s := worker.NewSupervisor("tree", cfg)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Await(t.Context(), func(s worker.Status) bool { return s == worker.StatusRunning }); err != nil {
		t.Fatal(err)
	}
	return s
}

// WORKER_IDLE=100000 is the full number.
func TestIdleWorkersAreCheap(t *testing.T) {
	n := scaled("WORKER_IDLE", 10_000)
	heap, stacks := inUse()
	goroutines := runtime.NumGoroutine()
	s := crowd(t, n)
	h, st := inUse()
	perHeap, perStack := int64(h-heap)/int64(n), int64(st-stacks)/int64(n)
	t.Logf("%d workers: %d bytes of heap and %d of stack each, %.2f goroutines", n, perHeap, perStack, float64(runtime.NumGoroutine()-goroutines)/float64(n))
	if got := runtime.NumGoroutine() - goroutines; got > n+100 {
		t.Errorf("%d goroutines for %d workers, want one each", got, n)
	}
	if perHeap > 4<<10 {
		t.Errorf("%d bytes of heap for each worker, want at most 4 KiB", perHeap)
	}
	began := time.Now()
	stop(t, s)
	t.Logf("stopped in %v", time.Since(began))
}

// WORKER_RESTARTS=1000000 is the full number.
func TestRestartsDoNotGrow(t *testing.T) {
	n := int64(scaled("WORKER_RESTARTS", 30_000))
	var starts atomic.Int64
	half, all := make(chan struct{}), make(chan struct{})
	s := worker.NewSupervisor("tree", worker.SupervisorConfig{
		Backoff: worker.Backoff{Min: 1, Max: 1, MaxRestarts: worker.NoLimit},
		Children: []worker.Spec{worker.FuncSpec("a", func(ctx context.Context) error {
			switch starts.Add(1) {
			case n / 2:
				close(half)
			case n:
				close(all)
				<-ctx.Done()
				return nil
			}
			return errBoom
		})},
	})
	began := time.Now()
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-half
	before, _ := inUse()
	<-all
	after, _ := inUse()
	t.Logf("%d restarts, %.0f a second, heap %d KiB after half of them and %d KiB after all", n, float64(n)/time.Since(began).Seconds(), before>>10, after>>10)
	if after > before+512<<10 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	if got := s.State().Children[0].Restarts; got != int(n)-1 {
		t.Errorf("%d restarts were counted", got)
	}
	stop(t, s)
}

func BenchmarkIdleWorker(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		s := crowd(b, 1000)
		b.StartTimer()
		_ = s.Stop(context.Background())
	}
}

func BenchmarkRestart(b *testing.B) {
	b.ReportAllocs()
	n, all := int64(0), make(chan struct{})
	s := worker.NewSupervisor("tree", worker.SupervisorConfig{
		Backoff: worker.Backoff{Min: 1, Max: 1, MaxRestarts: worker.NoLimit},
		Children: []worker.Spec{worker.FuncSpec("a", func(ctx context.Context) error {
			if n++; n >= int64(b.N) {
				close(all)
				<-ctx.Done()
				return nil
			}
			return errBoom
		})},
	})
	_ = s.Start(b.Context())
	<-all
	_ = s.Stop(context.Background())
}

func BenchmarkSpawn(b *testing.B) {
	b.Run("worker", func(b *testing.B) {
		for b.Loop() {
			p := worker.NewProcess("p", exec.Command("/bin/true"))
			if err := p.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			<-p.Done()
		}
	})
	b.Run("exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
