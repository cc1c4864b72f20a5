package call

import "time"

// StandStill makes every wait for a call end as in a process that was suspended, until t ends.
func StandStill(t interface{ Cleanup(func()) }) {
	t.Cleanup(func() { maxDelay = Settle / 2 })
	maxDelay = -time.Hour
}

// HoldProfiles keeps [Abandoned] from taking a profile until release is called. waiting
// returns how many callers have come since, and covered how many of these the last profile
// was taken for.
func HoldProfiles() (waiting, covered func() uint64, release func()) {
	recent.mu.Lock()
	before := recent.asked.Load()
	waiting = func() uint64 { return recent.asked.Load() - before }
	covered = func() uint64 {
		recent.mu.Lock()
		defer recent.mu.Unlock()
		return recent.covers - before
	}
	return waiting, covered, recent.mu.Unlock
}

// StacksOf is stacksOf.
func StacksOf(profile, kind, name string) string { return stacksOf(profile, kind, name) }
