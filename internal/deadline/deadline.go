// Package deadline has the moment at which something ends, by two clocks.
//
// Begin with [At]. The leases of a process stand on it.
package deadline

import "time"

// Time is a moment by the monotonic clock and by the wall clock. The monotonic clock stands
// still while the machine is suspended, and the wall clock may be set back. The moment has come
// when one of them says so. The zero Time has passed.
type Time struct {
	Monotonic, Wall time.Time
}

// At returns the moment t, which comes from time.Now.
func At(t time.Time) Time { return Time{t, t.Round(0)} }

// HasPassed reports whether the moment has come.
func (t Time) HasPassed() bool {
	now := time.Now()
	return !now.Before(t.Monotonic) || !now.Round(0).Before(t.Wall)
}
