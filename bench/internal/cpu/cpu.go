// Package cpu measures the processor time that a benchmark takes, all threads
// of its process together. On a machine that is busy with something else too it
// says more than the time on the clock, which holds what the others took.
package cpu

import (
	"testing"
	"time"
)

// Measure begins to measure. What it returns reports, as cpu-ns/op, what was
// used until then. Platforms that do not tell report nothing.
func Measure(b *testing.B) (report func()) {
	began, ok := used()
	return func() {
		if now, _ := used(); ok {
			b.ReportMetric(float64((now-began)/time.Nanosecond)/float64(b.N), "cpu-ns/op")
		}
	}
}
