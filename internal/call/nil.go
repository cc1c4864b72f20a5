package call

import "reflect"

// IsNil reports whether v is nil or holds a nil pointer, function, map, slice or
// channel. A foreign value is refused by it where a value is needed: an interface
// that holds a nil pointer is not nil for ==, and fails when it is first used.
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
