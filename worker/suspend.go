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
// Any number of callers may call both methods at once. The calls take effect one
// after the other. A Resume ends the Suspends that wait, with an error.
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

func cannotPause(s Status) error { return fmt.Errorf("%w: it is %s", ErrNotSuspendable, s) }

var errResumed = errors.New("it was resumed meanwhile")

// pauser is how one kind of worker pauses. The two methods of a worker are never called
// at once.
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

// suspender has the suspends and resumes of one worker take effect one after the other.
type suspender struct {
	turn   chan struct{} // has a token while one takes effect
	unsure bool          // the worker may be paused though it is Running; for the one that takes effect

	mu     sync.Mutex
	intent context.Context // of the Suspends that wait: the next Resume ends it
	resume context.CancelFunc
}

func (b *BaseWorker) suspends() *suspender {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.suspender == nil {
		b.suspender = &suspender{turn: make(chan struct{}, 1)}
		b.suspender.renew()
	}
	return b.suspender
}

// renew ends the Suspends that wait.
func (s *suspender) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume != nil {
		s.resume()
	}
	s.intent, s.resume = context.WithCancel(context.Background())
}

// untilResume returns a context that ends with ctx, and when the worker is resumed.
func (s *suspender) untilResume(ctx context.Context) (own context.Context, release func()) {
	s.mu.Lock()
	intent := s.intent
	s.mu.Unlock()
	own, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(intent, func() { cancel(errResumed) })
	return own, func() {
		stop()
		cancel(nil)
	}
}

// inTurn calls change once it has its turn. It waits until ctx ends, and then for a moment,
// so that the worker usually goes on when a Suspend that fails returns.
func (s *suspender) inTurn(ctx context.Context, name string, change func() error) error {
	err := whyEnded(ctx)
	if err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return whyEnded(ctx)
	}
	c := call.Start(name, func() error {
		defer func() { <-s.turn }()
		return change()
	})
	err = c.Wait(ctx.Done(), call.Settle)
	over, _ := c.Ended()
	switch why := whyEnded(ctx); {
	case !over:
		return why
	case err == nil || why == nil || call.Is(err, why):
		return err
	default:
		return fmt.Errorf("%w: %w", why, err)
	}
}

// whyEnded returns why ctx has ended, nil while it has not.
func whyEnded(ctx context.Context) error {
	if cause := context.Cause(ctx); call.Same(cause, errResumed) {
		return errResumed
	}
	return ctx.Err()
}

func (b *BaseWorker) suspend(ctx context.Context, kind pauser) error {
	s := b.suspends()
	own, release := s.untilResume(ctx)
	defer release()
	err := s.inTurn(own, b.Name(), func() error { return s.suspendNow(own, b, kind) })
	if err != nil {
		return fmt.Errorf("suspend %s: %w", b.Name(), err)
	}
	return nil
}

func (s *suspender) suspendNow(ctx context.Context, b *BaseWorker, kind pauser) error {
	switch status := b.Status(); {
	case status == StatusSuspended && !s.unsure:
		return nil
	case status != StatusSuspended && status != StatusRunning:
		return cannotPause(status)
	}
	s.unsure = true // until the end, also when quiesce exits its goroutine
	err := call.Do(b.Name(), func() error { return kind.quiesce(ctx) })
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && b.Status() != StatusSuspended && b.SetStatus(StatusSuspended) != nil {
		err = cannotPause(b.Status()) // a Stop came in between
	}
	if err == nil {
		s.unsure = false
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	failed := s.proceed(undo, b, kind)
	if b.Status() != StatusRunning {
		failed = nil // it has ended meanwhile
	}
	return errors.Join(err, failed)
}

// proceed makes the worker go on. When kind.proceed panics or does not return, it stays
// unsure whether the worker is paused.
func (s *suspender) proceed(ctx context.Context, b *BaseWorker, kind pauser) error {
	s.unsure = true
	err := call.Do(b.Name(), func() error {
		return kind.proceed(ctx, func() error {
			if b.Status() == StatusSuspended {
				return b.SetStatus(StatusRunning)
			}
			return nil
		})
	})
	s.unsure = err != nil
	return err
}

func (b *BaseWorker) resume(ctx context.Context, kind pauser) error {
	s := b.suspends()
	s.renew()
	err := s.inTurn(ctx, b.Name(), func() error {
		switch status := b.Status(); {
		case status == StatusRunning && !s.unsure:
			return nil
		case status != StatusRunning && status != StatusSuspended:
			return b.SetStatus(StatusRunning) // the error that says what is possible
		}
		return s.proceed(ctx, b, kind)
	})
	if err != nil {
		return fmt.Errorf("resume %s: %w", b.Name(), err)
	}
	return nil
}

// within calls a child's method. It waits until ctx ends and a moment longer,
// because a child that gets the same context usually returns then.
func within(ctx context.Context, name string, fn func(context.Context) error) error {
	c := call.Start(name, func() error { return fn(ctx) })
	err := c.Wait(ctx.Done(), call.Settle)
	if over, _ := c.Ended(); !over {
		return fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}
