package call

import "reflect"

// IsNil reports whether v is nil or holds a nil pointer, function, map, slice or
// channel. Functions that need a value use it to refuse nil. A comparison with ==
// does not find an interface that holds a nil pointer, which would fail at its
// first use.
func IsNil(v any) bool {
	switch rv := reflect.ValueOf(v); rv.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan, reflect.UnsafePointer:
		return rv.IsNil()
	default:
		return false
	}
}
