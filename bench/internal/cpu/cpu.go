// Package cpu measures the processor time of a benchmark, of all threads
// of its process together. On a busy machine that
// says more than wall-clock time, which includes other processes.
package cpu

import (
	"testing"
	"time"
)

// Measure begins to measure. The returned function reports, as cpu-ns/op, the time
// used until then. Platforms without that information report nothing.
func Measure(b *testing.B) (report func()) {
	began, ok := used()
	return func() {
		if now, _ := used(); ok {
			b.ReportMetric(float64((now-began)/time.Nanosecond)/float64(b.N), "cpu-ns/op")
		}
	}
}
