//go:build unix

package procpool

import (
	"bufio"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
)

func up(b *testing.B, k kind, n int) pool {
	b.Helper()
	p, err := k.make(n)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.stop)
	return p
}

// times is a histogram of durations, in steps of step, that makes no work for the
// garbage collector. The last element counts everything longer.
type times [400_000]uint32

const step = 100 * time.Nanosecond

var took times

func (t *times) reset() { *t = times{} }

func (t *times) add(d time.Duration) { t[min(int(d/step), len(t)-1)]++ }

// median returns the median. Unlike the mean it depends little on
// other load of the machine.
func (t *times) median() time.Duration {
	all, sum := 0, 0
	for _, n := range t {
		all += int(n)
	}
	for i, n := range t {
		if sum += int(n); 2*sum >= all {
			return time.Duration(i+1) * step
		}
	}
	return 0
}

var sizes = []struct {
	name string
	n    int
}{{"100B", 100}, {"4KB", 4 << 10}, {"1MB", 1 << 20}}

// BenchmarkRoundTrip has one caller and one worker that echoes.
func BenchmarkRoundTrip(b *testing.B) {
	trippers := append([]kind{{"floor.bytes", func(int) (pool, error) {
		return rawPool(func(socket string) *exec.Cmd { return self("raw:" + socket) })
	}}}, kinds...)
	for _, size := range sizes {
		for _, k := range trippers {
			b.Run(fmt.Sprintf("size=%s/peer=%s", size.name, k.peer), func(b *testing.B) {
				p := up(b, k, 1)
				q := question(k, value(size.n, ""))
				b.SetBytes(int64(size.n))
				b.ReportAllocs()
				took.reset()
				report := cpu.Measure(b)
				for b.Loop() {
					began := time.Now()
					got, err := p.echo(q)
					if err != nil || len(got) != len(q) {
						b.Fatal(len(got), err)
					}
					took.add(time.Since(began))
				}
				report()
				b.ReportMetric(float64(took.median().Nanoseconds()), "p50-ns")
			})
		}
	}
}

// BenchmarkStream has one worker send a thousand messages of 1 KB.
func BenchmarkStream(b *testing.B) {
	for _, k := range kinds {
		b.Run("peer="+k.peer, func(b *testing.B) {
			p := up(b, k, 1)
			q := question(k, value(1024, "stream"))
			b.SetBytes(streamed * 1024)
			b.ReportAllocs()
			took.reset()
			report := cpu.Measure(b)
			for b.Loop() {
				began := time.Now()
				n, _, err := p.stream(q)
				if err != nil || n != streamed {
					b.Fatal(n, err)
				}
				took.add(time.Since(began))
			}
			report()
			b.ReportMetric(float64(took.median().Nanoseconds()), "p50-ns")
		})
	}
}

// BenchmarkCallers has eight callers ask four workers for 4 KB each.
func BenchmarkCallers(b *testing.B) {
	for _, k := range kinds {
		b.Run("callers=8/workers=4/peer="+k.peer, func(b *testing.B) {
			p := up(b, k, 4)
			q := question(k, value(4<<10, ""))
			var left atomic.Int64
			left.Store(int64(b.N))
			took := make([][]time.Duration, 8)
			var all sync.WaitGroup
			report := cpu.Measure(b)
			b.ResetTimer()
			for i := range took {
				all.Go(func() {
					for left.Add(-1) >= 0 {
						began := time.Now()
						if _, err := p.echo(q); err != nil {
							b.Error(err)
							return
						}
						took[i] = append(took[i], time.Since(began))
					}
				})
			}
			all.Wait()
			b.StopTimer()
			report()
			every := slices.Concat(took...)
			slices.Sort(every)
			b.ReportMetric(float64(every[len(every)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(every[len(every)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}

// BenchmarkSpawn starts a worker, waits until it is ready, and stops it. The floor
// waits until the same binary has written to its standard output.
func BenchmarkSpawn(b *testing.B) {
	all := append([]kind{{"fork+exec", func(int) (pool, error) {
		cmd := self("started")
		in, err := cmd.StdinPipe()
		if err != nil {
			return pool{}, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return pool{}, err
		}
		if err := cmd.Start(); err != nil {
			return pool{}, err
		}
		_, err = bufio.NewReader(out).ReadString('\n')
		return pool{stop: func() { in.Close(); _ = cmd.Wait() }}, err
	}}}, kinds[1:]...)
	for _, k := range all {
		b.Run("peer="+k.peer, func(b *testing.B) {
			var ready time.Duration
			for b.Loop() {
				began := time.Now()
				p, err := k.make(1)
				if err != nil {
					b.Fatal(err)
				}
				ready += time.Since(began)
				p.stop()
			}
			b.ReportMetric(float64(ready.Nanoseconds())/float64(b.N), "ready-ns")
		})
	}
}
