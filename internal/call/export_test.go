package call

import "time"

// StandStill lets each moment end as in a process that stood still, until t ends.
func StandStill(t interface{ Cleanup(func()) }) {
	t.Cleanup(func() { onTime = Settle / 2 })
	onTime = -time.Hour
}

// Stacks cuts a dump into the stacks of its goroutines.
var Stacks = stacks

// HoldDumps keeps Stack from taking a dump until release is called. waiting tells
// how many calls of Stack wait meanwhile, covered how many calls the last dump was
// taken for.
func HoldDumps() (waiting, covered func() uint64, release func()) {
	recent.mu.Lock()
	began := arrivals.Load()
	return func() uint64 { return arrivals.Load() - began },
		func() uint64 { recent.mu.Lock(); defer recent.mu.Unlock(); return recent.covers - began },
		recent.mu.Unlock
}
