// Package configjson reads the values of a configuration strictly: JSON without repeated
// keys and with all digits ([Parse]), and durations with their unit ([Duration]). package
// config builds on it, and so do MarshalJSON and UnmarshalJSON of lifecycle.Config
// ([Marshal], [Unmarshal]), whose JSON is the form that a configuration file has: its keys
// come from the tags koanf:"…", and a field with its zero value is left out.
package configjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pleme-io/lifecycle-go/internal/suggest"
	"github.com/pleme-io/lifecycle-go/internal/token"
)

var (
	typeDuration = reflect.TypeFor[time.Duration]()
	typeSecret   = reflect.TypeFor[token.Secret]()
)

// Marshal writes the fields of a struct that are not zero, in their order. It leaves
// out secrets. off is the duration that is written as "off".
func Marshal(v reflect.Value, off time.Duration) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := range v.NumField() {
		field := v.Field(i)
		if field.IsZero() || field.Type() == typeSecret {
			continue
		}
		value := field.Interface()
		if d, ok := value.(time.Duration); ok {
			value = d.String()
			if d == off {
				value = "off"
			}
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(key(v.Type().Field(i))) + ":")
		b.Write(text)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Unmarshal reads an object into a struct and keeps the fields that the object does not
// name. It refuses an unknown key, a key that occurs twice and a duration without its
// unit. As in a file, the duration 0 is off.
func Unmarshal(text []byte, v reflect.Value, off time.Duration) error {
	tree, err := Parse(text, nil)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if tree == nil {
		return nil // null changes nothing, as encoding/json has it
	}
	section, ok := tree.(map[string]any)
	if !ok {
		return errors.New("config: want an object with keys")
	}
	names, fields := make([]string, 0, v.NumField()), map[string]reflect.Value{}
	for i := range v.NumField() {
		name := key(v.Type().Field(i))
		names, fields[name] = append(names, name), v.Field(i)
	}
	for _, key := range slices.Sorted(maps.Keys(section)) {
		field, ok := fields[key]
		if !ok {
			problem := "there is no key " + key
			if meant := Meant(key, names); meant != "" {
				problem += ": did you mean " + meant + "?"
			}
			return errors.New("config: " + problem)
		}
		raw, err := json.Marshal(section[key])
		if err != nil {
			return err
		}
		if field.Type() == typeDuration {
			d, want := Duration(section[key], true, off)
			if want != "" {
				return fmt.Errorf("config: %s is %.64s: want %s", key, raw, want)
			}
			field.SetInt(int64(d))
			continue
		}
		if err := json.Unmarshal(raw, field.Addr().Interface()); err != nil {
			return fmt.Errorf("config: %s: %w", key, err)
		}
	}
	return nil
}

func key(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("koanf"), ",")
	return name
}

// Error is a fault at one place of a document.
type Error struct {
	Offset int64 // the bytes before the fault
	text   string
}

func (e *Error) Error() string { return e.text }

// Parse reads a JSON document. It refuses a key that occurs twice in a section, which
// encoding/json accepts, with an [*Error]; other errors come from encoding/json. A whole
// number has all its digits: it is an int64, or a uint64 when it is larger. Other numbers
// are a float64. visit may be nil; Parse calls it for each key,
// with its path such as "upstreams[1].addr" and the offset of its last byte.
func Parse(text []byte, visit func(key string, end int64)) (any, error) {
	var whole json.RawMessage // its decoder refuses what is not JSON, and what is nested too deeply
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	if visit == nil {
		visit = func(string, int64) {}
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return parse(dec, "", visit)
}

// parse reads the next value, which is below path.
func parse(dec *json.Decoder, path string, visit func(key string, end int64)) (any, error) {
	next, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch next := next.(type) {
	case json.Number:
		return Number(next), nil
	case json.Delim:
		if next == '[' {
			list := []any{}
			for dec.More() {
				item, err := parse(dec, path+"["+strconv.Itoa(len(list))+"]", visit)
				if err != nil {
					return nil, err
				}
				list = append(list, item)
			}
			_, err := dec.Token()
			return list, err
		}
		section := map[string]any{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key, _ := name.(string)
			below := Join(path, key)
			if _, twice := section[key]; twice {
				return nil, &Error{dec.InputOffset() - 1, fmt.Sprintf("the key %q occurs twice", below)}
			}
			visit(below, dec.InputOffset()-1)
			if section[key], err = parse(dec, below, visit); err != nil {
				return nil, err
			}
		}
		_, err := dec.Token()
		return section, err
	}
	return next, nil
}

// Join returns the path of a key in a section, whose own path may be empty.
func Join(section, name string) string {
	if section == "" {
		return name
	}
	return section + "." + name
}

// Number returns a number as a whole one, with all its digits, or as a float. A text that
// is not a number stays one.
func Number(n json.Number) any {
	if i, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(string(n), 10, 64); err == nil {
		return u
	}
	if f, err := n.Float64(); err == nil {
		return f
	}
	return string(n)
}

// Duration reads a duration from a text with its unit, or from the number 0. It returns
// what it wants in place of anything else. With canBeOff the texts "off" and "0s", false
// and 0 are the duration off, and none is negative. YAML 1.1 reads off as false, and some
// tools still write it that way.
func Duration(raw any, canBeOff bool, off time.Duration) (d time.Duration, want string) {
	want = "a duration with its unit, such as 5s or 1m30s"
	if canBeOff {
		want += ", or off"
	}
	text, isText := raw.(string)
	switch {
	case isText && text == "off" && canBeOff, raw == false && canBeOff:
		return off, ""
	case !isText:
		text = fmt.Sprint(raw)
	}
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil && seconds != 0 {
		return 0, fmt.Sprintf("a duration with its unit: %ds is that many seconds, %dms milliseconds", seconds, seconds)
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil || !isText && d != 0:
		return 0, want
	case canBeOff && d < 0:
		return 0, "0s or more, or off"
	case canBeOff && d == 0:
		return off, ""
	}
	return d, ""
}

// Meant returns the name that a key was probably meant to be, "" for none. Other programs
// write drainInterval or drain-interval.
func Meant(key string, names []string) string {
	for _, spelling := range []string{key, SnakeCase(key), strings.ReplaceAll(strings.ToLower(key), "-", "_")} {
		if meant := suggest.Nearest(spelling, names); meant != "" {
			return meant
		}
	}
	return ""
}

// SnakeCase makes a key of a field's name: DrainInterval is drain_interval, and HTTPAddr is
// http_addr.
func SnakeCase(name string) string {
	var b strings.Builder
	letters := []rune(name)
	for i, r := range letters {
		if unicode.IsUpper(r) && i > 0 {
			before, after := letters[i-1], rune(0)
			if i+1 < len(letters) {
				after = letters[i+1]
			}
			beginsWord := !unicode.IsUpper(before) && before != '_'
			endsAbbreviation := unicode.IsUpper(before) && unicode.IsLower(after)
			if beginsWord || endsAbbreviation {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
