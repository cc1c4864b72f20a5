package probe

import (
	"context"
	"sync/atomic"
	"time"
)

// epoch is what [Now] counts from.
var epoch = time.Now()

// run is one run of one check, and its context: the base's values, the run's
// deadline, cancelled when the run ends. It becomes a real timer context only
// when somebody asks for Done: most checks that return at once never do, and
// the timer would cost several times what they cost.
type run struct {
	check    *Check
	base     context.Context
	deadline time.Duration // since epoch; set before fn sees the context

	ended atomic.Bool
	timer atomic.Pointer[timerContext] // nil until Done is asked for
}

type timerContext struct {
	context.Context
	cancel context.CancelFunc
}

// Deadline returns when the run's timeout passes.
func (r *run) Deadline() (time.Time, bool) { return epoch.Add(r.deadline), true }

// Done returns the channel that closes when the run's timeout passes, its base
// is cancelled or it has ended.
func (r *run) Done() <-chan struct{} {
	timer := r.timer.Load()
	if timer == nil {
		ctx, cancel := context.WithDeadline(r.base, epoch.Add(r.deadline))
		timer = &timerContext{ctx, cancel}
		if !r.timer.CompareAndSwap(nil, timer) {
			cancel()
			timer = r.timer.Load()
		}
		// end stores ended and then looks for a timer; this looks the other
		// way round, so that one of the two cancels it.
		if r.ended.Load() {
			timer.cancel()
		}
	}
	return timer.Done()
}

// Err says why Done is closed, or would be if it had been asked for.
func (r *run) Err() error {
	if timer := r.timer.Load(); timer != nil {
		return timer.Err()
	}
	switch err := r.base.Err(); {
	case err != nil:
		return err
	case r.ended.Load():
		return context.Canceled
	case Now() >= r.deadline:
		return context.DeadlineExceeded
	}
	return nil
}

// Value returns the base's value. Once there is a timer context it is asked in
// the base's place: that is how package context finds that it need not start a
// goroutine to watch a type that it does not know.
func (r *run) Value(key any) any {
	if timer := r.timer.Load(); timer != nil {
		return timer.Value(key)
	}
	return r.base.Value(key)
}

// end cancels the context.
func (r *run) end() {
	r.ended.Store(true)
	if timer := r.timer.Load(); timer != nil {
		timer.cancel()
	}
}
