package config

import (
	"encoding"
	"fmt"
	"maps"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/configjson"
)

// untyped is a value from the environment or a flag, where every value is text. In a
// file, text and numbers are distinct.
type untyped string

// loose is a text from a store that does not say whether a file had it, where text and
// numbers are distinct, or the environment. It counts as either.
type loose string

const (
	spaceProblem = "white space before or after it: remove that, or give the value in the file"
	zeroProblem  = "a number with a leading zero is octal in some places and decimal in others: write it without the zero"
)

// decoder puts a tree of values into a struct and reports every value that does not
// fit. It goes on after a fault.
type decoder struct {
	schema *schema
	fault  func(key, value, problem string)
	set    func(n *node) // called for each value that is set
}

// section decodes a tree into v, a struct.
func (d *decoder) section(v reflect.Value, n *node, raw any, key string) {
	tree, ok := asTree(raw)
	if !ok {
		d.fault(key, shown(raw, n.hides()), "it is a section: want keys below it")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		i := slices.IndexFunc(n.children, func(c *node) bool { return c.name == name })
		if i < 0 && n.key == "" && strings.HasPrefix(name, "x-") {
			continue // for YAML anchors
		}
		if i < 0 {
			d.fault(join(key, name), "", d.unknown(n, name))
			continue
		}
		child := n.children[i]
		if tree[name] == nil {
			if child.isLeaf() {
				d.fault(join(key, name), "", "it has no value: give it one, or leave it out for its default")
			}
			continue // a section whose keys are all commented out
		}
		d.value(v.FieldByIndex(child.index), child, tree[name], join(key, name))
	}
}

func (d *decoder) value(v reflect.Value, n *node, raw any, key string) {
	if text, ok := raw.(string); ok && strings.HasPrefix(text, zeroMark) {
		d.fault(key, shown(raw, n.hides()), zeroProblem+", or as 0o… for octal")
		return
	}
	if text, ok := raw.(loose); ok {
		raw = untyped(text)
		if typeName(n) == textType {
			raw = string(text)
		}
	}
	if !n.isLeaf() {
		if v.Kind() == reflect.Pointer {
			inner := reflect.New(v.Type().Elem())
			if !v.IsNil() {
				inner.Elem().Set(v.Elem())
			}
			v.Set(inner)
			v = inner.Elem()
		}
		d.section(v, n, raw, key)
		return
	}
	if text, ok := raw.(untyped); ok && n.elem == nil {
		problem := ""
		switch {
		case strings.TrimSpace(string(text)) != string(text):
			problem = spaceProblem
		case typeName(n) == wholeType && leadingZero.MatchString(string(text)):
			problem = zeroProblem
		}
		if problem != "" {
			d.fault(key, shown(raw, n.secret), problem)
			return
		}
	}
	if n.elem != nil {
		d.collection(v, n, raw, key)
	} else if want := scalar(v, raw, n); want != "" {
		if text, ok := raw.(string); ok && scalar(reflect.New(v.Type()).Elem(), untyped(text), n) == "" {
			want += ", without quotes"
		}
		d.fault(key, shown(raw, n.secret), "want "+want)
		return
	}
	if key == n.key {
		d.set(n)
	}
}

// collection decodes a list or a map. It replaces the earlier value.
func (d *decoder) collection(v reflect.Value, n *node, raw any, key string) {
	given, isText := raw.(untyped)
	if v.Kind() == reflect.Slice {
		list, ok := raw.([]any)
		if isText {
			list, ok = splitList(string(given)), true
		}
		if !ok {
			d.fault(key, shown(raw, n.hides()), "want a list")
			return
		}
		out := reflect.MakeSlice(v.Type(), len(list), len(list))
		for i, item := range list {
			d.value(out.Index(i), n.elem, item, key+"["+strconv.Itoa(i)+"]")
		}
		v.Set(out)
		return
	}
	tree, ok := asTree(raw)
	if isText {
		var twice string
		tree, twice, ok = splitMap(string(given))
		if twice != "" {
			if n.hides() {
				twice = "of an item" // the key may be part of a secret
			}
			d.fault(key, shown(raw, n.hides()), "the key "+twice+" occurs twice")
			return
		}
	}
	if !ok {
		want := "want keys and values of your choice below it"
		if isText {
			want = "want key=value, several with commas between them"
		}
		d.fault(key, shown(raw, n.hides()), want)
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(tree))
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		item := tree[name]
		one := reflect.New(v.Type().Elem()).Elem()
		d.value(one, n.elem, item, join(key, name))
		out.SetMapIndex(reflect.ValueOf(name).Convert(v.Type().Key()), one)
	}
	v.Set(out)
}

// scalar decodes one text, number or truth value. It returns what the key wants, ""
// when the value fits.
func scalar(v reflect.Value, raw any, n *node) (want string) {
	if v.Kind() == reflect.Pointer {
		inner := reflect.New(v.Type().Elem())
		if want := scalar(inner.Elem(), raw, n); want != "" {
			return want
		}
		v.Set(inner)
		return ""
	}
	given, isText := raw.(untyped)
	s, isString := raw.(string)
	if isText {
		s, isString = string(given), true
	}
	switch {
	case v.Type() == typeDuration:
		return duration(v, raw, s, isString, n.off)
	case v.Type() == typeTime:
		if at, ok := raw.(time.Time); ok {
			v.Set(reflect.ValueOf(at))
			return ""
		}
	case v.Type() == typeURL:
		at, err := url.Parse(s)
		if err != nil || !isString { // the error quotes the value, which may be a secret
			return "a URL, such as https://example.com/path"
		}
		v.Set(reflect.ValueOf(*at))
		return ""
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		switch {
		case !isString && v.Type() == typeTime: // a date of TOML has no zone
			return "a time with its zone, such as 2006-01-02T15:04:05Z"
		case !isString:
			return "text, in quotes"
		}
		if err := u.UnmarshalText([]byte(s)); err != nil {
			if n.secret { // the type's error may quote the value
				return "a valid " + v.Type().String()
			}
			return "a valid " + v.Type().String() + " (" + err.Error() + ")"
		}
		return ""
	}
	switch v.Kind() {
	case reflect.String:
		if !isString {
			return "text: put it in quotes"
		}
		v.SetString(s)
		return ""
	case reflect.Bool:
		b, ok := raw.(bool)
		if isText {
			var err error
			b, err = strconv.ParseBool(s)
			ok = err == nil
		}
		if !ok {
			return "true or false"
		}
		v.SetBool(b)
		return ""
	case reflect.Float32, reflect.Float64:
		return float(v, raw, s, isText)
	default:
		return whole(v, raw, s, isText)
	}
}

