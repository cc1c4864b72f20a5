package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"

	"github.com/pleme-io/lifecycle-go"
)

// choices are the valid texts of a type.
var choices = map[reflect.Type][]string{
	reflect.TypeFor[lifecycle.DrainReadiness](): {string(lifecycle.ReadinessDown), string(lifecycle.ReadinessServing)},
	reflect.TypeFor[lifecycle.DrainWait](): {
		string(lifecycle.WaitAuto), string(lifecycle.WaitAlways), string(lifecycle.WaitNever),
	},
}

const (
	durationPattern    = `^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
	anyDurationPattern = `^[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
)

// limits refuse what lifecycle.Config.Validate refuses of the value of one field.
var limits = map[string]map[string]any{
	"MemoryLimitRatio": {"minimum": 0, "maximum": 1},
	"AdminToken": {
		"pattern": `^[!-~]*$`,
		"anyOf":   []any{map[string]any{"const": ""}, map[string]any{"minLength": 16, "maxLength": 1024}},
	},
	"HealthAddr":     {"pattern": `^(|off|fd://.*|(\[[^\[\]]*\]|[^:\[\]]*):[^:\[\]]*)$`},
	"ShutdownGrace":  positive,
	"ProbeTimeout":   positive,
	"LeaderRetry":    positive,
	"UpgradeTimeout": positive,
	"UpgradeSignal":  {"enum": []any{"", "SIGUSR1", "SIGUSR2"}},
}

// positive is a duration that cannot be off.
var positive = map[string]any{
	"anyOf": []any{map[string]any{
		"type":    "string",
		"pattern": durationPattern,
		"not":     map[string]any{"pattern": `^\+?[0.nuµμmsh]*$`},
	}},
}

// oneToken refuses both ways to give the admin token together.
var oneToken = map[string]any{
	"type":     "object",
	"required": []string{"admin_token", "admin_token_file"},
	"properties": map[string]any{
		"admin_token":      map[string]any{"minLength": 1},
		"admin_token_file": map[string]any{"minLength": 1},
	},
}

// Schema returns a JSON Schema (draft 2020-12) of the files that [Load] accepts for T.
// An editor completes keys and marks mistakes with it. describe returns the text for a
// key; when it is nil or returns "", the text is the field's tag usage:"…". The schema
// refuses the values of single keys that lifecycle.Config refuses, except for durations
// of more than a year. It does not cover sums of several keys, and the checks of other
// Validate methods. Its $id and its title are made of the name of T.
//
// The error is a mistake in T.
func Schema[T any](describe func(key string) string) ([]byte, error) {
	s, err := newSchema(reflect.TypeFor[T](), "")
	if err != nil {
		return nil, err
	}
	value := defaults[T]()
	if describe == nil {
		describe = func(string) string { return "" }
	}
	root := s.root.jsonSchema(reflect.ValueOf(&value).Elem(), describe)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"], root["$id"] = "configuration", "urn:go:configuration"
	if t := s.root.typ; t.Name() != "" {
		root["title"], root["$id"] = t.String(), "urn:go:"+url.PathEscape(t.PkgPath()+"."+t.Name())
	}
	root["patternProperties"] = map[string]any{"^x-": true} // for YAML anchors
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("config: write the JSON Schema: %w", err)
	}
	return append(text, '\n'), nil
}

// jsonSchema describes n; v is its default, invalid when there is none.
func (n *node) jsonSchema(v reflect.Value, describe func(string) string) map[string]any {
	out := map[string]any{}
	if v.IsValid() && v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	t := structOf(n.typ)
	switch {
	case !n.isLeaf():
		properties := map[string]any{}
		for _, c := range n.children {
			var below reflect.Value
			if v.IsValid() {
				below = v.FieldByIndex(c.index)
			}
			properties[c.name] = c.jsonSchema(below, describe)
		}
		out["type"] = "object"
		if n.key != "" {
			out["type"] = []string{"object", "null"} // null when every key is commented out
		}
		out["properties"], out["additionalProperties"] = properties, false
		if t == typeLifecycle {
			out["not"] = oneToken
		}
	case n.elem != nil:
		item := n.elem.jsonSchema(reflect.Value{}, describe)
		if !n.elem.isLeaf() {
			item["type"] = "object" // an item that is there has a value
		}
		if t.Kind() == reflect.Map {
			out["type"], out["additionalProperties"] = "object", item
		} else {
			out["type"], out["items"] = "array", item
		}
	default:
		n.scalarSchema(t, out)
		if n.lifecycle {
			maps.Copy(out, limits[n.fieldName])
		}
	}
	text := describe(n.key)
	if text == "" {
		text = n.usage
	}
	if text != "" {
		out["description"] = text
	}
	if n.isLeaf() && n.elem == nil && !n.secret && v.IsValid() && !v.IsZero() {
		out["default"] = jsonValue(v, n)
	}
	return out
}

func (n *node) scalarSchema(t reflect.Type, out map[string]any) {
	switch {
	case n.off:
		out["anyOf"] = []any{
			map[string]any{"type": "string", "pattern": durationPattern},
			map[string]any{"enum": []any{"off", false, 0}},
		}
		return
	case t == typeDuration:
		out["anyOf"] = []any{map[string]any{"type": "string", "pattern": anyDurationPattern}, map[string]any{"const": 0}}
		return
	case choices[t] != nil:
		out["enum"] = choices[t]
		return
	case t == typeURL || reflect.PointerTo(t).Implements(typeText):
		out["type"] = "string"
		return
	}
	switch t.Kind() {
	case reflect.String:
		out["type"] = "string"
	case reflect.Bool:
		out["type"] = "boolean"
	case reflect.Float32, reflect.Float64:
		out["type"] = "number"
	default:
		out["type"] = "integer"
		if bits := t.Bits(); t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64 {
			out["minimum"], out["maximum"] = 0, ^uint64(0)>>(64-bits)
		} else {
			out["minimum"], out["maximum"] = int64(-1)<<(bits-1), ^(int64(-1) << (bits - 1))
		}
	}
}

// jsonValue returns a default as a file would have it.
func jsonValue(v reflect.Value, n *node) any {
	switch {
	case v.Type() == typeDuration || v.Type() == typeURL:
		return render(v, n)
	case v.Kind() == reflect.String:
		return v.String()
	default:
		return v.Interface()
	}
}
