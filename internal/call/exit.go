package call

import (
	"errors"
	"reflect"
)

// Status returns [ExitStatus] of the result of a program, and 1 for an error that asks
// for none or whose methods panic or do not return.
func Status(err error, stuck int) int {
	if err == nil {
		return 0
	}
	status, failed := Ask(new(Answers), "ExitCode", func() int { return ExitStatus(err, stuck) })
	if failed != nil || status == 0 {
		return 1
	}
	return status
}

// ExitStatus returns the exit status that err asks for: the result of its ExitCode
// method when that is from 1 to 255, or stuck for an [*AbandonedError]. When err asks
// for none, the errors that it wraps decide. Of a list that errors.Join made only the
// first part counts; the parts of any other error that wraps several, as fmt.Errorf
// makes it, describe the same failure, so all of them count. ExitStatus returns 0 when
// none of them asks for a status, or when a method of an error panics. It calls methods of
// users' errors, so call it on the goroutine of the code to which err was returned.
func ExitStatus(err error, stuck int) (status int) {
	defer func() {
		if recover() != nil {
			status = 0
		}
	}()
	left := maxNodes
	return exitStatus(err, stuck, &left)
}

func exitStatus(err error, stuck int, left *int) int {
	if *left--; *left < 0 {
		return 0 // an error that wraps itself has no end
	}
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself
	case interface{ ExitCode() int }:
		if code := e.ExitCode(); code >= 1 && code <= 255 {
			return code
		}
	case *AbandonedError:
		return stuck
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return exitStatus(inner, stuck, left)
		}
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if part == nil {
				continue
			}
			if code := exitStatus(part, stuck, left); code != 0 || reflect.TypeOf(err) == joinType {
				return code
			}
		}
	}
	return 0
}

var joinType = reflect.TypeOf(errors.Join(ErrGoexit))
