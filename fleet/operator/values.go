package operator

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
)

// maxExact is the largest integer that every JSON reader represents exactly (RFC
// 8259, section 6).
const maxExact = 1<<53 - 1

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	unmarshaler  = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// FromText parses a text, such as a part of a query string, as a value of the given
// type: strings, booleans, numbers, times (RFC 3339), durations, and types with
// UnmarshalText. Only this function turns texts into Go values; all code after it is
// strict.
func FromText(text string, typ reflect.Type) (any, error) {
	v := reflect.New(typ).Elem()
	fail := func(want string) (any, error) { return nil, fmt.Errorf("%q is not %s", clip(text, 64), want) }
	switch kind := typ.Kind(); {
	case typ == timeType:
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return fail("a time of RFC 3339, such as 2030-01-31T12:00:00Z")
		}
		return t, nil
	case typ == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fail("a duration, such as 1h30m")
		}
		return d, nil
	case reflect.PointerTo(typ).Implements(unmarshaler):
		if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
			if err := u.UnmarshalText([]byte(text)); err != nil {
				return fail("a " + typ.String())
			}
		}
	case kind == reflect.String:
		v.SetString(text)
	case kind == reflect.Bool:
		switch text {
		case "true", "false":
			v.SetBool(text == "true")
		default:
			return fail("true or false")
		}
	case v.CanInt():
		n, err := strconv.ParseInt(text, 10, typ.Bits())
		if err != nil {
			return fail(fmt.Sprintf("an integer of %d bits", typ.Bits()))
		}
		v.SetInt(n)
	case v.CanUint():
		n, err := strconv.ParseUint(text, 10, typ.Bits())
		if err != nil {
			return fail(fmt.Sprintf("an unsigned integer of %d bits", typ.Bits()))
		}
		v.SetUint(n)
	case v.CanFloat():
		n, err := strconv.ParseFloat(text, typ.Bits())
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return fail("a number")
		}
		v.SetFloat(n)
	default:
		return nil, fmt.Errorf("a %s cannot be compared with a text", typ)
	}
	return v.Interface(), nil
}

// fromValue converts a JSON value to the given type. It refuses any value that is not
// exactly of it: a number for a string, a fraction for an integer, an unknown field,
// null for a type without nil.
func fromValue(value *structpb.Value, typ reflect.Type) (any, error) {
	v := reflect.New(typ)
	elem := v.Elem()
	if _, null := value.GetKind().(*structpb.Value_NullValue); null || value.GetKind() == nil {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
			return elem.Interface(), nil
		}
		return nil, fmt.Errorf("is null, want a %s", typ)
	}
	own := typ == timeType || reflect.PointerTo(typ).Implements(unmarshaler) || reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]())
	if text, ok := value.GetKind().(*structpb.Value_StringValue); ok && !own && (elem.CanInt() || elem.CanUint()) {
		return FromText(text.StringValue, typ) // proto's JSON writes 64-bit integers as strings
	}
	if n, ok := value.GetKind().(*structpb.Value_NumberValue); ok && !own && (elem.CanInt() || elem.CanUint()) {
		if n.NumberValue != math.Trunc(n.NumberValue) || math.Abs(n.NumberValue) > maxExact {
			return nil, fmt.Errorf("is %v, want an integer (a large one as a string)", n.NumberValue)
		}
		return FromText(strconv.FormatFloat(n.NumberValue, 'f', 0, 64), typ)
	}
	text, err := json.Marshal(value.AsInterface())
	if err != nil {
		return nil, fmt.Errorf("is not a JSON value: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v.Interface()); err != nil {
		return nil, fmt.Errorf("is %s, want a %s", clip(string(text), 64), typ)
	}
	return elem.Interface(), nil
}

// Fields converts a JSON object to an Entity's fields. Integers that a double cannot
// represent become strings, so that none is rounded.
func Fields(object []byte) (*structpb.Struct, error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		return nil, fmt.Errorf("fields: %w", err)
	}
	for k, v := range m {
		m[k] = exact(v)
	}
	out, err := structpb.NewStruct(m)
	if err != nil {
		return nil, fmt.Errorf("fields: %w", err)
	}
	return out, nil
}

func exact(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil && n >= -maxExact && n <= maxExact {
			return float64(n)
		}
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), ".eE") {
			return f
		}
		return v.String()
	case map[string]any:
		for k, e := range v {
			v[k] = exact(e)
		}
	case []any:
		for i, e := range v {
			v[i] = exact(e)
		}
	}
	return v
}