// duration decodes a duration with its unit.
func duration(v reflect.Value, raw any, s string, isString, off bool) (want string) {
	d, ok := raw.(time.Duration)
	switch {
	case ok && off && d < 0 && d != lifecycle.Off:
		return "0s or more, or off"
	case ok: // of a program, so 0 is the default
	case isString:
		d, want = configjson.Duration(s, off, lifecycle.Off)
	default:
		d, want = configjson.Duration(raw, off, lifecycle.Off)
	}
	if want == "" {
		v.SetInt(int64(d))
	}
	return want
}

// number returns a number from a file as a float.
func number(raw any) (float64, bool) {
	switch n := reflect.ValueOf(raw); n.Kind() {
	case reflect.Int, reflect.Int64:
		return float64(n.Int()), true
	case reflect.Uint, reflect.Uint64:
		return float64(n.Uint()), true
	case reflect.Float64:
		return n.Float(), true
	}
	return 0, false
}

func float(v reflect.Value, raw any, s string, isText bool) (want string) {
	n, ok := number(raw)
	if isText {
		var err error
		n, err = strconv.ParseFloat(s, 64)
		ok = err == nil
	}
	if !ok || math.IsNaN(n) || math.IsInf(n, 0) || v.OverflowFloat(n) {
		return "a number, such as 0.9"
	}
	v.SetFloat(n)
	return ""
}

func whole(v reflect.Value, raw any, s string, isText bool) (want string) {
	n := reflect.ValueOf(raw)
	if isText {
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			n = reflect.ValueOf(i)
		} else if u, err := strconv.ParseUint(s, 10, 64); err == nil {
			n = reflect.ValueOf(u)
		}
	} else if f, ok := raw.(float64); ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		n = reflect.ValueOf(int64(f)) // such as 1e3; above that a float may have lost digits
	}
	signed := v.CanInt()
	switch {
	case n.IsValid() && n.CanInt() && signed && !v.OverflowInt(n.Int()):
		v.SetInt(n.Int())
	case n.IsValid() && n.CanInt() && !signed && n.Int() >= 0 && !v.OverflowUint(uint64(n.Int())):
		v.SetUint(uint64(n.Int()))
	case n.IsValid() && n.CanUint() && !signed && !v.OverflowUint(n.Uint()):
		v.SetUint(n.Uint())
	default:
		return bounds(v)
	}
	return ""
}

func bounds(v reflect.Value) string {
	bits := v.Type().Bits()
	if v.CanInt() {
		return fmt.Sprintf("a whole number from %d to %d", -1<<(bits-1), 1<<(bits-1)-1)
	}
	return fmt.Sprintf("a whole number from 0 to %d", ^uint64(0)>>(64-bits))
}

// unknown suggests a key for one that the section does not have.
func (d *decoder) unknown(n *node, name string) string {
	const unknown = "there is no such key"
	if _, ok := d.schema.keys[join(n.key, name)]; ok && strings.Contains(name, ".") {
		return unknown + ": the dots are levels, write each below the one before it"
	}
	names := make([]string, 0, len(n.children))
	for _, c := range n.children {
		names = append(names, c.name)
	}
	if meant := configjson.Meant(name, names); meant != "" {
		return unknown + ": did you mean " + meant + "?"
	}
	// It may be at the wrong level.
	for _, leaf := range d.schema.leaves {
		if leaf.name == name {
			return unknown + ": did you mean " + leaf.key + "?"
		}
	}
	if len(names) > 12 {
		return unknown + " here"
	}
	return unknown + ": want one of " + strings.Join(names, ", ")
}

// asTree returns a section in the form of any parser.
func asTree(raw any) (map[string]any, bool) {
	switch m := raw.(type) {
	case map[string]any:
		return m, true
	case map[any]any:
		out := make(map[string]any, len(m))
		for k, v := range m {
			out[fmt.Sprint(k)] = v
		}
		return out, true
	}
	return nil, false
}

func splitList(s string) []any {
	list := []any{}
	if strings.TrimSpace(s) == "" {
		return list
	}
	for item := range strings.SplitSeq(s, ",") {
		list = append(list, untyped(strings.TrimSpace(item)))
	}
	return list
}

func splitMap(s string) (tree map[string]any, twice string, ok bool) {
	tree = map[string]any{}
	if strings.TrimSpace(s) == "" {
		return tree, "", true
	}
	for item := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(item, "=")
		if !ok {
			return nil, "", false
		}
		name = strings.TrimSpace(name)
		if _, again := tree[name]; again {
			return nil, strconv.Quote(name), true
		}
		tree[name] = untyped(strings.TrimSpace(value))
	}
	return tree, "", true
}
