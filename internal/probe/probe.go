// Package probe runs health checks and protects their callers from anything that
// a check does.
//
// A [Check] has at most one goroutine at any time. A run has its own context with its
// own timeout, detached from the caller's: a prober that disconnects neither cancels
// the run nor changes its result for other callers. Callers that come during a run
// share it. A panic and a runtime.Goexit are errors of the run. Go cannot end a run
// that does not return within its timeout: such a run is overdue until it returns, and
// the check starts no second one.
package probe

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Result is the end of one run.
type Result struct {
	// Err is nil when the check passed in time. Otherwise it is the error that
	// the check returned, a [*TimeoutError], a [*call.PanicError] or an error
	// that is [call.ErrGoexit].
	Err error
	// Run numbers the runs of a check from 1. It is 0 when there was none.
	Run uint64
	// Took is how long it ran.
	Took time.Duration
	// Ended is when it ended, on the clock of [Now].
	Ended time.Duration
}

// epoch is the zero of [Now].
var epoch = time.Now()

// Now reads the monotonic clock of results.
func Now() time.Duration { return time.Since(epoch) }

// At returns the time of day of a reading of [Now].
func At(now time.Duration) time.Time { return epoch.Add(now) }

// TimeoutError is the result of a run that took its whole timeout or longer,
// also when the check returned nil in the end.
type TimeoutError struct {
	Timeout time.Duration // the timeout of the check
	Took    time.Duration // how long the run took
	Err     error         // the error that it returned, late; may be nil
}

// Error says how long the run took and what it returned.
func (e *TimeoutError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("took %v, over its timeout of %v", Round(e.Took), e.Timeout)
	}
	return fmt.Sprintf("timed out after %v: %v", e.Timeout, e.Err)
}

// Unwrap returns the error that the check returned in the end.
func (e *TimeoutError) Unwrap() error { return e.Err }

// Round rounds a duration to a tenth of its unit, for people: 3.2s, 15.1ms.
func Round(d time.Duration) time.Duration {
	for unit := time.Second; unit > time.Nanosecond; unit /= 1000 {
		if d >= unit {
			return d.Round(unit / 10)
		}
	}
	return d
}

// Kind is the kind of a check in events and in the labels of its goroutine.
const Kind = "probe"

// Check is one check and its one run. Make it with [New]. All methods may be
// called concurrently.
type Check struct {
	name    string
	timeout time.Duration
	fn      func(context.Context) error
	report  func(Result)

	mu        sync.Mutex // guards everything below
	running   bool
	reporting bool // the run in progress has ended and is being reported
	overdue   bool // Status has said that the run in progress is overdue
	closed    bool
	started   time.Duration // of the run in progress
	ended     chan struct{} // made by the first caller that has to wait, closed at the end of the run
	last      Result
}

// New returns a check that runs fn with the given timeout. Its errors have the
// name. timeout must be positive and fn not nil; the caller has checked both.
//
// If report is not nil, the check calls it at the end of a run, in the run's
// goroutine and before callers of the run go on. It must not block.
func New(name string, timeout time.Duration, fn func(context.Context) error, report func(Result)) *Check {
	return &Check{name: name, timeout: timeout, fn: fn, report: report}
}

// Timeout returns the timeout of a run.
func (c *Check) Timeout() time.Duration { return c.timeout }

// Status returns the result of the last run that has ended and, when a run is in
// progress, for how long. The run is overdue once that time has reached the
// timeout. It then counts as a [*TimeoutError], even if it returns at that
// moment.
func (c *Check) Status() (last Result, running time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running || c.reporting {
		return c.last, 0, false
	}
	running = Now() - c.started
	if running >= c.timeout {
		c.overdue = true
	}
	return c.last, running, true
}

// Close makes sure that no further run begins. It does not end a run in progress:
// for that, cancel the base context and call [Check.Wait].
func (c *Check) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Wait waits for the end of the run that is in progress at the call, or until ctx
// is done. It reports whether the run has ended.
func (c *Check) Wait(ctx context.Context) bool {
	ended, _ := c.inProgress()
	if ended == nil {
		return true
	}
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// claim gives the next run to the caller, who must execute it. It returns false when a run
// is in progress, or after Close.
func (c *Check) claim() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running || c.closed {
		return false
	}
	c.running, c.started = true, Now()
	return true
}

// inProgress describes the run in progress: a channel that closes at its end, and the
// time when it becomes overdue. The channel is nil when there is no run.
func (c *Check) inProgress() (ended <-chan struct{}, overdue time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		return nil, 0
	}
	if c.ended == nil {
		c.ended = make(chan struct{})
	}
	return c.ended, c.started + c.timeout
}

// finish records the end of the claimed run and wakes its callers.
func (c *Check) finish(err error) {
	c.mu.Lock()
	ended := Now()
	took := ended - c.started
	if took >= c.timeout || c.overdue {
		err = &TimeoutError{Timeout: c.timeout, Took: took, Err: err}
	}
	c.last.Err, c.last.Took, c.last.Ended = err, took, ended
	c.last.Run++
	if c.report != nil {
		c.reporting = true
		res := c.last
		c.mu.Unlock()
		c.report(res)
		c.mu.Lock()
		c.reporting = false
	}
	c.running, c.overdue = false, false
	waiting := c.ended
	c.ended = nil
	c.mu.Unlock()
	if waiting != nil {
		close(waiting)
	}
}
