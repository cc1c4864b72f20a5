// Package safe runs other people's functions so that nothing they do can take
// the caller down: a panic becomes an error with its stack, and
// runtime.Goexit, which would end the goroutine without a trace, becomes an
// error too.
package safe

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrGoexit is returned for a function that ended its goroutine with
// runtime.Goexit (testing.T.FailNow does, for one) in place of returning.
var ErrGoexit = errors.New("called runtime.Goexit")

// PanicError is a recovered panic.
type PanicError struct {
	Name  string // the unit, hook, drainer or check that panicked
	Value any    // what was passed to panic
	Stack []byte // the stack of the goroutine that panicked
}

// Error names who panicked and with what; the stack is in the field.
func (e *PanicError) Error() string { return fmt.Sprintf("%s: panic: %v", e.Name, e.Value) }

// Unwrap returns the panic's value when that was an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Go runs fn in a goroutine of its own and calls done, once and last, with its
// result: what fn returned, a [*PanicError], or an error that is [ErrGoexit].
// Before fn runs, started (when not nil) gets the goroutine's id, with which
// [StackOf] finds it later.
func Go(name string, fn func() error, started func(goid uint64), done func(error)) {
	go func() {
		if started != nil {
			started(GoroutineID())
		}
		// Goexit runs the deferred calls and nothing after them: this is the
		// only place from which every end of fn can be seen.
		var err error
		returned := false
		defer func() {
			if !returned && err == nil {
				err = fmt.Errorf("%s: %w", name, ErrGoexit)
			}
			done(err)
		}()
		defer catch(name, &err) // here, and not in a call: Goexit would keep it from returning
		err = sound(name, fn())
		returned = true
	}()
}

// Do runs fn in the caller's goroutine and returns its error, or a
// [*PanicError]. A Goexit cannot be stopped and ends the caller's goroutine:
// use [Go] where fn may call it.
func Do(name string, fn func() error) (err error) {
	defer catch(name, &err)
	return sound(name, fn())
}

// sound returns err if it can be read, and otherwise a [*PanicError] that says
// that it cannot: a nil pointer in an error is the common case. Whoever gets an
// error from here may log it and ask what it is.
func sound(name string, err error) (out error) {
	if err == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			out = &PanicError{Name: name, Value: fmt.Sprintf("the error that it returned, a %T, cannot be read: %v", err, v), Stack: debug.Stack()}
		}
	}()
	_ = err.Error()
	errors.Is(err, errNobodys) // walks what it wraps
	return err
}

var errNobodys = errors.New("nobody's")

// catch makes a panic an error. It is to be deferred itself: recover works
// nowhere else.
func catch(name string, err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Name: name, Value: v, Stack: debug.Stack()}
	}
}
