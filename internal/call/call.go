// Package call is the only place that runs foreign code: functions, and the
// methods of workers, errors and panic values that users or their libraries
// wrote.
//
// Three rules hold:
//
//   - A foreign function cannot end the process. A panic becomes a [*PanicError], a
//     runtime.Goexit becomes an error that is [ErrGoexit].
//   - An error of a foreign function is kept ([Keep]): its text is read once, on the
//     goroutine that ran the function, and the error itself stays in the chain behind it.
//     The library prints the text and asks [Is], [Only] and [As], which run no foreign
//     code. A caller who uses errors.Is or errors.As runs the methods of its own error.
//   - Every wait for a foreign function has a bound. A function that does not
//     return is abandoned by name, with the stack of its goroutine
//     ([AbandonedError]).
//
// Which function to use:
//
//	[Do]      calls it in the caller's goroutine and does not bound it
//	[Start]   calls it in a goroutine of its own; the [Call] waits and abandons
//	[Within]  calls it in a goroutine of its own and waits as long as a context lasts
//	[Go]      calls it in a goroutine of its own that is never abandoned
//	[Ask]     calls a method that should answer at once, for at most [AnswerIn]
//	[Take]    keeps an error that no call returned, such as the cause of a context
package call

import (
	"context"
	"fmt"
	"runtime/pprof"
	"sync"
	"time"
)

// Settle is how long a function may take to return after its context has ended.
const Settle = 100 * time.Millisecond

// Do calls fn in the caller's goroutine. It returns fn's error, kept, or a
// [*PanicError] under the name. A runtime.Goexit ends the caller's goroutine: use
// [Go] for a function that may call it.
func Do(name string, fn func() error) (err error) {
	defer catch(name, &err)
	return Keep(name, fn())
}

// Go calls fn in a goroutine of its own and returns at once. When fn has ended,
// the same goroutine calls ended with the result: nil, the kept error of fn, a
// [*PanicError], or an error that is [ErrGoexit]. ended is our own code: Go does
// not catch a panic in it. All errors carry the name.
func Go(name string, fn func() error, ended func(error)) {
	go run(name, fn, ended, true)
}

// GoUnder is Go on a goroutine with the profile labels of ctx, which [WithLabels] has made.
// Goroutines that fn starts inherit them. With passPanics a panic of fn ends the process,
// as on any goroutine of the program, and ended is not called.
func GoUnder(ctx context.Context, name string, passPanics bool, fn func() error, ended func(error)) {
	go func() {
		pprof.SetGoroutineLabels(ctx)
		run(name, fn, ended, !passPanics)
	}()
}

// run calls fn and then ended, even when fn exits its goroutine or, with catches, panics. Goexit
// runs the deferred calls and nothing after them, so only a deferred call sees every end
// of fn.
func run(name string, fn func() error, ended func(error), catches bool) {
	var err error
	returned := false
	defer func() {
		if !catches && !returned {
			if v := recover(); v != nil {
				panic(v) // the trace has the frames of fn, which were not unwound yet
			}
		}
		if !returned && err == nil {
			err = fmt.Errorf("%s: %w", name, ErrGoexit)
		}
		ended(err)
	}()
	if catches {
		defer catch(name, &err) // deferred directly: recover works in the deferred function only
	}
	err = Keep(name, fn())
	returned = true
}

// A Call is one call of a foreign function, in a goroutine of its own. The zero
// value is a call that has not been made; make it with [Call.Start]. The methods
// may be called concurrently. A Call must not be copied.
type Call struct {
	kind, name string

	mu    sync.Mutex    // guards ended, err and done
	ended bool          // the function has ended and its callback has returned
	err   error         // the kept result, once ended
	done  chan struct{} // made when Done is first called; closed when ended
}

// Start calls fn in a goroutine of its own and returns at once. All errors carry the
// name.
func Start(name string, fn func() error) *Call {
	return StartAs(context.Background(), methodKind, name, fn)
}

// methodKind is the kind of a call of a single method.
const methodKind = "call"

// StartAs is Start for a part of this kind. ctx gives the other labels of its goroutine; fn
// gets a context from its closure.
func StartAs(ctx context.Context, kind, name string, fn func() error) *Call {
	c := new(Call)
	c.Start(ctx, kind, name, fn, nil)
	return c
}

// Within calls fn in a goroutine of its own and waits for it until ctx ends, and then
// for at most patience. It returns fn's error, kept, or an [*AbandonedError].
// fn gets ctx from its closure, not from Within.
func Within(ctx context.Context, name string, patience time.Duration, fn func() error) error {
	return StartAs(ctx, methodKind, name, fn).Wait(ctx.Done(), patience)
}

// Start makes the call: it runs fn in a goroutine of its own, under the labels of ctx and of
// its kind and name, and returns at once. When fn has ended, the same goroutine calls ended, if
// it is not nil, as [Go] does. The call has ended when ended has returned.
//
// Start must be called once, before every other method.
func (c *Call) Start(ctx context.Context, kind, name string, fn func() error, ended func(error)) {
	c.kind, c.name = kind, name
	GoUnder(WithLabels(ctx, kind, name), name, false, fn, func(err error) {
		if ended != nil {
			ended(err)
		}
		c.end(err)
	})
}

func (c *Call) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.err = true, err
	if c.done != nil {
		close(c.done)
	}
}

// Done returns a channel that is closed when the call has ended.
func (c *Call) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended {
			close(c.done)
		}
	}
	return c.done
}

// Ended reports whether the call has ended, and its result when it has.
func (c *Call) Ended() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended, c.err
}

// Wait waits for the end of the call until over is closed, and then for at most patience.
// It returns the call's result. When the process was suspended at the end of that time, by a
// busy machine or by its limit of processor time, Wait waits as long again, twice at most: the
// function may be about to return. When the call has not ended by then, Wait abandons it: it
// returns an [*AbandonedError] with the stack of the goroutine. The goroutine goes on until
// the function returns by itself; after that, Ended returns the result.
func (c *Call) Wait(over <-chan struct{}, patience time.Duration) error {
	done := c.Done()
	select {
	case <-done:
	case <-over:
		await(done, patience)
	}
	if ended, err := c.Ended(); ended {
		return err
	}
	return c.Abandon()
}

// Now returns a channel that is closed: the patience of [Call.Wait] then begins at once.
func Now() <-chan struct{} {
	now := make(chan struct{})
	close(now)
	return now
}

// maxDelay is how late a timer is at most in a process that was not suspended.
var maxDelay = Settle / 2

// await waits for done, for at most patience. When its timer is late, the process was suspended,
// and the function could not run either: await then waits as long again, twice at most.
func await(done <-chan struct{}, patience time.Duration) {
	for range 3 {
		if patience <= 0 {
			return
		}
		began := time.Now()
		select {
		case <-done:
			return
		case <-time.After(patience):
		}
		wasSuspended := time.Since(began)-patience > maxDelay
		if !wasSuspended {
			return
		}
	}
}

// Abandon returns the error that names the call, with its present stack. The call
// itself goes on, because Go cannot end a goroutine.
func (c *Call) Abandon() *AbandonedError { return Abandoned(c.kind, c.name) }
