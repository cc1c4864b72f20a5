package workflow

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// field is one field of a participant's struct that JSON stores.
type field struct {
	name     string // in JSON
	index    []int
	typ      reflect.Type
	writable bool
	indexed  int // its place among the indexed fields, -1 for none
}

// fields are the fields of a struct, by its tags.
type fields struct {
	id, phase field
	byName    map[string]*field
	indexed   []*field
}

// readFields reads the tags of the struct that p points to.
func readFields(p Participant) (*fields, error) {
	v := reflect.ValueOf(p)
	if p == nil || v.Kind() != reflect.Pointer || v.Type().Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("%w: the factory returned %T, want a pointer to a struct", ErrInvalidParticipant, p)
	}
	if v.IsNil() {
		return nil, fmt.Errorf("%w: the factory returned a nil %T, want a new one", ErrInvalidParticipant, p)
	}
	typ := v.Type().Elem()
	fs := &fields{byName: make(map[string]*field)}
	for _, sf := range reflect.VisibleFields(typ) {
		tag, tagged := sf.Tag.Lookup("lifecycle")
		if !sf.IsExported() || throughPointer(typ, sf.Index) {
			if tagged {
				return nil, fmt.Errorf("%w: field %s of %v has the tag lifecycle:%q and JSON cannot store it: export it, and embed by value", ErrInvalidParticipant, sf.Name, typ, tag)
			}
			continue
		}
		name, ok := jsonName(sf)
		if !ok {
			if tagged {
				return nil, fmt.Errorf("%w: field %s of %v has the tag lifecycle:%q and is not stored: its JSON tag is %q", ErrInvalidParticipant, sf.Name, typ, tag, "-")
			}
			continue
		}
		f := &field{name: name, index: sf.Index, typ: sf.Type, indexed: -1}
		if err := fs.take(typ, sf, f, tag); err != nil {
			return nil, err
		}
		if other := fs.byName[name]; other != nil {
			// JSON stores the less nested of two fields, and neither when they are equal.
			before := typ.FieldByIndex(other.index)
			if tagged || before.Tag.Get("lifecycle") != "" || len(other.index) == len(f.index) {
				return nil, fmt.Errorf("%w: fields %s and %s of %v are both %q in JSON, want names of their own", ErrInvalidParticipant, before.Name, sf.Name, typ, name)
			}
			if len(other.index) < len(f.index) {
				continue
			}
		}
		fs.byName[name] = f
	}
	if fs.id.index == nil {
		return nil, fmt.Errorf("%w: %v", ErrMissingIDField, typ)
	}
	if fs.phase.index == nil {
		return nil, fmt.Errorf("%w: %v", ErrMissingPhaseField, typ)
	}
	return fs, nil
}

// take adds one field, with the words of its tag.
func (fs *fields) take(typ reflect.Type, sf reflect.StructField, f *field, tag string) error {
	readonly := false
	for word := range strings.SplitSeq(tag, ",") {
		switch strings.TrimSpace(word) {
		case "":
		case "id", "phase":
			readonly = true
			at := &fs.id
			if strings.TrimSpace(word) == "phase" {
				at = &fs.phase
			}
			if at.index != nil {
				return fmt.Errorf("%w: fields %s and %s of %v are both tagged %q, want one", ErrInvalidParticipant, typ.FieldByIndex(at.index).Name, sf.Name, typ, strings.TrimSpace(word))
			}
			if sf.Type.Kind() != reflect.String {
				return fmt.Errorf("%w: field %s of %v is tagged %q and is a %v, want a string", ErrInvalidParticipant, sf.Name, typ, strings.TrimSpace(word), sf.Type)
			}
			*at = *f
		case "readonly":
			readonly = true
		case "operator_writable":
			f.writable = true
		case "indexable":
			if !indexable(sf.Type) {
				return fmt.Errorf("%w: field %s of %v is tagged indexable and is a %v, want a value that can be compared, without interfaces and pointers inside (a time: its Unix time)", ErrInvalidParticipant, sf.Name, typ, sf.Type)
			}
			f.indexed = len(fs.indexed)
			fs.indexed = append(fs.indexed, f)
		default:
			return fmt.Errorf("%w: field %s of %v is tagged %q, want id, phase, readonly, operator_writable or indexable", ErrInvalidParticipant, sf.Name, typ, strings.TrimSpace(word))
		}
	}
	if readonly && f.writable {
		return fmt.Errorf("%w: field %s of %v is tagged operator_writable, and readonly, id or phase too: want one of them", ErrInvalidParticipant, sf.Name, typ)
	}
	return nil
}

// indexable reports whether equal values of a type are also equal in Go after they
// were stored and read. A value with an interface may even panic as the key of a map.
// A value with a pointer, such as a time, never equals one that was read.
func indexable(typ reflect.Type) bool {
	switch typ.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Chan, reflect.UnsafePointer:
		return false
	case reflect.Array:
		return indexable(typ.Elem())
	case reflect.Struct:
		for f := range typ.NumField() {
			if !indexable(typ.Field(f).Type) {
				return false
			}
		}
		return true
	}
	return typ.Comparable()
}

// throughPointer reports whether the way to a field leads through a pointer,
// which is nil in a new struct.
func throughPointer(typ reflect.Type, index []int) bool {
	for _, i := range index[:len(index)-1] {
		typ = typ.Field(i).Type
		if typ.Kind() == reflect.Pointer {
			return true
		}
	}
	return false
}

// jsonName returns the name under which encoding/json stores a field, and false for an
// embedded struct, whose fields are stored as the outer struct's own.
func jsonName(sf reflect.StructField) (string, bool) {
	tag := sf.Tag.Get("json")
	if tag == "-" {
		return "", false
	}
	name, _, _ := strings.Cut(tag, ",")
	if name == "" {
		if sf.Anonymous && sf.Type.Kind() == reflect.Struct {
			return "", false
		}
		name = sf.Name
	}
	return name, true
}

func (f *field) of(p Participant) reflect.Value {
	return reflect.ValueOf(p).Elem().FieldByIndex(f.index)
}

// names returns the JSON names of the fields for which is returns true, sorted.
func (fs *fields) names(is func(*field) bool) []string {
	names := []string{}
	for name, f := range fs.byName {
		if is(f) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
