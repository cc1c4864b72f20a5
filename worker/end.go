package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// This file has the end of a worker: who hears of it, and how it is decided.

// endHook hears of the end of a worker.
type endHook interface{ workerEnded() }

// hookEnd makes the worker tell hook when it has ended, and once more when it is
// gone if that happens later. It does so under its lock: hook must return at once
// and must not call the worker. Call hookEnd before the worker starts.
func (b *BaseWorker) hookEnd(hook endHook) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := &b.hook
	for e, ok := (*at).(*endFunc); ok; e, ok = (*at).(*endFunc) {
		at = &e.before
	}
	*at = hook
}

// OnEnd makes the worker call fn once, when it is in a terminal status, or at once when
// it already is. fn runs on the goroutine that ends the worker, and may hold up its other
// methods: it must return at once and must not call the worker. A panic of fn is ignored.
func (b *BaseWorker) OnEnd(fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	told := &endFunc{fn: fn}
	if b.ended {
		told.workerEnded()
		return
	}
	told.before, b.hook = b.hook, told
}

// endFunc is an endHook that calls a function once.
type endFunc struct {
	before endHook
	fn     func() // nil once it was called
}

func (h *endFunc) workerEnded() {
	if h.before != nil {
		h.before.workerEnded()
	}
	if fn := h.fn; fn != nil {
		h.fn = nil
		_ = call.Do("OnEnd", func() error { fn(); return nil }) // the worker has ended, and nothing is left to fail
	}
}

// goneLocked records, once, that none of the worker's code runs any more.
func (b *BaseWorker) goneLocked() {
	if b.gone.Swap(true) {
		return
	}
	if gone := b.seldomLocked().gone; gone != nil {
		close(gone)
	}
	if b.hook != nil {
		b.hook.workerEnded()
	}
}

// Kill records that the worker did not stop when asked, and was ended by force or
// abandoned, with err. It returns false and changes nothing when the worker has
// ended by itself meanwhile. Call [BaseWorker.Finish] once none of the worker's
// code runs any more.
func (b *BaseWorker) Kill(err error) bool {
	err = call.Freeze(b.Name(), err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.killed = true
	b.finishLocked(err)
	if b.hook != nil {
		b.hook.workerEnded()
	}
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
	err = call.Freeze(b.Name(), err) // in the goroutine of the caller, who made the error
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone.Load() {
		return
	}
	defer b.goneLocked()
	if b.ended {
		return
	}
	if b.ctx != nil && b.ctx.Err() != nil {
		if !b.stopRequested { // the watch on ctx may be late
			b.stopRequested = true
			_ = b.setLocked(StatusStopping, b.causeOf(b.ctx))
		}
		if err != nil && !errors.Is(err, ErrInterrupted) && means(b.ctx, err) {
			err = fmt.Errorf("%w: %w", ErrInterrupted, err)
		}
	}
	b.finishLocked(err)
}

// abandon ends the worker with err while some of its code still runs. Call Finish
// once that code has returned.
func (b *BaseWorker) abandon(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	b.finishLocked(err)
	if b.hook != nil {
		b.hook.workerEnded()
	}
}

// means reports whether err, or every error that it joins, says only that ctx was
// cancelled. A failure that is joined with such an error is still a failure.
func means(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	if call.Same(cause, context.DeadlineExceeded) {
		cause = context.Canceled // a deadline that passed is a failure
	}
	return call.Only(err, func(e error) bool { return call.Same(e, context.Canceled) || call.Same(e, cause) })
}

// finishLocked changes to the final status. Where the table has no direct edge,
// the worker passes through the status between: Running for a function that has
// returned, Stopping for one that was killed.
func (b *BaseWorker) finishLocked(err error) {
	final := FinalStatus(b.killed, b.stopRequested, err)
	b.ended, b.err = true, err
	b.unwatchLocked()
	if b.setLocked(final, err) == nil {
		return
	}
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
