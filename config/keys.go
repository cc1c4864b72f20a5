package config

import (
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Key describes one value that a configuration has.
type Key struct {
	// Name is the whole key, such as "lifecycle.drain_interval".
	Name string
	// Env and Flag give it in other ways: "SERVICE_LIFECYCLE_DRAIN_INTERVAL",
	// "-lifecycle.drain-interval".
	Env, Flag string
	// Type is what is to be given: "duration", "text", "true or false", "number",
	// "list of …", or the name of a Go type that reads itself from text.
	Type string
	// Default is what holds when nobody gives it, as a file would have it; ""
	// when that is nothing, or the zero of its type.
	Default string
	// Doc says what it is for: the field's tag usage:"…". docs/config.md has the
	// words for the keys of lifecycle.
	Doc string
	// Field is the name of the struct's field.
	Field string
	// Secret says that its value is never shown.
	Secret bool
	// Live says that a running App takes on a change of it; the keys of the
	// service itself are the service's to take on.
	Live bool
}

// Keys lists what T can be told, in the order of its fields. path and the options
// are those of [Load]; nothing is read.
func Keys[T any](path string, opts ...Option) ([]Key, error) {
	o := newOptions(path, opts)
	o.args = nil
	l, err := newLoader(reflect.TypeFor[T](), o)
	if err != nil {
		return nil, err
	}
	value := defaults[T]()
	return l.keys(reflect.ValueOf(&value).Elem()), nil
}

func (l *loader) keys(v reflect.Value) []Key {
	keys := make([]Key, 0, len(l.schema.leaves))
	for _, n := range l.schema.leaves {
		k := Key{Name: n.key, Env: l.envOf(n), Flag: "-" + flagOf(n), Type: typeName(n), Doc: n.usage, Secret: n.secret, Live: n.live, Field: n.fieldName}
		if field, ok := lookup(v, l.schema.root, n); ok && !field.IsZero() {
			k.Default = render(field, n)
		}
		keys = append(keys, k)
	}
	return keys
}

// typeName says for people what a key takes.
func typeName(n *node) string {
	t := structOf(n.typ)
	switch {
	case t == typeDuration && n.off:
		return "duration or off"
	case t == typeDuration:
		return "duration"
	case t == typeSecret:
		return "text"
	case n.elem != nil && t.Kind() == reflect.Map:
		return "map of " + typeName(n.elem)
	case n.elem != nil:
		return "list of " + typeName(n.elem)
	case n.children != nil:
		return "section"
	case reflect.PointerTo(t).Implements(typeText):
		return t.String()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Float32, reflect.Float64:
		return "number"
	default:
		return "whole number"
	}
}

// writeHelp writes what -h asks for.
func (l *loader) writeHelp() {
	var b strings.Builder
	fmt.Fprintf(&b, "Each key can be given in the file, in the environment and as a flag; the later one wins.\n\n  -config FILE\n    \tread FILE (%sCONFIG)", l.prefix)
	if l.path != "" {
		fmt.Fprintf(&b, " in place of %s", l.path)
	}
	b.WriteString("\n")
	for _, k := range l.keys(reflect.New(l.schema.root.typ).Elem()) {
		fmt.Fprintf(&b, "  %s %s\n    \t", k.Flag, k.Type)
		if k.Doc != "" {
			b.WriteString(k.Doc + " ")
		}
		fmt.Fprintf(&b, "(%s)\n", k.Env)
	}
	_, _ = io.WriteString(l.out, b.String())
}
