package call

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// ErrGoexit is returned for a function that ended its goroutine with
// runtime.Goexit instead of returning, as testing.T.FailNow does.
var ErrGoexit = errors.New("called runtime.Goexit")

// PanicError is a recovered panic.
type PanicError struct {
	Name  string // the unit, hook, drainer or check that panicked
	Value any    // what was passed to panic; its methods are foreign code
	Stack []byte // the stack of the goroutine that panicked

	text  string // of Value, read when the panic was recovered; "" for a PanicError that a caller made
	cause error  // Value, kept, if it is an error that can be read
}

// Error says which part panicked, and with which value. It leaves out the stack.
func (e *PanicError) Error() string { return e.Name + ": panic: " + e.Text() }

// Text returns the text of the panic's value, as it was when the panic was recovered. Use
// it instead of formatting Value, which may run foreign code.
func (e *PanicError) Text() string {
	if !e.caught() {
		return fmt.Sprint(e.Value)
	}
	return e.text
}

// Unwrap returns the panic's value when that is an error. It returns nil
// for an error that cannot be read, such as many nil pointers.
func (e *PanicError) Unwrap() error {
	if !e.caught() {
		err, _ := e.Value.(error)
		return err
	}
	return e.cause
}

// caught reports whether this package made the error: its methods run no foreign code.
func (e *PanicError) caught() bool { return e.text != "" }

// catch turns a panic into an error. It must be the deferred function itself;
// otherwise recover has no effect.
func catch(name string, err *error) {
	if v := recover(); v != nil {
		*err = panicked(name, v, debug.Stack())
	}
}

func panicked(name string, v any, stack []byte) *PanicError {
	p := &PanicError{Name: name, Value: v, Stack: stack, text: textOf(v)}
	if err, ok := v.(error); ok {
		cause := Keep(name, err)
		if _, unreadable := cause.(*PanicError); !unreadable || cause == err { //nolint:errorlint // itself
			p.cause = cause
		}
	}
	return p
}

// textOf returns the text of a panic's value, cut at maxText. fmt catches most
// panics of foreign methods. textOf returns a text for the others too.
func textOf(v any) (said string) {
	defer func() {
		if recover() != nil {
			said = fmt.Sprintf("a %T, which cannot be printed", v)
		}
	}()
	if IsNil(v) && v != nil {
		return fmt.Sprintf("a nil %T", v)
	}
	said = text.Excerpt(fmt.Sprint(v), maxText)
	if said == "" {
		return fmt.Sprintf("%#v", v)
	}
	return said
}
