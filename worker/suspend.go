package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Suspender is a worker that can pause and keep its resources: [Func] and
// [Restarter] if their function calls [Pause], [Process] on Unix systems,
// [Container], and [Supervisor] if all its running children can pause.
//
// Any number of callers may call both methods at once. The worker has one intent,
// which the last call decides: a Resume ends the Suspends that wait, with an error,
// and a Suspend that comes during a Resume follows it. Suspends that wait at the same
// time have one result. When the context of one of them ends, it alone gives up; the
// worker goes on once all of them have given up.
type Suspender interface {
	// Suspend returns nil once the worker has paused and is Suspended. When ctx
	// ends first, or the worker cannot pause, the error says why. The worker then
	// goes on, unless another caller of Suspend waits. For a suspended worker it
	// returns nil.
	Suspend(ctx context.Context) error
	// Resume makes a suspended worker Running again. For a running worker it does
	// nothing. For a worker that has ended, or is being stopped, it returns an
	// error.
	Resume(ctx context.Context) error
}

// ErrNotSuspendable is returned by Suspend for a worker that is not Running or
// that cannot pause.
var ErrNotSuspendable = errors.New("worker cannot be suspended")

var errResumed = errors.New("it was resumed meanwhile")

// pauser is how one kind of worker pauses. The engine never calls both methods of a
// worker at once.
type pauser interface {
	// quiesce returns nil once the worker has paused. It also returns when the worker
	// ends. ctx ends when no caller waits any more. After an error the engine calls
	// proceed, so quiesce need not undo anything.
	quiesce(ctx context.Context) error
	// proceed makes the worker go on, whether it has paused or not. It calls running
	// at the moment at which the worker counts as Running again, and returns its
	// error too.
	proceed(ctx context.Context, running func() error) error
}

// undoTimeout bounds the undoing of a suspend for which no caller waits.
const undoTimeout = 30 * time.Second

// pausing is the engine of the suspends and resumes of one worker. Callers post a
// turn, and wait for its end as long as their own contexts allow. One goroutine, which
// lives as long as there are turns, takes one after the other. It looks again after
// it has acted: when the turn is no longer wanted, it undoes what it did.
type pausing struct {
	mu     sync.Mutex // guards everything below, and the fields of turns
	now    *turn      // which the goroutine takes; nil when there is no goroutine
	next   *turn      // the suspend that follows
	unsure bool       // a proceed has failed: the worker may not do what its status says
}

// turn is one change of the intent, for which any number of callers wait.
type turn struct {
	suspend bool
	ctx     context.Context
	cancel  context.CancelFunc
	callers int           // that wait
	over    bool          // no caller can join or end it any more
	why     error         // why it is not wanted any more: no caller waits, or a Resume has replaced it
	done    chan struct{} // closed when the turn is over and done with
	err     error         // set before done is closed
}

// engine returns the engine of b's suspends and resumes.
func (b *BaseWorker) engine() *pausing {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.rareLocked()
	if r.pausing == nil {
		r.pausing = &pausing{}
	}
	return r.pausing
}

// suspend is the Suspend of every kind.
func (b *BaseWorker) suspend(ctx context.Context, kind pauser) error {
	e := b.engine()
	e.mu.Lock()
	if e.now == nil && !e.unsure {
		if s := b.Status(); s != StatusRunning {
			e.mu.Unlock()
			if s == StatusSuspended {
				return nil
			}
			return fmt.Errorf("suspend %s: %w", b.Name(), cannotPause(s))
		}
	}
	t := e.now
	switch {
	case t == nil:
		t = newTurn(ctx, true)
		e.begin(b, kind, t)
	case !t.suspend || t.over:
		if e.next == nil {
			e.next = newTurn(ctx, true)
		}
		t = e.next
	}
	if err := e.wait(ctx, t); err != nil {
		return fmt.Errorf("suspend %s: %w", b.Name(), err)
	}
	return nil
}

// resume is the Resume of every kind.
func (b *BaseWorker) resume(ctx context.Context, kind pauser) error {
	e := b.engine()
	for {
		e.mu.Lock()
		t := e.now
		if t == nil && !e.unsure && b.Status() == StatusRunning {
			e.mu.Unlock()
			return nil
		}
		if t == nil {
			t = newTurn(ctx, false)
			e.begin(b, kind, t)
		}
		if !t.suspend && !t.over {
			if err := e.wait(ctx, t); err != nil {
				return fmt.Errorf("resume %s: %w", b.Name(), err)
			}
			return nil
		}
		e.replaced(t)
		e.replaced(e.next)
		e.mu.Unlock()
		select { // then look again
		case <-t.done:
		case <-ctx.Done():
			return fmt.Errorf("resume %s: %w", b.Name(), ctx.Err())
		}
	}
}

