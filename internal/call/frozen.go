package call

import (
	"reflect"
	"slices"
)

// frozen is a foreign error after it was read. Its methods call no methods of the
// foreign error.
type frozen struct {
	text    string
	kept    error   // the foreign error; compared and returned, never called
	answers []error // the sentinels that its Is method accepts
}

// frozenOne is a foreign error that wraps one error.
type frozenOne struct {
	frozen
	inner error // frozen
}

// frozenMany is a foreign error that wraps several errors.
type frozenMany struct {
	frozen
	parts []error // frozen
}

func (e *frozen) Error() string { return e.text }

// Is reports whether target is the foreign error itself, or a sentinel that the
// foreign error's own Is method accepted when it was read. errors.Is calls it.
func (e *frozen) Is(target error) bool {
	return equal(e.kept, target) || slices.ContainsFunc(e.answers, func(a error) bool { return equal(a, target) })
}

// As sets target to the foreign error when the types match. errors.As and
// errors.AsType call it.
func (e *frozen) As(target any) bool {
	p := reflect.ValueOf(target)
	if p.Kind() != reflect.Pointer || p.IsNil() || !reflect.TypeOf(e.kept).AssignableTo(p.Type().Elem()) {
		return false
	}
	p.Elem().Set(reflect.ValueOf(e.kept))
	return true
}

func (e *frozen) original() error { return e.kept }

func (e *frozenOne) Unwrap() error    { return e.inner }
func (e *frozenMany) Unwrap() []error { return e.parts }

// Original returns the foreign error of which err is the frozen form, or err
// itself. Use it to look at the type, or on the caller's goroutine: the methods
// are foreign.
func Original(err error) error {
	if f, ok := err.(interface{ original() error }); ok {
		return f.original()
	}
	return err
}

// Same reports whether a and b are the same error, frozen or not. It returns
// false for errors that cannot be compared.
func Same(a, b error) bool { return equal(Original(a), Original(b)) }

func equal(a, b error) (same bool) {
	defer func() { _ = recover() }() // types that cannot be compared
	return a == b                    //nolint:errorlint // not what it wraps
}

// Only reports whether is returns true for the frozen error err, or for the error
// that it wraps. When err wraps several errors, that must hold for each of them:
// a failure that is joined with a harmless error is still a failure.
//
// is must look only at the error that it gets, not at the errors that it wraps.
func Only(err error, is func(error) bool) bool {
	if is(err) {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself
	case interface{ Unwrap() error }:
		inner := e.Unwrap()
		return inner != nil && Only(inner, is)
	case interface{ Unwrap() []error }:
		parts := e.Unwrap()
		for _, part := range parts {
			if part != nil && !Only(part, is) {
				return false
			}
		}
		return len(parts) > 0
	}
	return false
}
