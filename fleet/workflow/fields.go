package workflow

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

type field struct {
	name     string // in JSON
	index    []int
	typ      reflect.Type
	writable bool
	indexed  int // its place among the indexed fields, -1 for none
}

type fields struct {
	id, phase field
	byName    map[string]*field
	indexed   []*field
}

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
		if err := fs.read(typ, sf); err != nil {
			return nil, fmt.Errorf("%w: field %s of %v: %w", ErrInvalidParticipant, sf.Name, typ, err)
		}
	}
	if fs.id.index == nil {
		return nil, fmt.Errorf("%w: %v", ErrMissingIDField, typ)
	}
	if fs.phase.index == nil {
		return nil, fmt.Errorf("%w: %v", ErrMissingPhaseField, typ)
	}
	return fs, nil
}

// read adds a field of a struct, if JSON stores it.
func (fs *fields) read(typ reflect.Type, sf reflect.StructField) error {
	tag, tagged := sf.Tag.Lookup("lifecycle")
	if !sf.IsExported() || throughPointer(typ, sf.Index) {
		if tagged {
			return fmt.Errorf("it has the tag lifecycle:%q and JSON cannot store it: export it, and embed by value", tag)
		}
		return nil
	}
	name, stored := jsonName(sf)
	if !stored {
		if tagged {
			return fmt.Errorf("it has the tag lifecycle:%q and is not stored: its JSON tag is %q", tag, "-")
		}
		return nil
	}
	f := &field{name: name, index: sf.Index, typ: sf.Type, indexed: -1}
	if err := fs.readTag(typ, sf, f, tag); err != nil {
		return err
	}
	if other := fs.byName[name]; other != nil {
		// JSON stores the less nested of two fields, and neither when they are equal.
		before := typ.FieldByIndex(other.index)
		if tagged || before.Tag.Get("lifecycle") != "" || len(other.index) == len(f.index) {
			return fmt.Errorf("%s and %s are both %q in JSON, want names of their own", before.Name, sf.Name, name)
		}
		if len(other.index) < len(f.index) {
			return nil
		}
	}
	fs.byName[name] = f
	return nil
}

func (fs *fields) readTag(typ reflect.Type, sf reflect.StructField, f *field, tag string) error {
	readonly := false
	for word := range strings.SplitSeq(tag, ",") {
		word = strings.TrimSpace(word)
		switch word {
		case "":
		case "id", "phase":
			readonly = true
			at := &fs.id
			if word == "phase" {
				at = &fs.phase
			}
			if at.index != nil {
				return fmt.Errorf("%s and %s are both tagged %q, want one", typ.FieldByIndex(at.index).Name, sf.Name, word)
			}
			if f.typ.Kind() != reflect.String {
				return fmt.Errorf("it is tagged %q and is a %v, want a string", word, f.typ)
			}
			*at = *f
		case "readonly":
			readonly = true
		case "operator_writable":
			f.writable = true
		case "indexable":
			if !indexable(f.typ) {
				const want = "a value that can be compared, without interfaces and pointers inside (a time: its Unix time)"
				return fmt.Errorf("it is tagged indexable and is a %v, want %s", f.typ, want)
			}
			f.indexed = len(fs.indexed)
			fs.indexed = append(fs.indexed, f)
		default:
			return fmt.Errorf("it is tagged %q, want id, phase, readonly, operator_writable or indexable", word)
		}
	}
	if readonly && f.writable {
		return errors.New("it is tagged operator_writable, and readonly, id or phase too: want one of them")
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
