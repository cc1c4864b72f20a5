// Package cpu measures the processor time that a benchmark uses, in all threads of its
// process. On a busy machine that says more than wall-clock time, which includes the
// time of other processes.
package cpu

import (
	"testing"
	"time"
)

// Measure starts measuring. The returned function reports the time used since then, as
// cpu-ns/op. It reports nothing on platforms without a measure of processor time.
func Measure(b *testing.B) (report func()) {
	began, ok := used()
	return func() {
		if now, _ := used(); ok {
			b.ReportMetric(float64((now-began)/time.Nanosecond)/float64(b.N), "cpu-ns/op")
		}
	}
}

// Used returns the processor time that the process has used, 0 on platforms without a measure
// of it.
func Used() time.Duration {
	t, _ := used()
	return t
}
