package splice

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
)

// Shape is what Apply must know of a type: how stored names map to its fields, and
// which elements of its arrays continue which.
type Shape struct {
	order  []string          // the names of a struct's fields, in the order of the struct
	fields map[string]*Shape // by name; nil for a type that is not a struct
	elem   *Shape            // of an array, a slice or a map
	key    string            // the name of the field that tells elements apart
	coded  bool              // the type has an encoding of its own
}

// Of describes a type. A field tagged `lifecycle:"key"` tells the elements of an array
// apart: two encodings of an element with the same key are versions of one element.
func Of(typ reflect.Type) *Shape {
	if s := (builder{}).of(typ); s != nil {
		return s
	}
	return new(Shape)
}

// Plain reports whether the type is a struct with a field of this name, and neither has
// an encoding of its own: [Shape.Set] of that field changes nothing else.
func (s *Shape) Plain(name string) bool {
	field, has := s.fields[name]
	return has && (field == nil || !field.coded)
}

// builder has the shapes that were made, by type: a type may contain itself.
type builder map[reflect.Type]*Shape

var codecs = []reflect.Type{
	reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
	reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
}

func (b builder) of(typ reflect.Type) *Shape {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if s, ok := b[typ]; ok {
		return s
	}
	s := new(Shape)
	b[typ] = s
	switch kind := typ.Kind(); {
	case coded(typ):
		s.coded = true
	case kind == reflect.Struct:
		s.fields = make(map[string]*Shape)
		b.add(s, typ, make(map[reflect.Type]bool))
	case kind == reflect.Map, kind == reflect.Slice, kind == reflect.Array:
		s.elem = b.of(typ.Elem())
	default:
		b[typ] = nil
		return nil
	}
	return s
}

// coded reports whether a type has an encoding of its own.
func coded(typ reflect.Type) bool {
	for _, codec := range codecs {
		if typ.Implements(codec) || reflect.PointerTo(typ).Implements(codec) {
			return true
		}
	}
	return false
}

// add adds the fields of a struct, and then the fields of the structs embedded in it: its
// own take precedence.
func (b builder) add(s *Shape, typ reflect.Type, within map[reflect.Type]bool) {
	if within[typ] {
		return
	}
	within[typ] = true
	var embedded []reflect.Type
	for sf := range typ.Fields() {
		tag := sf.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		inner := sf.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case tag == "-":
			continue
		case sf.Anonymous && name == "" && inner.Kind() == reflect.Struct:
			embedded = append(embedded, inner)
			continue
		case !sf.IsExported():
			continue
		case name == "":
			name = sf.Name
		}
		if _, taken := s.fields[name]; taken {
			continue
		}
		s.order = append(s.order, name)
		s.fields[name] = b.of(sf.Type)
		for word := range strings.SplitSeq(sf.Tag.Get("lifecycle"), ",") {
			if strings.TrimSpace(word) == "key" {
				s.key = name
			}
		}
	}
	for _, inner := range embedded {
		b.add(s, inner, within)
	}
}

// resolve returns the name of the field that a stored name is decoded to. Package json
// ignores the case of a name that no field has exactly.
func (s *Shape) resolve(stored string) string {
	if s == nil || s.fields == nil {
		return stored
	}
	if _, exact := s.fields[stored]; exact {
		return stored
	}
	for _, name := range s.order {
		if strings.EqualFold(name, stored) {
			return name
		}
	}
	return stored
}

// member returns the shape of a member's value, nil when nothing is known of it.
func (s *Shape) member(name string) *Shape {
	switch {
	case s == nil:
		return nil
	case s.fields != nil:
		return s.fields[name]
	}
	return s.elem
}

// element returns the shape of an array's elements.
func (s *Shape) element() *Shape {
	if s == nil {
		return nil
	}
	return s.elem
}
