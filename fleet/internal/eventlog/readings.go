package eventlog

import (
	"sync"
	"time"
)

// Readings knows who reads what at the moment, so that a log notes the begin of a reading
// and not each of its looks. The zero value is ready; its methods may be called
// concurrently.
type Readings struct {
	mu   sync.Mutex
	last map[[2]string]time.Time
}

// Bounds of a Readings.
const (
	readingPause = 10 * time.Minute // between two looks of one reading
	maxReadings  = 10_000
)

// GoesOn notes that who looks at what now, and reports whether that goes on with a reading:
// the look before was less than ten minutes ago. It may forget readings when there are very
// many; then their next look is a begin.
func (r *Readings) GoesOn(now time.Time, who, what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.last[[2]string{who, what}]
	if r.last == nil || !ok && len(r.last) >= maxReadings {
		r.last = make(map[[2]string]time.Time)
	}
	r.last[[2]string{who, what}] = now
	return ok && now.Sub(last) < readingPause
}
