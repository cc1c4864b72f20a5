//go:build unix

package procpool

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ours "github.com/pleme-io/lifecycle-go/procpool"
)

// BenchmarkPoison has two callers that keep half of four workers busy with queries of a
// millisecond: alone, and beside a caller that sends a query of death twenty times a
// second, each with another payload.
func BenchmarkPoison(b *testing.B) {
	for _, beside := range []string{"nothing", "poison"} {
		b.Run("workers=4/beside="+beside, func(b *testing.B) {
			p, err := ours.New(ours.Config{
				Command: func() *exec.Cmd { return self("lifecycle-go") }, MinWorkers: 4, MaxWorkers: 4, MaxQueue: 20, SocketDir: b.TempDir() + "/s", Logger: discard,
			})
			if err != nil {
				b.Fatal(err)
			}
			if err := p.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			defer func() { _ = p.Stop(b.Context()) }()
			for p.Stats().Ready < 4 {
				time.Sleep(time.Millisecond)
			}
			over := make(chan struct{})
			var poison, callers sync.WaitGroup
			if beside == "poison" {
				poison.Go(func() { kills(b, p, over) })
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			took := make([][]time.Duration, 2)
			b.ResetTimer()
			for i := range took {
				callers.Go(func() {
					for left.Add(-1) >= 0 {
						began := time.Now()
						if _, err := p.Do(b.Context(), work, ours.Caller("healthy")); err != nil {
							b.Error(err)
							return
						}
						took[i] = append(took[i], time.Since(began))
					}
				})
			}
			callers.Wait()
			b.StopTimer()
			close(over)
			poison.Wait()
			every := slices.Concat(took...)
			slices.Sort(every)
			b.ReportMetric(float64(every[len(every)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(every[len(every)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}

// kills sends queries that kill their workers.
func kills(b *testing.B, p *ours.Pool, over <-chan struct{}) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		payload := json.RawMessage(fmt.Sprintf(`"die %d"`, n))
		if _, err := p.Do(b.Context(), payload, ours.Caller("poisonous"), ours.Idempotent()); !errors.Is(err, ours.ErrPoison) && !errors.Is(err, ours.ErrDeaths) {
			b.Errorf("a query of death: %v", err)
		}
		select {
		case <-over:
			return
		case <-tick.C:
		}
	}
}
