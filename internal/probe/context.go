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
// when the check asks for Done: most checks that return at once never do, and
// the timer would cost several times what they cost.
type run struct {
	check   *Check
	batch   *batch
	number  uint64
	started time.Duration // set before the check sees the context

	timer atomic.Pointer[timerContext] // nil until Done is asked for
}

type timerContext struct {
	context.Context
	cancel context.CancelFunc
}

// Deadline returns when the run's timeout passes.
func (r *run) Deadline() (time.Time, bool) { return At(r.deadline()), true }

// Done returns the channel that closes when the run's timeout passes, its base
// is cancelled or it has ended.
func (r *run) Done() <-chan struct{} {
	timer := r.timer.Load()
	if timer == nil {
		ctx, cancel := context.WithDeadline(r.batch.base, At(r.deadline()))
		timer = &timerContext{ctx, cancel}
		if !r.timer.CompareAndSwap(nil, timer) {
			cancel()
			timer = r.timer.Load()
		}
		// The end of the run is recorded first and looks for a timer then. This
		// looks the other way round, so that one of the two cancels it.
		if r.check.hasEnded(r.number) {
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
	switch err := r.batch.base.Err(); {
	case err != nil:
		return err
	case r.check.hasEnded(r.number):
		return context.Canceled
	case Now() >= r.deadline():
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
	return r.batch.base.Value(key)
}

func (r *run) deadline() time.Duration { return r.started + r.check.timeout }

// finish ends the run and then its context.
func (r *run) finish(err error, ended time.Duration) {
	r.check.finish(err, r.started, ended)
	if timer := r.timer.Load(); timer != nil {
		timer.cancel()
	}
}
