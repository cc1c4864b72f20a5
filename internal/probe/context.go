package probe

import (
	"context"
	"sync/atomic"
	"time"
)

// epoch is the zero of [Now].
var epoch = time.Now()

// run is one run of one check, and its context. The context has the base's values
// and the run's deadline, and is cancelled when the run ends. It gets a real
// timer only when the check calls Done. Most checks that return at once never do,
// and a timer would cost several times as much as they do.
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
		// finish records the end of the run first and then looks for a timer.
		// Done sets the timer first and then looks for the end. So one of the two
		// cancels the timer.
		if r.check.hasEnded(r.number) {
			timer.cancel()
		}
	}
	return timer.Done()
}

// Err says why Done is closed, or would be closed if the check had called it.
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

// Value returns the base's value. Once the run has a timer context, Value asks
// that instead of the base. So package context recognizes it, and need not start
// a goroutine to watch an unknown type.
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
