// Package call is the one door for foreign code: functions, workers, errors and
// panic values that users or their libraries wrote.
//
// Three rules hold behind the door:
//
//   - A foreign function takes nothing down. A panic becomes a [*PanicError], a
//     runtime.Goexit becomes an error that is [ErrGoexit].
//   - A foreign error or panic value is frozen once, on the goroutine that ran
//     the foreign function ([Freeze]). No other goroutine runs a method of it.
//   - A foreign function is waited for with a bound. One that does not return is
//     abandoned by name, with the stack of its goroutine ([AbandonedError]).
//
// Which function to use:
//
//	[Do]      calls it in the caller's goroutine and does not bound it
//	[Go]      calls it in a goroutine of its own; the [Call] waits and abandons
//	[Within]  calls it in a goroutine of its own and waits as long as a context lasts
//	[Ask]     calls a method that should answer at once, for at most [AnswerIn]
//	[Take]    freezes an error that no call returned, as the cause of a context
package call

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Settle is how long a function that obeys its context gets to return after the
// context has ended.
const Settle = 100 * time.Millisecond

// Do calls fn in the caller's goroutine. It returns fn's error, frozen, or a
// [*PanicError] under the name. A runtime.Goexit ends the caller's goroutine: use
// [Go] for a function that may call it.
func Do(name string, fn func() error) (err error) {
	defer catch(name, &err)
	return Freeze(name, fn())
}

// A Call is one call of a function, in a goroutine of its own. The zero value
// is a call that has not been made; make it with [Call.Go]. The methods may be
// called concurrently. A Call must not be copied.
type Call struct {
	name string
	goid atomic.Uint64 // of the goroutine, 0 before it runs

	mu    sync.Mutex    // guards ended, err and done
	ended bool          // the function has ended and its callback has returned
	err   error         // the frozen result, once ended
	done  chan struct{} // made when Done is first called; closed when ended
}

// Go calls fn in a goroutine of its own and returns at once. Errors and
// abandonments carry the name. See [Call.Go].
func Go(name string, fn func() error, ended func(error)) *Call {
	c := new(Call)
	c.Go(name, fn, ended)
	return c
}

// Within calls fn in a goroutine of its own and waits for it until ctx ends, and
// for the moment longer. It returns fn's error, frozen, or an [*AbandonedError].
// It does not hand ctx to fn: the closure does.
func Within(ctx context.Context, name string, moment time.Duration, fn func() error) error {
	return Go(name, fn, nil).Wait(ctx.Done(), moment)
}

// Go makes the call: it runs fn in a goroutine of its own and returns at once.
//
// When fn has ended, the same goroutine calls ended, if it is not nil, with the
// result: nil, the frozen error of fn, a [*PanicError], or an error that is
// [ErrGoexit]. The call counts as ended when ended has returned. ended is our
// own code: a panic in it is not caught.
//
// A second Go on the same Call panics.
func (c *Call) Go(name string, fn func() error, ended func(error)) {
	if c.name != "" {
		panic(fmt.Sprintf("call %s: it was made before, as %s", name, c.name))
	}
	if name == "" {
		name = "call"
	}
	c.name = name
	go c.run(fn, ended)
}

func (c *Call) run(fn func() error, ended func(error)) {
	c.goid.Store(GoroutineID())
	// Goexit runs the deferred calls and nothing after them, so only a deferred
	// call sees every end of fn.
	var err error
	returned := false
	defer func() {
		if !returned && err == nil {
			err = fmt.Errorf("%s: %w", c.name, ErrGoexit)
		}
		if ended != nil {
			ended(err)
		}
		c.end(err)
	}()
	defer catch(c.name, &err) // deferred itself, because Goexit would not let a caller return
	err = Freeze(c.name, fn())
	returned = true
}

func (c *Call) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.err = true, err
	if c.done != nil {
		close(c.done)
	}
}

// Done returns a channel that is closed when the call has ended. For a call that
// has not been made it stays open until that is made and has ended.
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

// Wait waits for the end of the call until over is closed, and for the moment
// longer, and returns the call's result. A call that has not ended then is
// abandoned: Wait returns an [*AbandonedError] with the stack of its goroutine,
// which goes on until the function returns by itself. Ended tells when it has.
//
// A nil over waits without a bound.
func (c *Call) Wait(over <-chan struct{}, moment time.Duration) error {
	done := c.Done()
	select {
	case <-done:
	case <-over:
		if moment > 0 {
			late := time.NewTimer(moment)
			defer late.Stop()
			select {
			case <-done:
			case <-late.C:
			}
		}
	}
	if ended, err := c.Ended(); ended {
		return err
	}
	return c.Abandon()
}

// Abandon returns the error that names the call, with the stack on which it
// stands now. The call itself does not change: Go cannot end a goroutine.
func (c *Call) Abandon() *AbandonedError { return Abandoned(c.name, c.goid.Load()) }
