package safe

// Only reports whether is holds for everything that err consists of: for err
// itself, for what it wraps, or, when it wraps several errors, for each of them.
// A failure that was joined with a harmless error is still one.
//
// is gets each error as it is, and must not look into what it wraps.
func Only(err error, is func(error) bool) bool {
	if is(err) {
		return true
	}
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself
	case interface{ Unwrap() error }:
		inner := e.Unwrap()
		return inner != nil && Only(inner, is)
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if part != nil && !Only(part, is) {
				return false
			}
		}
		return len(e.Unwrap()) > 0
	}
	return false
}

// Same reports whether a is the very error b. Errors that cannot be compared
// are not.
func Same(a, b error) (same bool) {
	defer func() { _ = recover() }()
	return a == b //nolint:errorlint // not what it wraps
}
