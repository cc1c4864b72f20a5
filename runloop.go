package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// ErrInvalidLoop is the error of [RunLoop] for wrong arguments: an interval that is
// not positive, a backoff maximum below the interval, a nil context, function or option.
// The returned error wraps it.
var ErrInvalidLoop = errors.New("lifecycle: invalid loop")

// LoopOption changes how [RunLoop] runs: [WithImmediateTick], [WithStopOnError].
type LoopOption func(*loop) error

// WithImmediateTick ticks once on entry, before the first interval.
func WithImmediateTick() LoopOption {
	return func(l *loop) error {
		l.immediate = true
		return nil
	}
}

// WithStopOnError ends the loop at the first error of a tick. RunLoop returns that
// error unchanged.
func WithStopOnError() LoopOption {
	return func(l *loop) error {
		l.stopOnError = true
		return nil
	}
}

// WithBackoff doubles the delay after each consecutive error of a tick, up to max: 2,
// 4, 8 … intervals. The first tick without an error resets it to the interval.
// Defaults to no backoff.
func WithBackoff(max time.Duration) LoopOption {
	return func(l *loop) error {
		if max < l.interval {
			return fmt.Errorf("%w: backoff maximum %v is below the interval %v", ErrInvalidLoop, max, l.interval)
		}
		l.maxDelay = max
		return nil
	}
}

// WithLoopLogger logs each error of a tick with the next delay, and the first success
// after an error. Defaults to slog.Default(), also for nil: the log is the only place
// for an error that does not end the loop.
func WithLoopLogger(log *slog.Logger) LoopOption {
	return func(l *loop) error {
		if log != nil {
			l.log = log
		}
		return nil
	}
}

// RunLoop calls fn every interval until ctx is done, and then returns nil, so that a
// unit may be a single call of it.
//
// The interval runs from the end of a tick to the beginning of the next: ticks never
// overlap, and a slow tick causes no burst. The first tick comes after one interval,
// or at once with [WithImmediateTick]. When ctx ends during the wait, the loop returns
// at once. When it ends during a tick, the loop returns when fn does, so fn must watch
// its ctx.
//
// When a tick returns an error, panics or calls runtime.Goexit, RunLoop logs that and
// goes on; see [WithStopOnError] and [WithBackoff]. An error that only says that ctx
// has ended does not count.
//
// For wrong arguments RunLoop returns an error at once that wraps [ErrInvalidLoop] and names
// each of them, and does not call fn.
func RunLoop(ctx context.Context, interval time.Duration, fn func(context.Context) error, opts ...LoopOption) error {
	l := &loop{interval: interval, fn: fn, log: slog.Default()}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrInvalidLoop}, args...)...))
	}
	if ctx == nil {
		fault("the context is nil")
	}
	if interval <= 0 {
		fault("the interval is %v, want more than 0", interval)
	}
	if fn == nil {
		fault("the function is nil")
	}
	for i, opt := range opts {
		if opt == nil {
			fault("option %d is nil", i+1)
		} else if err := opt(l); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	return l.run(ctx)
}

// loop is one RunLoop.
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
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
		if ctx.Err() != nil { // both were ready; the end of ctx has priority
			return nil //nolint:nilerr // the end of ctx is no failure
		}
		err := l.tick(ctx)
		if ctx.Err() != nil && (err == nil || call.Only(err, ctx.Err(), context.Cause(ctx))) {
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
	if delay > l.maxDelay/2 { // 2*delay may overflow
		return l.maxDelay
	}
	return 2 * delay
}

// tick calls fn in a goroutine of its own, because a Goexit ends its goroutine, and
// waits for it.
func (l *loop) tick(ctx context.Context) error {
	result := make(chan error, 1) // one send: done is called once
	call.Go("loop tick", func() error { return l.fn(ctx) }, func(err error) { result <- err })
	return <-result
}
