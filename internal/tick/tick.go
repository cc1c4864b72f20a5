// Package tick runs a function again and again, with a delay between the calls.
package tick

import (
	"context"
	"log/slog"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Loop is one loop. All fields but Log, Interval and Fn may be zero.
type Loop struct {
	Interval    time.Duration
	MaxDelay    time.Duration // 0: no backoff
	Immediate   bool          // the first tick comes at once
	StopOnError bool          // the first error of a tick ends the loop
	Fn          func(context.Context) error
	Log         *slog.Logger
}

// Run ticks until ctx is done and then returns nil. With StopOnError it returns the
// first error of a tick. The interval runs from the end of a tick to the beginning of
// the next.
func (l *Loop) Run(ctx context.Context) error {
	delay := l.Interval
	if l.Immediate {
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
		if ctx.Err() != nil { // both were ready; the end of ctx has priority
			return nil
		}
		err := l.tick(ctx)
		if ctx.Err() != nil && (err == nil || call.Only(err, ctx.Err(), context.Cause(ctx))) {
			return nil
		}
		switch {
		case err != nil && l.StopOnError:
			return err
		case err != nil:
			failures++
			delay = l.Backoff(delay)
			l.Log.ErrorContext(ctx, "loop tick failed", "error", err, "failures", failures, "next_in", delay)
		default:
			if failures > 0 {
				l.Log.InfoContext(ctx, "loop tick succeeded again", "failures", failures)
			}
			failures, delay = 0, l.Interval
		}
		timer.Reset(delay)
	}
}

// Backoff returns the delay after one more error.
func (l *Loop) Backoff(delay time.Duration) time.Duration {
	switch {
	case l.MaxDelay == 0:
		return l.Interval
	case delay == 0: // the immediate tick
		delay = l.Interval
	}
	if delay > l.MaxDelay/2 { // 2*delay may overflow
		return l.MaxDelay
	}
	return 2 * delay
}

// tick calls fn in a goroutine of its own, because a Goexit ends its goroutine, and
// waits for it.
func (l *Loop) tick(ctx context.Context) error {
	result := make(chan error, 1) // one send: done is called once
	call.Go("loop tick", func() error { return l.Fn(ctx) }, func(err error) { result <- err })
	return <-result
}
