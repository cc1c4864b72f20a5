package workflow

import (
	"context"
	"fmt"
	"testing"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// BenchmarkKeyed updates one entity that has been written many times before, without and with
// an idempotency key. The entity remembers as many keys as it can.
func BenchmarkKeyed(b *testing.B) {
	ctx := context.Background()
	bump := func(p workflow.Participant) error { p.(*mission).Count++; return nil }
	for _, history := range []int{100, 3_000, 60_000} {
		if testing.Short() && history > 100 {
			continue
		}
		for _, peer := range []string{"plain", "keyed"} {
			b.Run(fmt.Sprintf("history=%d/peer=%s", history, peer), func(b *testing.B) {
				js, _ := serve(b, broker.SyncInterval)
				m := manager(b, js)
				if err := m.Create(ctx, &mission{ID: "old", State: "flying", Area: area}); err != nil {
					b.Fatal(err)
				}
				n := 0
				write := func() {
					n++
					var opts []workflow.WriteOption
					if peer == "keyed" {
						opts = append(opts, workflow.Key(fmt.Sprint("key-", n)))
					}
					if err := m.Update(ctx, survey, "old", bump, opts...); err != nil {
						b.Fatal(err)
					}
				}
				for range history {
					write()
				}
				report := cpu.Measure(b)
				b.ResetTimer()
				for range b.N {
					write()
				}
				b.StopTimer()
				report()
			})
		}
	}
}
