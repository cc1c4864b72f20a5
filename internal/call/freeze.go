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

// What is kept of a foreign error. errors.Is and errors.As do not find what is
// beyond, and a text is cut and says how long it was.
const (
	maxText  = 4 << 20  // bytes of one error's text
	maxTexts = 16 << 20 // bytes of the texts of a whole tree
	maxDepth = 100      // errors that wrap one another
	maxNodes = 4096     // errors in a tree
)

// Freeze reads a foreign error once and returns an error that says and is the
// same, and runs no foreign code: neither its Error, Is, As and Unwrap methods
// do, nor does fmt. Call it on the goroutine that ran the code which the error
// came from; [Do], [Go] and [Ask] do. nil stays nil.
//
// The frozen error keeps:
//
//   - its text, at most 4 MiB of it;
//   - what it wraps, by Unwrap() error and Unwrap() []error, frozen too, at most
//     100 deep and 4096 errors;
//   - itself: errors.Is finds it and what it wraps by identity, and errors.As
//     hands out the concrete foreign errors, whose methods the caller runs then;
//   - the answers of an Is method to the sentinels of the standard library, and
//     to those that a package has named with [Sentinels].
//
// It does not keep what an Is method says to any other target, an As method, a
// Format method, or a text that changes later; and == does not find the foreign
// error, errors.Is does. Get the concrete error with errors.As and ask that.
//
// An error that cannot be read because its methods panic, as those of many nil
// pointers do, becomes a [*PanicError]. An inner one is left out.
//
// Errors of well-known types of the standard library and of this package run
// only code that is known to return. Freeze returns them as they are and does
// not allocate for them. A caller that changes such an error after it returned
// it is not protected.
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

// plain reports whether err is one of the most frequent errors, which are frozen as
// they are: made by errors.New, an end of a context, or frozen before. It needs
// little stack; the reader would make a new goroutine's stack grow.
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

// sentinels are the errors that a foreign Is method is asked for.
var sentinels atomic.Pointer[[]error]

func init() {
	Sentinels(context.Canceled, context.DeadlineExceeded,
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, io.ErrShortWrite, io.ErrNoProgress,
		os.ErrNotExist, os.ErrExist, os.ErrPermission, os.ErrInvalid, os.ErrClosed,
		os.ErrDeadlineExceeded, os.ErrNoDeadline, os.ErrProcessDone,
		net.ErrClosed, net.ErrWriteToConnected, exec.ErrNotFound, exec.ErrDot, exec.ErrWaitDelay,
		strconv.ErrRange, strconv.ErrSyntax, errors.ErrUnsupported, ErrGoexit)
}

// Sentinels adds errors to those that [Freeze] asks a foreign Is method for. A
// package calls it for its own sentinels that user code may answer to, while
// variables are initialised: var _ = call.Sentinels(ErrTerminate). It returns
// how many there are.
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
