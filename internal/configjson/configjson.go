// Package configjson is the JSON of lifecycle.Config: the form that a configuration
// file has. Its keys are those of the tags koanf:"…", a duration is a text with its
// unit, and a field with its zero value is left out.
package configjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

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
	dec := json.NewDecoder(bytes.NewReader(text))
	if begin, err := dec.Token(); err != nil {
		return err
	} else if begin == nil {
		return nil // null changes nothing, as encoding/json has it
	} else if begin != json.Delim('{') {
		return fmt.Errorf("config: want an object with keys")
	}
	names, fields := make([]string, 0, v.NumField()), map[string]reflect.Value{}
	for i := range v.NumField() {
		name := key(v.Type().Field(i))
		names, fields[name] = append(names, name), v.Field(i)
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		key := fmt.Sprint(name)
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		field, ok := fields[key]
		switch {
		case ok && !field.IsValid():
			return fmt.Errorf("config: the key %s occurs twice", key)
		case !ok:
			return unknown(key, names)
		case field.Type() == typeDuration:
			if want := duration(raw, field, off); want != "" {
				return fmt.Errorf("config: %s is %.64s: want %s", key, raw, want)
			}
		default:
			if err := json.Unmarshal(raw, field.Addr().Interface()); err != nil {
				return fmt.Errorf("config: %s: %w", key, err)
			}
		}
		fields[key] = reflect.Value{} // seen
	}
	return nil
}

func key(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("koanf"), ",")
	return name
}

func unknown(key string, names []string) error {
	bare := strings.NewReplacer("_", "", "-", "")
	for _, name := range names {
		if strings.EqualFold(bare.Replace(name), bare.Replace(key)) { // drainInterval
			return fmt.Errorf("config: there is no key %s: did you mean %s?", key, name)
		}
	}
	if meant := suggest.Nearest(key, names); meant != "" {
		return fmt.Errorf("config: there is no key %s: did you mean %s?", key, meant)
	}
	return fmt.Errorf("config: there is no key %s", key)
}

// duration decodes a duration. It returns what the key wants, "" when the value fits.
func duration(raw json.RawMessage, field reflect.Value, off time.Duration) (want string) {
	given := string(raw)
	if given == "0" || given == "false" {
		given = `"off"`
	}
	want = "a duration with its unit, such as 5s or 1m30s, or off"
	var s string
	if json.Unmarshal([]byte(given), &s) != nil {
		return want
	}
	d, err := time.ParseDuration(s)
	switch {
	case s == "off" || err == nil && d == 0:
		d = off
	case err != nil:
		return want
	case d < 0:
		return "0s or more, or off"
	}
	field.SetInt(int64(d))
	return ""
}
