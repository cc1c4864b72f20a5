package config

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// validate calls the Validate methods of the sections and then of the whole, and turns
// their errors into faults.
func validate(v reflect.Value, n *node, settings []Setting) (faults []error) {
	for _, child := range n.children {
		if child.isLeaf() {
			continue
		}
		below := v.FieldByIndex(child.index)
		if below.Kind() == reflect.Pointer {
			if below.IsNil() {
				continue
			}
			below = below.Elem()
		}
		faults = append(faults, validate(withDefaults(below), child, settings)...)
	}
	checked, ok := v.Addr().Interface().(interface{ Validate() error })
	if !ok {
		return faults
	}
	for _, err := range parts(checked.Validate()) {
		fault := explain(err, n, settings)
		isReported := func(other error) bool { // a section's Validate may call Validate of the sections in it
			reported := errors.Unwrap(other)
			return other.Error() == fault.Error() || reported != nil && reported.Error() == err.Error()
		}
		if !slices.ContainsFunc(faults, isReported) {
			faults = append(faults, fault)
		}
	}
	return faults
}

// withDefaults returns a copy of a section with its defaults, when its type has a method
// WithDefaults: keys may be missing, because the part of the program that gets the section fills
// them in. The whole configuration got its defaults before the first source was read, and
// lifecycle.Config fills in its own when it is checked.
func withDefaults(v reflect.Value) reflect.Value {
	fill := v.MethodByName("WithDefaults")
	if v.Type() == typeLifecycle || !fill.IsValid() {
		return v
	}
	if t := fill.Type(); t.NumIn() != 0 || t.NumOut() != 1 || t.Out(0) != v.Type() {
		return v
	}
	filled := reflect.New(v.Type()).Elem()
	filled.Set(fill.Call(nil)[0])
	return filled
}

// parts splits joined errors.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, parts(e)...)
		}
		return all
	}
	return []error{err}
}

// explain turns an error of a Validate method into a fault. lifecycle.Config and other
// configurations name their fields, but the reader has written keys: explain names the keys,
// and the source of each.
func explain(err error, n *node, settings []Setting) *Fault {
	fault := &Fault{Key: n.key, Problem: err.Error(), Err: err}
	var fields *lifecycle.ConfigError
	if !errors.As(err, &fields) || structOf(n.typ) != typeLifecycle {
		fault.Problem = withoutOwnName(fault.Problem, structOf(n.typ).Name())
		name := subject.FindString(fault.Problem)
		if about := n.below(name); n.key != "" && about != nil && about.isLeaf() {
			fault.Key, fault.Problem = "", about.key+strings.TrimPrefix(fault.Problem, name)+sourcesOf(settings, about.key)
		}
		return fault
	}
	problem := strings.Replace(err.Error(), fields.Error(), fields.Problem, 1) // the text around it says why
	var keys []string
	for _, name := range fields.Fields {
		field := n.field(name)
		if field == nil {
			continue
		}
		problem = regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(problem, field.key)
		keys = append(keys, field.key)
	}
	fault.Key, fault.Problem = "", problem+sourcesOf(settings, keys...)
	return fault
}

// withoutOwnName returns the error of a type without the name of the type in front. A type that
// is also used alone may say which it is: "backoff Min is -1s", "limits.time is negative".
func withoutOwnName(problem, name string) string {
	at := len(name)
	if at == 0 || len(problem) <= at || !strings.EqualFold(problem[:at], name) || !strings.ContainsRune(" .", rune(problem[at])) {
		return problem
	}
	return problem[at+1:]
}

// subject matches the field or the key that begins an error, with dots between levels.
var subject = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)*`)

// sourcesOf says from which source each key has its value.
func sourcesOf(settings []Setting, keys ...string) string {
	var from []string
	for _, key := range keys {
		at := slices.IndexFunc(settings, func(s Setting) bool { return s.Key == key })
		if at < 0 {
			from = append(from, key+" has its default")
		} else {
			from = append(from, key+" is from "+settings[at].Source)
		}
	}
	if len(from) == 0 {
		return ""
	}
	return " (" + strings.Join(from, ", ") + ")"
}

// lookup finds the value of a key.
func lookup(v reflect.Value, root, n *node) (reflect.Value, bool) {
	for at := root; at != n; {
		i := slices.IndexFunc(at.children, func(c *node) bool {
			return c == n || strings.HasPrefix(n.key, c.key+".")
		})
		if i < 0 {
			return reflect.Value{}, false
		}
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}, false
			}
			v = v.Elem()
		}
		at = at.children[i]
		v = v.FieldByIndex(at.index)
	}
	return v, true
}

// render returns a value as a file would have it, and [secret] for a secret.
func render(v reflect.Value, n *node) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return "none"
		}
		return render(v.Elem(), n)
	}
	if n.secret {
		if v.IsZero() {
			return "none"
		}
		return hidden
	}
	if d, ok := v.Interface().(time.Duration); ok {
		if n.off && d == lifecycle.Off {
			return "off"
		}
		return d.String()
	}
	if at, ok := v.Interface().(url.URL); ok {
		return at.Redacted()
	}
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return textOf(s)
	}
	switch v.Kind() {
	case reflect.String:
		return strconv.Quote(withoutUser(v.String()))
	case reflect.Slice:
		items := make([]string, v.Len())
		for i := range items {
			items[i] = render(v.Index(i), n.elem)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case reflect.Map:
		var items []string
		for _, key := range v.MapKeys() {
			items = append(items, key.String()+": "+render(v.MapIndex(key), n.elem))
		}
		slices.Sort(items)
		return "{" + strings.Join(items, ", ") + "}"
	case reflect.Struct:
		if n.children == nil {
			break
		}
		var items []string
		for _, c := range n.children {
			items = append(items, c.name+": "+render(v.FieldByIndex(c.index), c))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	return fmt.Sprint(v.Interface())
}

// textOf returns the String of a value, or "none" when String panics, as it may for the zero value
// of a type.
func textOf(s fmt.Stringer) (text string) {
	defer func() {
		if recover() != nil {
			text = "none"
		}
	}()
	return s.String()
}
