package call

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrGoexit is returned for a function that ended its goroutine with
// runtime.Goexit instead of returning, as testing.T.FailNow does.
var ErrGoexit = errors.New("called runtime.Goexit")

// PanicError is a recovered panic. A PanicError of this package is frozen: the
// package read its text and the error that it unwraps to when it recovered the
// panic.
type PanicError struct {
	Name  string // the unit, hook, drainer or check that panicked
	Value any    // what was passed to panic; its methods are foreign code
	Stack []byte // the stack of the goroutine that panicked

	frozen bool
	text   string // of Value
	cause  error  // the frozen Value, if Value is an error that can be read
}

// Error says which part panicked, and with which value. It leaves out the stack.
func (e *PanicError) Error() string { return e.Name + ": panic: " + e.Text() }

// Text returns the text of the panic's value. Use it instead of formatting
// Value, which may run foreign code.
func (e *PanicError) Text() string {
	if !e.frozen { // made by the caller, not by this package
		return fmt.Sprint(e.Value)
	}
	return e.text
}

// Unwrap returns the panic's value, frozen, when that is an error. It returns nil
// for an error that cannot be read, such as many nil pointers.
func (e *PanicError) Unwrap() error {
	if !e.frozen {
		err, _ := e.Value.(error)
		return err
	}
	return e.cause
}

// catch turns a panic into an error. It must be the deferred function itself;
// otherwise recover has no effect.
func catch(name string, err *error) {
	if v := recover(); v != nil {
		*err = panicked(name, v, debug.Stack())
	}
}

// panicked returns the frozen error for a panic with v.
func panicked(name string, v any, stack []byte) *PanicError {
	p := &PanicError{Name: name, Value: v, Stack: stack, frozen: true, text: textOf(v)}
	if err, ok := v.(error); ok {
		r := newReader()
		if cause, _ := r.read(err, 0); cause != nil {
			p.cause = cause
		}
	}
	return p
}

// freeze returns a frozen copy of a PanicError that a caller made. cause is the
// frozen error that it unwraps to.
func (e *PanicError) freeze(cause error) *PanicError {
	if cause == errLeftOut { //nolint:errorlint // itself
		cause = nil
	}
	return &PanicError{Name: e.Name, Value: e.Value, Stack: e.Stack, frozen: true, text: textOf(e.Value), cause: cause}
}

// textOf returns the text of a panic's value, cut at maxText. fmt catches most
// panics of foreign methods. textOf returns a text for the others too.
func textOf(v any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("a %T, which cannot be printed", v)
		}
	}()
	if IsNil(v) && v != nil {
		return fmt.Sprintf("a nil %T", v)
	}
	return clip(fmt.Sprint(v), maxText)
}
