package config

import (
	"encoding"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/configjson"
)

// node is one key of a configuration: a section with keys, or a value.
type node struct {
	name      string // the last part of key
	key       string // "lifecycle.drain_interval"; "" for the whole
	typ       reflect.Type
	fieldName string
	index     []int   // of the field, in the struct of the section above
	children  []*node // of a struct, in the order of its fields
	elem      *node   // of a list or a map
	secret    bool
	usage     string

	lifecycle bool // a field of lifecycle.Config, whose zero means its default
	off       bool // a duration for which a given 0 means [lifecycle.Off]
	live      bool // a running App takes over a change of the value
}

type schema struct {
	root   *node
	leaves []*node          // the values, in the order of the fields
	keys   map[string]*node // sections and values, by key

	lifecycles []*node // the sections that are a lifecycle.Config: one at most
}

// isLeaf reports whether n is a value and not a section.
func (n *node) isLeaf() bool { return n.children == nil }

// hides reports whether n is a secret or contains one. A value in place of such a
// section or list may be that secret.
func (n *node) hides() bool {
	return n.secret || n.elem != nil && n.elem.hides() || slices.ContainsFunc(n.children, (*node).hides)
}

// field returns the node of the named field of n's struct, or nil.
func (n *node) field(name string) *node {
	f, ok := structOf(n.typ).FieldByName(name)
	if !ok {
		return nil
	}
	for _, c := range n.children {
		if slices.Equal(c.index, f.Index) {
			return c
		}
	}
	return nil
}

// below returns the node of a field or key below n, given with dots between levels, or nil.
func (n *node) below(path string) *node {
	for name := range strings.SplitSeq(path, ".") {
		i := slices.IndexFunc(n.children, func(c *node) bool { return c.name == name || c.fieldName == name })
		if i < 0 {
			return nil
		}
		n = n.children[i]
	}
	return n
}

// lifecycle returns the section that is a lifecycle.Config, or nil.
func (s *schema) lifecycle() *node {
	if len(s.lifecycles) == 0 {
		return nil
	}
	return s.lifecycles[0]
}

var (
	typeDuration  = reflect.TypeFor[time.Duration]()
	typeTime      = reflect.TypeFor[time.Time]()
	typeURL       = reflect.TypeFor[url.URL]()
	typeSecret    = reflect.TypeFor[lifecycle.Secret]()
	typeLifecycle = reflect.TypeFor[lifecycle.Config]()
	typeText      = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// newSchema finds the keys of t, a struct. section is the key of t itself. An error is
// a mistake in the program.
func newSchema(t reflect.Type, section string) (*schema, error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("config: %v is not a struct, and only a struct has keys", t)
	}
	s := &schema{root: &node{key: section, typ: t}, keys: map[string]*node{}}
	if err := s.addStruct(s.root, map[reflect.Type]bool{}); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	s.collect(s.root)
	if n := s.lifecycles; len(n) > 1 {
		return nil, fmt.Errorf("config: %s and %s are both a lifecycle.Config, and a program has one App: want one", n[0].key, n[1].key)
	}
	if n := s.keys["config"]; n != nil && n.isLeaf() {
		return nil, errors.New("config: the key config has the flag that names the file: rename the key")
	}
	return s, nil
}

func (s *schema) collect(n *node) {
	if n.key != "" {
		s.keys[n.key] = n
	}
	if structOf(n.typ) == typeLifecycle {
		s.lifecycles = append(s.lifecycles, n)
	}
	if n.isLeaf() {
		s.leaves = append(s.leaves, n)
		return
	}
	for _, child := range n.children {
		s.collect(child)
	}
}

// addStruct adds the children of a section. above has the types of the sections around it: a
// type that contains itself would have endlessly many keys.
func (s *schema) addStruct(n *node, above map[reflect.Type]bool) error {
	t := structOf(n.typ)
	if above[t] {
		return fmt.Errorf("%v contains itself", t)
	}
	above[t] = true
	defer delete(above, t)
	n.children = []*node{}
	return s.addFields(n, t, nil, above)
}

func (s *schema) addFields(n *node, t reflect.Type, index []int, above map[reflect.Type]bool) error {
	var errs []error
	for i := range t.NumField() {
		f := t.Field(i)
		at := append(index[:len(index):len(index)], i)
		name, opts, _ := strings.Cut(f.Tag.Get("koanf"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct || opts == "squash":
			if f.Type.Kind() != reflect.Struct {
				errs = append(errs, fmt.Errorf("%v.%s: only a struct can be squashed", t, f.Name))
				continue
			}
			errs = append(errs, s.addFields(n, f.Type, at, above))
			continue
		case !f.IsExported():
			continue
		case name == "":
			name = configjson.SnakeCase(f.Name)
		}
		if strings.ContainsAny(name, ". \t\n=") || strings.HasPrefix(name, "-") {
			const problem = "has a dot, a space or = in it or begins with a dash"
			errs = append(errs, fmt.Errorf("%v.%s: the key %q %s", t, f.Name, name, problem))
			continue
		}
		child := &node{
			name: name, key: join(n.key, name), typ: f.Type, fieldName: f.Name, index: at,
			secret: n.secret || structOf(f.Type) == typeSecret || f.Tag.Get("secret") == "true",
			usage:  f.Tag.Get("usage"),

			lifecycle: t == typeLifecycle,
			off:       f.Type == typeDuration && (t == typeLifecycle || f.Tag.Get("off") == "true"),
			live:      t == typeLifecycle && f.Tag.Get("reload") == "live",
		}
		for _, other := range n.children {
			if other.name == name {
				errs = append(errs, fmt.Errorf("%v.%s: the key %q is taken by another field", t, f.Name, child.key))
			}
		}
		if child.lifecycle {
			child.usage = keyText(f.Name)
		}
		n.children = append(n.children, child)
		if err := s.addType(child, above); err != nil {
			errs = append(errs, fmt.Errorf("%v.%s: %w", t, f.Name, err))
		}
	}
	return errors.Join(errs...)
}

// addType adds the keys below a value.
func (s *schema) addType(n *node, above map[reflect.Type]bool) error {
	t := n.typ
	if isScalar(t) {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		if inner := t.Elem(); isScalar(inner) {
			return nil
		} else if inner.Kind() == reflect.Struct {
			return s.addStruct(n, above)
		}
	case reflect.Struct:
		return s.addStruct(n, above)
	case reflect.Slice:
		return s.addElem(n, above)
	case reflect.Map:
		if t.Key().Kind() == reflect.String {
			return s.addElem(n, above)
		}
	}
	return fmt.Errorf("a %v cannot be configured; tag the field koanf:\"-\" to exclude it", t)
}

func (s *schema) addElem(n *node, above map[reflect.Type]bool) error {
	n.elem = &node{key: n.key + "[]", typ: n.typ.Elem(), secret: n.secret || structOf(n.typ.Elem()) == typeSecret}
	err := s.addType(n.elem, above)
	n.secret = n.elem.secret // a list of secrets is a secret
	return err
}

// isScalar reports whether a value of t is written as one text or number.
func isScalar(t reflect.Type) bool {
	if t == typeDuration || t == typeTime || t == typeURL || reflect.PointerTo(t).Implements(typeText) {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	}
	return false
}

func structOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

func join(section, name string) string { return configjson.Join(section, name) }
