package call

import (
	"reflect"
	"slices"
)

// frozen is a foreign error after it was read. Its methods call none of the
// foreign error's.
type frozen struct {
	text    string
	kept    error   // the foreign error; compared and handed out, never called
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

// Original returns the foreign error that err is the frozen form of, or err. It is
// for looking at the type, and for code that runs on the caller's goroutine: the
// methods are foreign.
func Original(err error) error {
	if f, ok := err.(interface{ original() error }); ok {
		return f.original()
	}
	return err
}

// Same reports whether a is the very error b, frozen or not. Errors that cannot
// be compared are not.
func Same(a, b error) bool { return equal(Original(a), Original(b)) }

func equal(a, b error) (same bool) {
	defer func() { _ = recover() }() // types that cannot be compared
	return a == b                    //nolint:errorlint // not what it wraps
}

// Only reports whether is holds for everything that the frozen error err
// consists of: for err itself, for what it wraps, or, when it wraps several
// errors, for each of them. A failure that was joined with a harmless error is
// still one.
//
// is gets each error as it is, and must not look into what that wraps.
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
