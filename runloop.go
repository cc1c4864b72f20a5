package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// ErrInvalidLoop is wrapped by the error with which [RunLoop] refuses what it
// cannot run: an interval or a maximum that is not positive, a maximum below
// the interval, a nil function.
var ErrInvalidLoop = errors.New("lifecycle: invalid loop")

// LoopOption changes how [RunLoop] runs.
type LoopOption func(*loop) error

// WithImmediateTick ticks once on entry, before the first interval.
func WithImmediateTick() LoopOption {
	return func(l *loop) error {
		l.immediate = true
		return nil
	}
}

// WithStopOnError ends the loop with the first error of a tick, which RunLoop
// then returns as it is.
func WithStopOnError() LoopOption {
	return func(l *loop) error {
		l.stopOnError = true
		return nil
	}
}

// WithBackoff doubles the delay after every error of a tick in a row, up to
// max: 2, 4, 8 … intervals. The first tick without an error sets it back to the
// interval. Defaults to no backoff.
func WithBackoff(max time.Duration) LoopOption {
	return func(l *loop) error {
		if max < l.interval {
			return fmt.Errorf("%w: backoff maximum %v is below the interval %v", ErrInvalidLoop, max, l.interval)
		}
		l.maxDelay = max
		return nil
	}
}

// WithLoopLogger logs the errors of ticks, with the delay that follows, and the
// first success after them. Defaults to slog.Default(), as nil does: an error
// that the loop goes on after has no other place to go.
func WithLoopLogger(log *slog.Logger) LoopOption {
	return func(l *loop) error {
		if log != nil {
			l.log = log
		}
		return nil
	}
}

// RunLoop calls fn every interval until ctx is done, and returns nil then, so
// that a unit may be a mere return of it.
//
// The interval is counted from the end of a tick to the beginning of the next:
// ticks never overlap, and a slow one is not followed by a burst of those that
// it missed. The first tick comes after one interval, or at once with
// [WithImmediateTick]. When ctx ends during the wait the loop returns at once;
// when it ends during a tick the loop returns when fn does, so fn must heed its
// ctx.
//
// An error of a tick, and a panic or a runtime.Goexit in it, which are errors
// of that tick, are logged and the loop goes on; see [WithStopOnError] and
// [WithBackoff]. An error that says no more than that ctx has ended is not one.
//
// What cannot be run returns an error that wraps [ErrInvalidLoop] at once, and
// fn is not called.
func RunLoop(ctx context.Context, interval time.Duration, fn func(context.Context) error, opts ...LoopOption) error {
	l := &loop{interval: interval, fn: fn, log: slog.Default()}
	if interval <= 0 {
		return fmt.Errorf("%w: interval %v is not positive", ErrInvalidLoop, interval)
	}
	if fn == nil {
		return fmt.Errorf("%w: function is nil", ErrInvalidLoop)
	}
	for i, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: option %d is nil", ErrInvalidLoop, i+1)
		}
		if err := opt(l); err != nil {
			return err
		}
	}
	return l.run(ctx)
}

type loop struct {
	interval    time.Duration
	maxDelay    time.Duration // 0: no backoff
	immediate   bool
	stopOnError bool
	fn          func(context.Context) error
	log         *slog.Logger
}

func (l *loop) run(ctx context.Context) error {
	delay := l.interval
	if l.immediate {
		delay = 0
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if ctx.Err() != nil { // both were ready, and stopping comes first
			return nil
		}
		err := l.tick(ctx)
		if ctx.Err() != nil && (err == nil || call.Only(err, func(e error) bool { return call.Same(e, ctx.Err()) || call.Same(e, context.Cause(ctx)) })) {
			return nil
		}
		switch {
		case err != nil && l.stopOnError:
			return err
		case err != nil:
			failures++
			delay = l.backoff(delay)
			l.log.ErrorContext(ctx, "loop tick failed", "error", err, "failures", failures, "next_in", delay)
		default:
			if failures > 0 {
				l.log.InfoContext(ctx, "loop tick succeeded again", "failures", failures)
			}
			failures, delay = 0, l.interval
		}
		timer.Reset(delay)
	}
}

// backoff returns the delay after one more error.
func (l *loop) backoff(delay time.Duration) time.Duration {
	switch {
	case l.maxDelay == 0:
		return l.interval
	case delay == 0: // the immediate tick
		delay = l.interval
	}
	if delay > l.maxDelay/2 { // not 2*delay > max, which may overflow
		return l.maxDelay
	}
	return 2 * delay
}

// tick calls fn in a goroutine of its own, which is the only way to survive a
// Goexit in it, and waits for it.
func (l *loop) tick(ctx context.Context) error {
	result := make(chan error, 1) // one send: done is called once
	call.Go("loop tick", func() error { return l.fn(ctx) }, func(err error) { result <- err })
	return <-result
}
