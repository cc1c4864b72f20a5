package splice_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/internal/splice"
)

// TestGenerationsKeepEachOthersFields stores random values of random structs, lets a
// program change them that knows only some of their fields, and checks that the
// program's change is stored and everything that it does not know is still there.
func TestGenerationsKeepEachOthersFields(t *testing.T) {
	seed := rand.Uint64()
	tried := 0
	for n := range 800 {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		g := generator{r}
		young, old := g.structs(3)
		was := reflect.New(old)
		stored := g.spaced(g.disguised(g.filled(young)))
		if json.Unmarshal(stored, was.Interface()) != nil {
			continue // the added member is an element of a map of another type
		}
		tried++
		before := encode(t, was.Interface())
		g.change(was.Elem())
		after := encode(t, was.Interface())
		shape := splice.Of(old)
		got := shape.Apply(stored, before, after)
		about := fmt.Sprintf("seed %d, %d, %v:\nstored %s\nbefore %s\nafter  %s\ngot    %s", seed, n, old, stored, before, after, got)
		back := reflect.New(old)
		if err := json.Unmarshal(got, back.Interface()); err != nil {
			t.Fatalf("%s\n%v", about, err)
		}
		if again := encode(t, back.Interface()); !bytes.Equal(again, after) {
			t.Fatalf("%s\nagain  %s", about, again)
		}
		if lost := missing(tree(t, stored), tree(t, got), tree(t, after), old); lost != "" {
			t.Fatalf("%s\nlost   %s", about, lost)
		}
	}
	if tried < 300 {
		t.Errorf("only %d of the records could be read", tried)
	}
}

type generator struct{ *rand.Rand }

// structs returns two generations of a struct: the older one has some of the fields of
// the younger.
func (g generator) structs(depth int) (young, old reflect.Type) {
	var all, some []reflect.StructField
	for i := range 1 + g.IntN(5) {
		name := "F" + strconv.Itoa(i)
		tag := name
		if g.IntN(2) == 0 {
			tag = strings.ToLower(name)
		}
		if g.IntN(2) == 0 {
			tag += ",omitempty"
		}
		a, b := g.types(depth)
		field := func(t reflect.Type) reflect.StructField {
			return reflect.StructField{Name: name, Type: t, Tag: reflect.StructTag(`json:"` + tag + `"`)}
		}
		all = append(all, field(a))
		if g.IntN(3) > 0 {
			some = append(some, field(b))
		}
	}
	return reflect.StructOf(all), reflect.StructOf(some)
}

func (g generator) types(depth int) (young, old reflect.Type) {
	if depth > 0 {
		switch g.IntN(5) {
		case 0:
			return g.structs(depth - 1)
		case 1:
			a, b := g.structs(depth - 1)
			return reflect.PointerTo(a), reflect.PointerTo(b)
		case 2:
			a, b := g.types(depth - 1)
			return reflect.SliceOf(a), reflect.SliceOf(b)
		case 3:
			a, b := g.types(depth - 1)
			return reflect.MapOf(reflect.TypeFor[string](), a), reflect.MapOf(reflect.TypeFor[string](), b)
		}
	}
	t := []reflect.Type{reflect.TypeFor[string](), reflect.TypeFor[uint64](), reflect.TypeFor[bool](), reflect.TypeFor[float64](), reflect.TypeFor[any]()}[g.IntN(5)]
	return t, t
}

func (g generator) filled(typ reflect.Type) []byte {
	v := reflect.New(typ)
	g.fill(v.Elem())
	data, err := json.Marshal(v.Interface())
	if err != nil {
		panic(err)
	}
	return data
}

func (g generator) fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			g.fill(v.Field(i))
		}
	case reflect.Pointer:
		if g.IntN(4) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			g.fill(v.Elem())
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), g.IntN(4), 4))
		for i := range v.Len() {
			g.fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range g.IntN(4) {
			e := reflect.New(v.Type().Elem()).Elem()
			g.fill(e)
			v.SetMapIndex(reflect.ValueOf([]string{"a", "A", "b", "<"}[g.IntN(4)]), e)
		}
	case reflect.String:
		v.SetString([]string{"", "x", `"{[`, "ü", `\`}[g.IntN(5)])
	case reflect.Uint64:
		v.SetUint([]uint64{0, 1, 1<<53 + 1, 1<<64 - 1}[g.IntN(4)])
	case reflect.Bool:
		v.SetBool(g.IntN(2) == 0)
	case reflect.Float64:
		v.SetFloat([]float64{0, 1.5, 1e300}[g.IntN(3)])
	case reflect.Interface:
		v.Set(reflect.ValueOf([]any{"text", 7.0, []any{1.0, "a"}, map[string]any{"a": 1.0, "b": nil}}[g.IntN(4)]))
	}
}

// change changes some parts of a value in place.
func (g generator) change(v reflect.Value) {
	if g.IntN(3) == 0 && v.Kind() != reflect.Struct {
		g.fill(v)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			g.change(v.Field(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			g.change(v.Elem())
		}
	case reflect.Slice:
		if n := v.Len(); n > 1 && g.IntN(2) == 0 {
			v.Set(reflect.AppendSlice(v.Slice(1, n), v.Slice(0, 1)))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if g.IntN(2) == 0 {
				e := reflect.New(v.Type().Elem()).Elem()
				e.Set(v.MapIndex(key))
				g.change(e)
				v.SetMapIndex(key, e)
			}
		}
	}
}

// disguised writes some names of fields in another case, and adds members that no
// generation knows.
func (g generator) disguised(data []byte) []byte {
	text := string(data)
	for i := range 5 {
		if g.IntN(4) == 0 {
			text = strings.ReplaceAll(text, fmt.Sprintf(`"f%d":`, i), fmt.Sprintf(`"F%d":`, i))
		}
	}
	for n := strings.Count(text, "{"); n > 0 && g.IntN(3) > 0; n-- {
		at := 0
		for range g.IntN(n + 1) {
			at += strings.IndexByte(text[at:], '{') + 1
		}
		if strings.Contains(text[at:], `"`) && at > 0 && text[at] == '"' && !strings.HasPrefix(text[at:], `"{[`) && !strings.HasPrefix(text[at:], `":`) && json.Valid([]byte(text[:at]+`"zz":9007199254740993,`+text[at:])) {
			text = text[:at] + `"zz":9007199254740993,` + text[at:]
		}
	}
	return []byte(text)
}

func (g generator) spaced(data []byte) []byte {
	if g.IntN(2) == 0 {
		return data
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, " ", "\t"); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func tree(t testing.TB, data []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	must(t, d.Decode(&v))
	return v
}

// missing returns a path to a value of stored that the type does not know and that got
// does not have unchanged. It looks into the objects that after still has, and not into
// arrays, whose elements may be others.
func missing(stored, got, after any, typ reflect.Type) string {
	for typ != nil && typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	was, ok := stored.(map[string]any)
	is, same := got.(map[string]any)
	now, object := after.(map[string]any)
	if !ok || !same || !object || typ == nil {
		return ""
	}
	for name, value := range was {
		known, inner := "", reflect.Type(nil)
		switch typ.Kind() {
		case reflect.Struct:
			for i := range typ.NumField() {
				tag, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
				if strings.EqualFold(tag, name) {
					known, inner = tag, typ.Field(i).Type
				}
			}
		case reflect.Map:
			known, inner = name, typ.Elem()
		default:
			return ""
		}
		if known == "" {
			if !reflect.DeepEqual(is[name], value) {
				return name
			}
			continue
		}
		if lost := missing(value, is[name], now[known], inner); lost != "" {
			return name + "." + lost
		}
	}
	return ""
}
