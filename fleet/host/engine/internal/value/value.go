// Package value makes outputs of the result of a handler in a dynamic language.
//
// A handler returns nothing, a text, bytes, a map with topic, data and headers, or a list
// of these. Begin with [Outputs], which the engines for JavaScript and Starlark call, and
// package isolate for Python.
package value

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// Outputs reads a handler's result: nil, text or bytes, a map with the keys
// topic, data and headers, or a list of these. For anything else it returns an
// error that says where the value is and what it should be.
func Outputs(result any) ([]engine.Output, error) {
	list, isList := result.([]any)
	if !isList {
		if result == nil {
			return nil, nil
		}
		list = []any{result}
	}
	outputs := make([]engine.Output, 0, len(list))
	for i, v := range list {
		o, err := output(v)
		if err != nil {
			if isList {
				err = fmt.Errorf("element %d: %w", i, err)
			}
			return nil, fmt.Errorf("the handler's result: %w", err)
		}
		outputs = append(outputs, o)
	}
	return outputs, nil
}

func output(v any) (engine.Output, error) {
	if data, ok := bytesOf(v); ok {
		return engine.Output{Data: data}, nil
	}
	fields, ok := v.(map[string]any)
	if !ok {
		return engine.Output{}, fmt.Errorf("%s is not a message: return nothing, text, bytes, "+
			"a map with topic, data and headers, or a list of these", name(v))
	}
	var o engine.Output
	for _, key := range slices.Sorted(maps.Keys(fields)) { // the same fault is always reported first
		v := fields[key]
		switch key {
		case "topic":
			if o.Topic, ok = v.(string); !ok && v != nil {
				return o, fmt.Errorf("topic is %s, want text", name(v))
			}
		case "data":
			if o.Data, ok = bytesOf(v); !ok && v != nil {
				return o, fmt.Errorf("data is %s, want text or bytes", name(v))
			}
		case "headers":
			h, err := headers(v)
			if err != nil {
				return o, err
			}
			o.Header = h
		default:
			return o, fmt.Errorf("a message has no key %.100q: it has topic, data and headers", key)
		}
	}
	return o, nil
}

func headers(v any) (map[string][]string, error) {
	if v == nil {
		return nil, nil
	}
	fields, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("headers is %s, want a map", name(v))
	}
	h := make(map[string][]string, len(fields))
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		switch v := fields[key].(type) {
		case string:
			h[key] = []string{v}
		case []any:
			for _, one := range v {
				text, ok := one.(string)
				if !ok {
					return nil, fmt.Errorf("header %.100q has %s, want text", key, name(one))
				}
				h[key] = append(h[key], text)
			}
		default:
			return nil, fmt.Errorf("header %.100q is %s, want text or a list of texts", key, name(v))
		}
	}
	return h, nil
}

func bytesOf(v any) ([]byte, bool) {
	switch v := v.(type) {
	case string:
		return []byte(v), true
	case []byte:
		return v, true
	}
	return nil, false
}

// Named is a value that knows the name of its type in its language.
type Named string

// name describes v for people.
func name(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case Named:
		return "a value of type " + string(v)
	case string, []byte:
		return "text"
	case bool:
		return "a boolean"
	case int64, float64, int, uint64:
		return "a number"
	case []any:
		return "a list"
	case map[string]any:
		return "a map"
	default:
		return "a value of type " + strings.TrimPrefix(fmt.Sprintf("%T", v), "*")
	}
}
