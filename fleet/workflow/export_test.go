package workflow

import "time"

// SetCloseTime sets how long Close waits, and returns how long it waited before.
func SetCloseTime(d time.Duration) (before time.Duration) {
	before, closeTime = closeTime, d
	return before
}
