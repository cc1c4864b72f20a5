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
	ownText      = reflect.TypeFor[encoding.TextUnmarshaler]()
	ownJSON      = reflect.TypeFor[json.Unmarshaler]()
)

// FromText parses a text, such as a part of a query string, as a value of the given
// type: strings, booleans, numbers, times (RFC 3339), durations, and types with
// UnmarshalText. Only this function turns texts into Go values; all code after it is
// strict.
func FromText(text string, typ reflect.Type) (any, error) {
	v := reflect.New(typ)
	fail := func(want string) (any, error) { return nil, fmt.Errorf("%q is not %s", clip(text, 64), want) }
	elem := v.Elem()
	switch kind := typ.Kind(); {
	case typ == durationType:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fail("a duration, such as 1h30m")
		}
		return d, nil
	case v.Type().Implements(ownText):
		own, _ := v.Interface().(encoding.TextUnmarshaler)
		if err := own.UnmarshalText([]byte(text)); err != nil && typ == timeType {
			return fail("a time of RFC 3339, such as 2030-01-31T12:00:00Z")
		} else if err != nil {
			return fail("a " + typ.String())
		}
	case kind == reflect.String:
		elem.SetString(text)
	case kind == reflect.Bool, elem.CanInt(), elem.CanUint(), elem.CanFloat():
		// The form of JSON, which has no spaces here and no null.
		if strings.TrimSpace(text) != text || text == "null" || json.Unmarshal([]byte(text), v.Interface()) != nil {
			return fail(wantOf(typ))
		}
	default:
		return nil, fmt.Errorf("a %s cannot be compared with a text", typ)
	}
	return elem.Interface(), nil
}

// wantOf describes the texts of a boolean or a number.
func wantOf(typ reflect.Type) string {
	switch v := reflect.Zero(typ); {
	case v.CanInt():
		return fmt.Sprintf("an integer of %d bits", typ.Bits())
	case v.CanUint():
		return fmt.Sprintf("an unsigned integer of %d bits", typ.Bits())
	case v.CanFloat():
		return "a number"
	}
	return "true or false"
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
	own := v.Type().Implements(ownText) || v.Type().Implements(ownJSON)
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
