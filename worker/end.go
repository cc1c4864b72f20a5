package worker

import (
	"context"
	"fmt"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// This file has the end of a worker: which final status it gets, and which callers learn of it.

// OnEnd makes the worker call fn once, when it is in a terminal status, or at once when
// it already is. fn runs on the goroutine that ends the worker, and must return at once.
// A panic of fn is ignored.
func (b *BaseWorker) OnEnd(fn func()) {
	b.mu.Lock()
	ended := b.ended
	if !ended {
		b.onEnd = append(b.onEnd, fn)
	}
	b.mu.Unlock()
	if ended {
		callOnEnd(fn)
	}
}

func callOnEnd(fn func()) {
	_ = call.Do("OnEnd", func() error { fn(); return nil }) // the worker has ended: a panic cannot fail it any more
}

// Kill records that the worker did not stop when asked, and was ended by force or
// abandoned, with err. It returns false and changes nothing when the worker has
// ended by itself meanwhile. Call [BaseWorker.Finish] once none of the worker's
// code runs any more.
func (b *BaseWorker) Kill(err error) bool { return b.endWith(err, true) }

// abandon ends the worker with err while some of its code still runs. Call Finish
// once that code has returned.
func (b *BaseWorker) abandon(err error) { b.endWith(err, false) }

func (b *BaseWorker) endWith(err error, killed bool) bool {
	err = call.Keep(b.Name(), err)
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		return false
	}
	b.killed = killed
	after := b.finishLocked(err)
	b.mu.Unlock()
	after()
	return true
}

// Finish ends the worker with the result of its work. [FinalStatus] decides the
// final status. When err says only that the worker's own context was cancelled
// (context.Canceled, or the context's cause), Finish wraps it in
// [ErrInterrupted]. context.Canceled of another context, and a deadline that
// passed, are failures.
//
// Finish also means that none of the worker's code runs any more. For an
// abandoned worker, which has ended already, that is its only effect. A second
// call changes nothing.
func (b *BaseWorker) Finish(err error) {
	err = call.Keep(b.Name(), err) // in the goroutine of the caller, which made the error
	after := func() {}
	b.mu.Lock()
	if !b.ended {
		if b.ctx != nil && b.ctx.Err() != nil {
			if !b.stopRequested { // the function that begin has registered with the context has not run yet
				b.stopRequested = true
				_ = b.setLocked(StatusStopping, b.causeOf(b.ctx))
			}
			if err != nil && !call.Is(err, ErrInterrupted) && saysOnlyCancelled(b.ctx, err) {
				err = fmt.Errorf("%w: %w", ErrInterrupted, err)
			}
		}
		after = b.finishLocked(err)
	}
	b.mu.Unlock()
	b.gone.Signal()
	after()
}

// refuse ends a worker that cannot start, and returns the error of Start.
func (b *BaseWorker) refuse(err error) error {
	err = fmt.Errorf("start %s: %w", b.Name(), err)
	b.Finish(err)
	return err
}

// saysOnlyCancelled reports whether err, or every error that it joins, says only that ctx was
// cancelled. A failure that is joined with such an error is still a failure.
func saysOnlyCancelled(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	if call.Same(cause, context.DeadlineExceeded) {
		cause = context.Canceled // a deadline that passed is a failure
	}
	return call.Only(err, context.Canceled, cause)
}

// finishLocked changes to the final status. Where the table has no direct edge,
// the worker passes through the status between: Running for a function that has
// returned, Stopping for one that was killed. The caller calls after without the lock.
func (b *BaseWorker) finishLocked(err error) (after func()) {
	b.err = err
	final := FinalStatus(b.killed, b.stopRequested, err)
	if b.setLocked(final, err) != nil {
		if s := b.machine.State(); s == StatusCreated || s == StatusPending {
			_ = b.setLocked(StatusStarting, nil)
		}
		via := StatusRunning
		if b.killed || b.stopRequested {
			via = StatusStopping
		}
		_ = b.setLocked(via, nil)
		_ = b.setLocked(final, err)
	}
	return b.endedLocked()
}

// endedLocked records that the worker is in a terminal status. The caller calls after
// without the lock: it calls the functions of OnEnd, and releases the context.
func (b *BaseWorker) endedLocked() (after func()) {
	b.ended = true
	calls, unwatch, cancel := b.onEnd, b.unwatch, b.cancel
	b.onEnd = nil
	return func() {
		for _, fn := range calls {
			callOnEnd(fn)
		}
		if unwatch != nil {
			unwatch()
		}
		if cancel != nil {
			cancel(nil)
		}
	}
}

// awaitStop waits until the worker has ended. When ctx ends first, the worker is Killed
// with the error that abandoned returns, unless that is nil. awaitStop returns the result
// of Stop: the error of a worker that was killed.
func (b *BaseWorker) awaitStop(ctx context.Context, abandoned func() error) error {
	select {
	case <-b.Done():
	case <-ctx.Done():
		if b.Status().Terminal() { // both were ready
			break
		}
		if err := abandoned(); err != nil {
			b.Kill(err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.killed {
		return b.err
	}
	return nil
}
