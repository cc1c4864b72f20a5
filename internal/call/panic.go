package call

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrGoexit is returned for a function that ended its goroutine with
// runtime.Goexit (testing.T.FailNow does, for one) in place of returning.
var ErrGoexit = errors.New("called runtime.Goexit")

// PanicError is a recovered panic. One that this package made is frozen: its
// text and what it unwraps to were read when the panic was recovered.
type PanicError struct {
	Name  string // the unit, hook, drainer or check that panicked
	Value any    // what was passed to panic; its methods are foreign code
	Stack []byte // the stack of the goroutine that panicked

	frozen bool
	text   string // of Value
	cause  error  // Value, frozen, if it is an error that can be read
}

// Error names who panicked and with what; the stack is in the field.
func (e *PanicError) Error() string { return e.Name + ": panic: " + e.Text() }

// Text returns the text of the panic's value. Use it instead of formatting
// Value, which may run foreign code.
func (e *PanicError) Text() string {
	if !e.frozen { // a literal of the caller's
		return fmt.Sprint(e.Value)
	}
	return e.text
}

// Unwrap returns the panic's value, frozen, when that is an error. It returns nil
// for an error that cannot be read, as a nil pointer often cannot.
func (e *PanicError) Unwrap() error {
	if !e.frozen {
		err, _ := e.Value.(error)
		return err
	}
	return e.cause
}

// catch turns a panic into an error. It must be deferred itself: recover works
// nowhere else.
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

// freeze returns a frozen copy of a PanicError that a caller made. cause is what
// it unwraps to, frozen.
func (e *PanicError) freeze(cause error) *PanicError {
	if cause == errLeftOut { //nolint:errorlint // itself
		cause = nil
	}
	return &PanicError{Name: e.Name, Value: e.Value, Stack: e.Stack, frozen: true, text: textOf(e.Value), cause: cause}
}

// textOf returns the text of a panic's value, cut at maxText. fmt catches most of
// what a foreign method can do; a panic that it does not catch is a text too.
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
