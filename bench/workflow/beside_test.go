package workflow

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// sizes are how many entities a bucket has.
func sizes() []int {
	if testing.Short() {
		return []int{10_000}
	}
	return []int{10_000, 100_000, 1_000_000}
}

// BenchmarkStart starts a Manager until its queries are answered. The time includes its
// Close.
func BenchmarkStart(b *testing.B) {
	for _, size := range sizes() {
		b.Run(fmt.Sprintf("entities=%d", size), func(b *testing.B) {
			js, _ := serve(b, broker.SyncInterval)
			fill(b, js, size)
			began := time.Duration(0)
			report := cpu.Measure(b)
			for range b.N {
				at := time.Now()
				m := managerOf(b, js)
				began += time.Since(at)
				if err := m.Close(); err != nil {
					b.Fatal(err)
				}
			}
			report()
			b.ReportMetric(float64(began.Milliseconds())/float64(b.N), "start-ms")
		})
	}
}

// BenchmarkBeside lists a hundred entities beside 64 writers, and moves an entity beside
// a list that decodes all. It reports the median and the slowest hundredth. All goroutines
// share the processors, and the server does too.
func BenchmarkBeside(b *testing.B) {
	ctx := context.Background()
	for _, size := range sizes() {
		b.Run(fmt.Sprintf("entities=%d", size), func(b *testing.B) {
			js, _ := serve(b, broker.SyncInterval)
			fill(b, js, size)
			m := manager(b, js)
			ops := opsOf(m)
			const writers = 64
			for w := range writers {
				if err := ops.create(ctx, fmt.Sprintf("w%d", w)); err != nil {
					b.Fatal(err)
				}
			}
			turns := make([]int, writers)
			move := func(w int) error {
				turns[w]++
				return ops.transition(ctx, fmt.Sprintf("w%d", w), []string{"flying", "capturing"}[turns[w]%2])
			}
			list := func(int) error {
				got, err := m.List(ctx, survey, workflow.ListOptions{Match: map[string]any{"org": "org-7"}, Limit: 100})
				if err == nil && len(got) != 100 {
					err = fmt.Errorf("%d entities", len(got))
				}
				return err
			}
			scan := func(int) error {
				_, err := m.List(ctx, survey, workflow.ListOptions{Match: map[string]any{"count": 1}})
				return err
			}
			for _, of := range []struct {
				name   string
				op     func(int) error
				beside func(int) error
				n      int
			}{
				{"op=List/beside=none", list, nil, 0}, {"op=List/beside=writers", list, move, writers},
				{"op=Transition/beside=none", move, nil, 0}, {"op=Transition/beside=scan", move, scan, 1},
			} {
				b.Run(of.name, func(b *testing.B) { beside(b, of.op, of.beside, of.n) })
			}
		})
	}
}

// beside measures op while n goroutines do something else.
func beside(b *testing.B, op, other func(int) error, n int) {
	stop := make(chan struct{})
	var others sync.WaitGroup
	for w := range n {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := other(w); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	took := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		if err := op(0); err != nil {
			b.Error(err)
			break
		}
		took = append(took, time.Since(began))
	}
	b.StopTimer()
	close(stop)
	others.Wait()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e6, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
}
