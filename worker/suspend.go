package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Suspender is a worker that can pause and keep its resources: [Func] if its function
// calls [Pause], [Process] on Unix systems, [Container], and [Supervisor] if all its
// running children can pause. A [Restarter] cannot: a Supervisor of one child can.
//
// Any number of callers may call both methods at once. The calls take effect one
// after the other: a Resume waits for a Suspend that has begun, until its own context ends.
type Suspender interface {
	// Suspend returns nil once the worker has paused and is Suspended. When ctx
	// ends first, or the worker cannot pause, the error says why. The worker then
	// goes on, unless another caller of Suspend waits: the return may take 30 s more
	// while an engine does not answer. A suspended worker stays so.
	Suspend(ctx context.Context) error
	// Resume makes a suspended worker Running again. A running worker stays so. For
	// a worker that has ended, or is being stopped, it returns an error.
	Resume(ctx context.Context) error
}

// ErrNotSuspendable is returned by Suspend for a worker that is not Running or
// that cannot pause.
var ErrNotSuspendable = errors.New("worker cannot be suspended")

func cannotPause(s Status) error { return fmt.Errorf("%w: it is %s", ErrNotSuspendable, s) }

// pauser is how one kind of worker pauses. The two methods of a worker are never called
// at once. Both may be called for a worker that is in that state already.
type pauser interface {
	// quiesce returns nil once the worker has paused. It also returns when the worker
	// ends, and when ctx does. After an error, proceed is called: quiesce need not undo
	// anything.
	quiesce(ctx context.Context) error
	// proceed makes the worker go on, whether it has paused or not. It calls running
	// at the moment at which the worker counts as Running again, and returns its
	// error too.
	proceed(ctx context.Context, running func() error) error
}

// undoTimeout bounds the undoing of a suspend that has failed.
const undoTimeout = 30 * time.Second

// inTurn calls change once the suspends and resumes before it have taken effect.
func (b *BaseWorker) inTurn(ctx context.Context, what string, change func() error) error {
	b.mu.Lock()
	if b.suspending == nil {
		b.suspending = make(chan struct{}, 1)
	}
	turn := b.suspending
	b.mu.Unlock()
	err := ctx.Err()
	if err == nil {
		select {
		case turn <- struct{}{}:
			err = func() error {
				defer func() { <-turn }() // also when change exits its goroutine
				return change()
			}()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, b.Name(), err)
	}
	return nil
}

func (b *BaseWorker) suspend(ctx context.Context, kind pauser) error {
	return b.inTurn(ctx, "suspend", func() error {
		before := b.Status()
		if before != StatusSuspended && before != StatusRunning {
			return cannotPause(before)
		}
		err := call.Do(b.Name(), func() error { return kind.quiesce(ctx) })
		switch why := ctx.Err(); {
		case err == nil:
			err = why
		case why != nil && !call.Is(err, why):
			err = fmt.Errorf("%w: %w", why, err)
		}
		if err == nil && b.Status() != StatusSuspended && b.SetStatus(StatusSuspended) != nil {
			err = cannotPause(b.Status()) // a Stop came in between
		}
		if err == nil || before == StatusSuspended {
			return err
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		failed := b.proceed(undo, kind)
		if b.Status() != StatusRunning {
			failed = nil // it has ended meanwhile
		}
		return errors.Join(err, failed)
	})
}

// proceed makes the worker go on.
func (b *BaseWorker) proceed(ctx context.Context, kind pauser) error {
	return call.Do(b.Name(), func() error {
		return kind.proceed(ctx, func() error {
			if b.Status() == StatusSuspended {
				return b.SetStatus(StatusRunning)
			}
			return nil
		})
	})
}

func (b *BaseWorker) resume(ctx context.Context, kind pauser) error {
	return b.inTurn(ctx, "resume", func() error {
		if status := b.Status(); status != StatusRunning && status != StatusSuspended {
			return b.SetStatus(StatusRunning) // the error that says what is possible
		}
		return b.proceed(ctx, kind)
	})
}
