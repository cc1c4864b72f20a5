// Package progress notes the signs of progress of one piece of work. It knows no clock: its moments
// are nanoseconds after one that the caller chooses.
package progress

import (
	"sync/atomic"
	"time"
)

// Step is how exactly [Meter.Told] tells a time: an announcement of work that gets on all the time
// then differs only from time to time.
const Step = 10 * time.Second

// Meter notes when the last sign of progress came, and the longest time between two. Its zero value
// has no sign. Its methods may be called concurrently, and take no lock.
type Meter struct {
	last atomic.Int64 // 0 for none
	gap  atomic.Int64
}

// Begin notes that the work begins now: the time before was no gap.
func (m *Meter) Begin(now int64) { m.last.Store(now) }

// Sign notes a sign of progress.
func (m *Meter) Sign(now int64) {
	last := m.last.Swap(now)
	for last != 0 {
		longest := m.gap.Load()
		if now-last <= longest || m.gap.CompareAndSwap(longest, now-last) {
			return
		}
	}
}

// Told returns the last sign and the longest gap, to within [Step]. origin is the moment 0. The time
// is zero when there was no sign.
func (m *Meter) Told(origin time.Time) (last time.Time, gap time.Duration) {
	at := m.last.Load()
	if at == 0 {
		return time.Time{}, 0
	}
	last = origin.Add(time.Duration(at)).UTC().Truncate(Step)
	return last, (time.Duration(m.gap.Load()) + Step - 1).Truncate(Step)
}
