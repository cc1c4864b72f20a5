package eventlog

import (
	"sync"
	"time"
)

// Readings knows which caller reads which object now, so that a log has the begin of a
// reading and not each request of it. The zero value is ready; its methods may be called
// concurrently.
type Readings struct {
	mu   sync.Mutex
	last map[[2]string]time.Time
}

// Bounds of a Readings.
const (
	readingPause = 10 * time.Minute // at most, between two requests of one reading
	maxReadings  = 10_000
)

// Note notes a request of the caller who for the object what. It reports whether the request
// continues a reading: the request before was less than ten minutes ago. When there are very
// many readings, it forgets them all, and each begins again with its next request.
func (r *Readings) Note(now time.Time, who, what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.last[[2]string{who, what}]
	if r.last == nil || !ok && len(r.last) >= maxReadings {
		r.last = make(map[[2]string]time.Time)
	}
	r.last[[2]string{who, what}] = now
	return ok && now.Sub(last) < readingPause
}
