package probe_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/probe"
)

// BenchmarkRun measures an uncached plane of checks that return at once.
func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1, 10, 50} {
		b.Run(fmt.Sprintf("checks=%d", n), func(b *testing.B) {
			checks := make([]*probe.Check, n)
			for i := range checks {
				checks[i] = probe.New("instant", time.Second, func(context.Context) error { return nil }, func(probe.Result) {})
			}
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				probe.Run(ctx, ctx, time.Second, checks)
			}
		})
	}
}
