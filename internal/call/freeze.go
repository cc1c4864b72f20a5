package call

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
)

// The limits of a frozen error. errors.Is and errors.As do not find errors beyond
// them. A longer text is cut, and ends with its whole length.
const (
	maxText  = 4 << 20  // bytes of one error's text
	maxTexts = 16 << 20 // bytes of the texts of a whole tree
	maxDepth = 100      // errors that wrap one another
	maxNodes = 4096     // errors in a tree
)

// Freeze reads a foreign error once and returns an error with the same text and
// identity whose methods run no foreign code. Call it on the goroutine that ran
// the code that made the error, as [Do], [Go] and [Ask] do. nil stays nil.
//
// The frozen error keeps:
//
//   - its text, at most 4 MiB of it;
//   - what it wraps, by Unwrap() error and Unwrap() []error, frozen too, at most
//     100 deep and 4096 errors;
//   - its identity: errors.Is finds the foreign error and the errors that it
//     wraps, and errors.As returns the concrete foreign errors, whose methods the
//     caller may then run;
//   - the answers of an Is method to the sentinels of the standard library, and
//     to those that a package has named with [Sentinels].
//
// It does not keep the answers of an Is method to other targets, an As method, a
// Format method, or a text that changes later. To use these, get the concrete
// error with errors.As. A comparison with == does not find the foreign error;
// errors.Is does.
//
// An error whose methods panic, like those of many nil pointers, becomes a
// [*PanicError]. Freeze leaves out such an error when another error wraps it.
//
// Freeze returns errors of well-known types of the standard library and of this
// package unchanged, and does not allocate for them, because their methods are
// known to return. It cannot protect against a caller that later changes such an
// error.
func Freeze(name string, err error) error {
	if err == nil || plain(err) {
		return err
	}
	r := newReader()
	out, same := r.read(err, 0)
	switch {
	case same:
		return err
	case out == nil:
		text := fmt.Sprintf("%s: the error that it returned, a %T, cannot be read", r.why, err)
		return &PanicError{Name: name, Value: text, Stack: r.stack, frozen: true, text: text}
	}
	return out
}

// plain reports whether err is one of the most frequent errors, which Freeze
// returns unchanged: made by errors.New, the error of an ended context, or frozen
// already. plain needs little stack; the reader would make a new goroutine's
// stack grow.
func plain(err error) bool {
	switch reflect.TypeOf(err) {
	case plainType, ctxLateType:
		return len(err.Error()) <= maxText
	}
	switch err.(type) { //nolint:errorlint // err itself
	case *frozen, *frozenOne, *frozenMany:
		return true
	}
	return false
}

// known reports whether Freeze would return err as it is.
func known(err error) bool {
	r := newReader()
	r.probing = true
	_, same := r.read(err, 0)
	return same
}

// sentinels are the targets with which Freeze calls a foreign Is method.
var sentinels atomic.Pointer[[]error]

func init() {
	Sentinels(context.Canceled, context.DeadlineExceeded,
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, io.ErrShortWrite, io.ErrNoProgress,
		os.ErrNotExist, os.ErrExist, os.ErrPermission, os.ErrInvalid, os.ErrClosed,
		os.ErrDeadlineExceeded, os.ErrNoDeadline, os.ErrProcessDone,
		net.ErrClosed, net.ErrWriteToConnected, exec.ErrNotFound, exec.ErrDot, exec.ErrWaitDelay,
		strconv.ErrRange, strconv.ErrSyntax, errors.ErrUnsupported, ErrGoexit)
}

// Sentinels adds targets with which [Freeze] calls a foreign Is method. A package
// calls it for its own sentinels that the Is methods of users may accept, when it
// initialises its variables: var _ = call.Sentinels(ErrTerminate). It returns the
// number of all targets.
func Sentinels(errs ...error) int {
	for {
		old := sentinels.Load()
		var all []error
		if old != nil {
			all = slices.Clone(*old)
		}
		all = append(all, errs...)
		if sentinels.CompareAndSwap(old, &all) {
			return len(all)
		}
	}
}