func newTurn(ctx context.Context, suspend bool) *turn {
	t := &turn{suspend: suspend, done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return t
}

// begin takes the first turn, in a goroutine that goes on as long as there are turns.
func (e *pausing) begin(b *BaseWorker, kind pauser, t *turn) {
	e.now = t
	call.Go(b.Name(), func() error {
		for t := t; t != nil; {
			t = e.end(t, e.take(b, kind, t))
		}
		return nil
	}, func(err error) {
		for t := t; err != nil && t != nil; { // a foreign method has exited the goroutine
			e.mu.Lock()
			t, e.unsure = e.now, true
			e.mu.Unlock()
			if t != nil {
				t = e.end(t, err)
			}
		}
	})
}

// end ends a turn, and returns the one that follows.
func (e *pausing) end(t *turn, err error) (next *turn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t.cancel()
	t.over, t.err = true, err
	close(t.done)
	e.now, e.next = e.next, nil
	return e.now
}

// replaced ends the suspend that a Resume replaces. The caller holds e.mu.
func (e *pausing) replaced(t *turn) {
	if t == nil || t.over {
		return
	}
	t.over, t.why = true, errResumed
	t.cancel()
	if t == e.next {
		e.next, t.err = nil, errResumed
		close(t.done)
	}
}

// wait adds a caller to t and waits for its end. The caller holds e.mu; wait releases
// it. The last caller that gives up ends the turn, and stays a moment, so that the
// worker usually goes on when wait returns.
func (e *pausing) wait(ctx context.Context, t *turn) error {
	t.callers++
	e.mu.Unlock()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
	}
	e.mu.Lock()
	t.callers--
	select {
	case <-t.done: // both were ready
		e.mu.Unlock()
		return t.err
	default:
	}
	switch {
	case t.callers > 0:
		e.mu.Unlock()
		return ctx.Err()
	case t == e.next:
		e.next, t.err = nil, ctx.Err()
		close(t.done)
		t.cancel()
	case !t.over:
		t.over, t.why = true, ctx.Err()
		t.cancel()
	}
	e.mu.Unlock()
	late := time.NewTimer(call.Settle)
	defer late.Stop()
	select {
	case <-t.done:
		return t.err
	case <-late.C:
		return ctx.Err()
	}
}

// take does what a turn wants.
func (e *pausing) take(b *BaseWorker, kind pauser, t *turn) error {
	s := b.Status()
	switch {
	case s != StatusRunning && s != StatusSuspended && t.suspend:
		return cannotPause(s)
	case s != StatusRunning && s != StatusSuspended:
		return b.SetStatus(StatusRunning) // the error that says what is possible
	case !t.suspend:
		return t.result(e, e.proceed(t.ctx, b, kind, true))
	case s == StatusSuspended && !e.isUnsure():
		return nil
	}
	err := call.Do(b.Name(), func() error { return kind.quiesce(t.ctx) })
	e.mu.Lock()
	if err == nil && t.why == nil && b.Status() != StatusSuspended && b.SetStatus(StatusSuspended) != nil {
		err = cannotPause(b.Status()) // a Stop came in between: to stop, the worker has to run
	}
	if err == nil && t.why == nil {
		t.over, e.unsure = true, false
		e.mu.Unlock()
		return nil
	}
	e.mu.Unlock()
	undo, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), undoTimeout)
	defer cancel()
	failed := e.proceed(undo, b, kind, false)
	if b.Status() != StatusRunning {
		failed = nil // it has ended meanwhile
	}
	return errors.Join(t.result(e, err), failed)
}

// proceed makes the worker go on. It does not change the status of a worker that was
// not suspended, unless change says so.
func (e *pausing) proceed(ctx context.Context, b *BaseWorker, kind pauser, change bool) error {
	err := call.Do(b.Name(), func() error {
		return kind.proceed(ctx, func() error {
			if s := b.Status(); s == StatusRunning || s != StatusSuspended && !change {
				return nil
			}
			return b.SetStatus(StatusRunning)
		})
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsure = err != nil
	return err
}

func (e *pausing) isUnsure() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unsure
}

// result returns the error of a turn that was taken with err.
func (t *turn) result(e *pausing, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case t.why == nil || err == nil && !t.suspend:
		return err
	case err == nil, errors.Is(t.why, errResumed), errors.Is(err, t.ctx.Err()):
		return t.why
	}
	return fmt.Errorf("%w: %w", t.why, err)
}

func cannotPause(s Status) error { return fmt.Errorf("%w: it is %s", ErrNotSuspendable, s) }
