// Package call is the only place that runs foreign code: functions, and the
// methods of workers, errors and panic values that users or their libraries
// wrote.
//
// Three rules hold:
//
//   - A foreign function cannot end the process. A panic becomes a [*PanicError], a
//     runtime.Goexit becomes an error that is [ErrGoexit].
//   - A foreign error or panic value is frozen once, on the goroutine that ran
//     the foreign function ([Freeze]). No other goroutine runs a method of it.
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
//	[Take]    freezes an error that no call returned, such as the cause of a context
package call

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Settle is how long a function may take to return after its context has ended.
const Settle = 100 * time.Millisecond

// Do calls fn in the caller's goroutine. It returns fn's error, frozen, or a
// [*PanicError] under the name. A runtime.Goexit ends the caller's goroutine: use
// [Go] for a function that may call it.
func Do(name string, fn func() error) (err error) {
	defer catch(name, &err)
	return Freeze(name, fn())
}

// Go calls fn in a goroutine of its own and returns at once. When fn has ended,
// the same goroutine calls ended with the result: nil, the frozen error of fn, a
// [*PanicError], or an error that is [ErrGoexit]. ended is our own code: Go does
// not catch a panic in it. All errors carry the name.
//
// The result is the number of the call, with which [Abandoned] finds its stack. No two
// calls of a process have the same number.
func Go(name string, fn func() error, ended func(error)) uint64 {
	return GoJob(name, &functions{fn, ended})
}

// Job is what [GoJob] runs.
type Job interface {
	// Run is the foreign function.
	Run() error
	// Ended is called with the result, and is our own code.
	Ended(err error)
}

// GoJob is [Go] for the two methods of a value, which need no memory of their own.
func GoJob(name string, job Job) uint64 {
	number := numbers.Add(1)
	go run(number, name, job)
	return number
}

// GoJobUncaught is GoJob without a net: a panic of Run ends the process, as on any
// goroutine of the program. Ended is not called then.
func GoJobUncaught(name string, job Job) uint64 {
	number := numbers.Add(1)
	go runUncaught(number, name, job)
	return number
}

type functions struct {
	fn    func() error
	ended func(error)
}

func (f *functions) Run() error      { return f.fn() }
func (f *functions) Ended(err error) { f.ended(err) }

// numbers counts the goroutines that this package starts.
var numbers atomic.Uint64

// run calls the job's Run and then Ended, even when Run panics or exits its goroutine.
// Stack traces show the arguments of run, and [Stack] finds the number there. That is
// why run is not inlined, and why it returns the number: it keeps the argument until
// Run has returned.
//
//go:noinline
func run(number uint64, name string, job Job) uint64 {
	// Goexit runs the deferred calls and nothing after them, so only a deferred
	// call sees every end of Run.
	var err error
	returned := false
	defer func() {
		if !returned && err == nil {
			err = fmt.Errorf("%s: %w", name, ErrGoexit)
		}
		job.Ended(err)
	}()
	defer catch(name, &err) // deferred directly, because Goexit would not return to a caller
	err = Freeze(name, job.Run())
	returned = true
	return number
}

// runUncaught is run without catch. [Stack] finds its number too.
//
//go:noinline
func runUncaught(number uint64, name string, job Job) uint64 {
	var err error
	returned := false
	defer func() {
		if !returned {
			if v := recover(); v != nil {
				panic(v) // the trace has the frames of fn, which were not unwound yet
			}
			err = fmt.Errorf("%s: %w", name, ErrGoexit)
		}
		job.Ended(err)
	}()
	err = Freeze(name, job.Run())
	returned = true
	return number
}

// A Call is one call of a foreign function, in a goroutine of its own. The zero
// value is a call that has not been made; make it with [Call.Start]. The methods
// may be called concurrently. A Call must not be copied.
type Call struct {
	name   string
	number uint64 // of the goroutine

	mu    sync.Mutex    // guards ended, err and done
	ended bool          // the function has ended and its callback has returned
	err   error         // the frozen result, once ended
	done  chan struct{} // made when Done is first called; closed when ended
}

// Start calls fn in a goroutine of its own and returns at once. All errors carry the
// name.
func Start(name string, fn func() error) *Call {
	c := new(Call)
	c.Start(name, fn, nil)
	return c
}

// Within calls fn in a goroutine of its own and waits for it until ctx ends, and then
// for at most moment. It returns fn's error, frozen, or an [*AbandonedError].
// fn gets ctx from its closure, not from Within.
func Within(ctx context.Context, name string, moment time.Duration, fn func() error) error {
	return Start(name, fn).Wait(ctx.Done(), moment)
}

// Start makes the call: it runs fn in a goroutine of its own and returns at
// once. When fn has ended, the same goroutine calls ended, if it is not nil, as
// [Go] does. The call has ended when ended has returned.
//
// Start must be called once, before every other method.
func (c *Call) Start(name string, fn func() error, ended func(error)) {
	c.name, c.number = name, numbers.Add(1)
	go run(c.number, c.name, &functions{fn, func(err error) {
		if ended != nil {
			ended(err)
		}
		c.end(err)
	}})
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

// Wait waits for the end of the call until over is closed, and then for at most moment.
// It returns the call's result. A process that stood still at the end of the moment, on a
// busy machine or at its limit of processor time, gets the moment again, twice at most: its
// function may be about to return. When the call has not ended by then,
// Wait abandons it: it returns an [*AbandonedError] with the stack of the
// goroutine. The goroutine goes on until the function returns by itself; after
// that, Ended returns the result.
//
// A nil over waits without a bound.
func (c *Call) Wait(over <-chan struct{}, moment time.Duration) error {
	done := c.Done()
	select {
	case <-done:
	case <-over:
		await(done, moment)
	}
	if ended, err := c.Ended(); ended {
		return err
	}
	return c.Abandon()
}

// onTime is how late a timer is at most in a process that runs.
var onTime = Settle / 2

// await waits for done, for at most moment. When the moment ends late, the process stood
// still, and what was to happen within the moment could not run either: then it begins
// again, twice at most.
func await(done <-chan struct{}, moment time.Duration) {
	for range 3 {
		if moment <= 0 {
			return
		}
		began := time.Now()
		over := time.NewTimer(moment)
		select {
		case <-done:
			over.Stop()
			return
		case <-over.C:
		}
		if time.Since(began)-moment <= onTime {
			return
		}
	}
}

// Abandon returns the error that names the call, with its present stack. The call
// itself goes on, because Go cannot end a goroutine.
func (c *Call) Abandon() *AbandonedError { return Abandoned(c.name, c.number) }
