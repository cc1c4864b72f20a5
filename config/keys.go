package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go"
)

// Key describes one key of a configuration.
type Key struct {
	// Name is the whole key, such as "lifecycle.drain_interval".
	Name string
	// Env and Flag are its variable and its flag: "SERVICE_LIFECYCLE_DRAIN_INTERVAL",
	// "-lifecycle.drain-interval".
	Env, Flag string
	// Type is the kind of value: "duration", "duration or off", "text", "true or false",
	// "number", "whole number", "list of …", "map of …", "section" for a struct in a list
	// or a map, "down or serving" for one of several words, or the name of a Go type that
	// reads itself from text.
	Type string
	// Default is the value without any source, in the form of a file; "" for no value
	// and for the zero of its type.
	Default string
	// Doc describes the key: the field's tag usage:"…", and for the keys of lifecycle
	// the text of docs/reference/config.md.
	Doc string
	// Field is the name of the struct's field.
	Field string
	// Words are the only values of a key of several words; nil for other types.
	Words []string
	// Secret says that its value is never shown.
	Secret bool
	// Live says that a running App takes over a change. It is false for the service's
	// own keys: the service decides about those.
	Live bool
}

// Keys lists the keys of T, in the order of its fields. path and the options mean
// what they mean for [Load]; Keys reads no source.
func Keys[T any](path string, opts ...Option) ([]Key, error) {
	o := newOptions(path, append(slices.Clip(opts), WithArgs(nil)))
	value := defaults[T]()
	l, err := newLoader(reflect.ValueOf(&value).Elem(), o)
	if err != nil {
		return nil, err
	}
	return l.keys(), nil
}

// filled returns the defaults of T, with the defaults of lifecycle.Config filled in.
func (l *loader) filled() reflect.Value {
	v := reflect.New(l.defaults.Type()).Elem()
	v.Set(l.defaults)
	if section := l.schema.lifecycle(); section != nil {
		if at, ok := lookup(v, l.schema.root, section); ok {
			fillIn(at)
		}
	}
	return v
}

// unset returns the setting of every key as it is without any source.
func (l *loader) unset() []Setting {
	v := l.filled()
	all := make([]Setting, len(l.schema.leaves))
	for i, n := range l.schema.leaves {
		all[i] = Setting{Key: n.key, Value: "none", Source: fromDefault}
		if field, ok := lookup(v, l.schema.root, n); ok {
			all[i].Value = render(field, n)
		}
	}
	return all
}

// keys describes the keys, with the program's defaults and, below lifecycle, the
// library's defaults.
func (l *loader) keys() []Key {
	v := l.filled()
	keys := make([]Key, 0, len(l.schema.leaves))
	for _, n := range l.schema.leaves {
		k := Key{
			Name:   n.key,
			Env:    l.envOf(n),
			Flag:   "-" + flagOf(n),
			Type:   typeName(n),
			Doc:    n.usage,
			Field:  n.fieldName,
			Words:  choices[structOf(n.typ)],
			Secret: n.secret,
			Live:   n.live,
		}
		if field, ok := lookup(v, l.schema.root, n); ok && !field.IsZero() {
			k.Default = render(field, n)
		}
		keys = append(keys, k)
	}
	return keys
}

// fillIn sets the defaults of a lifecycle.Config, or of a pointer to one.
func fillIn(at reflect.Value) {
	var cfg lifecycle.Config
	if inner := reflect.Indirect(at); inner.IsValid() {
		cfg, _ = inner.Interface().(lifecycle.Config)
	}
	cfg = cfg.WithDefaults()
	if at.Kind() == reflect.Pointer {
		at.Set(reflect.ValueOf(&cfg)) // a copy: the program's default must not change
		return
	}
	at.Set(reflect.ValueOf(cfg))
}

// Kinds of values by which a value is read.
const (
	boolType  = "true or false"
	textType  = "text"
	wholeType = "whole number"
)

// typeName describes the values of a key.
func typeName(n *node) string {
	t := structOf(n.typ)
	switch {
	case t == typeDuration && n.off:
		return "duration or off"
	case t == typeDuration:
		return "duration"
	case choices[t] != nil:
		last := len(choices[t]) - 1
		return strings.Join(choices[t][:last], ", ") + " or " + choices[t][last]
	case t == typeSecret:
		return textType
	case n.elem != nil && t.Kind() == reflect.Map:
		return "map of " + typeName(n.elem)
	case n.elem != nil:
		return "list of " + typeName(n.elem)
	case n.children != nil:
		return "section"
	case t == typeURL || reflect.PointerTo(t).Implements(typeText):
		return t.String()
	}
	switch t.Kind() {
	case reflect.Bool:
		return boolType
	case reflect.String:
		return textType
	case reflect.Float32, reflect.Float64:
		return "number"
	default:
		return wholeType
	}
}
