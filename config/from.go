package config

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"time"

	"github.com/knadh/koanf/v2"

	"github.com/pleme-io/lifecycle-go/internal/configjson"
)

// Source is a store of settings that the program fills itself, with another library.
type Source struct {
	// Name stands for the store in messages, such as "viper".
	Name string
	// Read returns the settings. A section is a map. Read is called for each load, and
	// may be called again by [Live.Reload]. It gets the keys of T, for a store that has
	// to be asked for each one. Load changes nothing in the result.
	Read func(keys []string) (map[string]any, error)
	// Text says that the store keeps variables of the environment as texts beside the
	// values of files. A text then counts as a number, a duration or a list too.
	Text bool
}

// From loads from a store in place of the file. Without [WithEnviron], [WithArgs],
// [WithFlagSet] and [WithFlags], Load then reads neither the environment nor flags,
// because the store has them. Pass "" as the path to Load.
//
// Load reads the store's values as strictly as a file. A [time.Duration] is one
// exception: it comes from a program, so its 0 is the default and not off.
func From(src Source) Option {
	return func(o *options) {
		if src.Name == "" || src.Read == nil {
			o.fault = errors.Join(o.fault, errors.New("config: a Source needs Name and Read"))
			return
		}
		o.from = &src
	}
}

// FromMap is [From] for settings that the program has as a map. With [WithSection] it
// loads the section lifecycle of any map. name stands for the map in messages.
func FromMap(name string, settings map[string]any) Option {
	return From(Source{Name: name, Read: func([]string) (map[string]any, error) { return settings, nil }})
}

// FromKoanf is [From] for a koanf that the program fills itself. koanf does not say whether
// a value is from a file or from the environment, so a text counts as a number, a duration
// or a list too.
func FromKoanf(k *koanf.Koanf) Option {
	return From(Source{Name: "koanf", Text: true, Read: func([]string) (map[string]any, error) {
		if k == nil {
			return nil, errors.New("there is no koanf")
		}
		return k.Raw(), nil
	}})
}

// readFrom reads the store.
func (l *loader) readFrom() (source, []error) {
	name := func(string) (string, int) { return l.from.Name, 0 }
	if l.file != "" {
		problem := "the configuration is read from " + l.from.Name + ", and not from a file"
		return source{}, []error{&Fault{Source: l.asked, Problem: problem}}
	}
	keys := make([]string, len(l.schema.leaves))
	for i, n := range l.schema.leaves {
		keys[i] = n.key
	}
	settings, err := l.from.Read(keys)
	if err != nil {
		return source{}, []error{&Fault{Source: l.from.Name, Problem: "it cannot be read: " + err.Error(), Err: err}}
	}
	tree, _ := plainValue(reflect.ValueOf(settings), l.from.Text, 0).(map[string]any)
	return l.sectionOf(tree, name)
}

// maxNested is how deep maps and lists of a store may be nested. A map that contains
// itself is deeper.
const maxNested = 100

// plainValue copies a value of a store into the types that a file's values have.
func plainValue(v reflect.Value, text bool, depth int) any {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.String {
		v = v.Elem()
	}
	if !v.IsValid() || depth > maxNested {
		return nil
	}
	switch value := v.Interface().(type) {
	case time.Time, time.Duration:
		return value
	case url.URL:
		return value.String()
	case json.Number:
		return configjson.Number(value)
	case encoding.TextMarshaler:
		if v.Kind() == reflect.String || v.Kind() == reflect.Pointer && v.IsNil() {
			break // such as lifecycle.Secret, which does not show its text
		}
		s, err := value.MarshalText()
		if err != nil {
			return err // which fits no key, so that the fault of the key shows it
		}
		return string(s)
	}
	switch v.Kind() {
	case reflect.Pointer:
		return plainValue(v.Elem(), text, depth+1)
	case reflect.String:
		if text {
			return loose(v.String())
		}
		return v.String()
	case reflect.Bool:
		return v.Bool()
	case reflect.Float32, reflect.Float64:
		return v.Float()
	case reflect.Map:
		tree := make(map[string]any, v.Len())
		for key, item := range v.Seq2() {
			tree[fmt.Sprint(key)] = plainValue(item, text, depth+1)
		}
		return tree
	case reflect.Slice, reflect.Array:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plainValue(v.Index(i), text, depth+1)
		}
		return list
	}
	if v.CanInt() {
		return v.Int()
	}
	if v.CanUint() {
		return v.Uint()
	}
	return v.Interface()
}
