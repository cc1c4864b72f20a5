package vet

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The limits of one document. [MaxSize] bounds the text. maxRepeated bounds the
// values that aliases repeat, because a kilobyte of aliases can expand to a billion
// values.
const (
	maxRepeated = 100_000
	maxDepth    = 200
)

var (
	errBomb   = fmt.Errorf("its aliases repeat more than %d values", maxRepeated)
	errDeep   = fmt.Errorf("it is nested more than %d deep", maxDepth)
	errBraces = errors.New("a template's braces stand in the place of a value")
)

// converter makes values for encoding/json from YAML nodes.
type converter struct {
	aliases    int       // how many aliases it has followed to the present node
	repeated   int       // how many values it has read through an alias
	duplicates []*placed // keys that a mapping has twice; the last one counts
}

// value follows aliases and merge keys, and reads scalars as the YAML library of
// Kubernetes does.
func (c *converter) value(n *yaml.Node, depth int) (any, error) {
	if c.aliases > 0 {
		c.repeated++
	}
	if c.repeated > maxRepeated {
		return nil, errBomb
	}
	if depth > maxDepth {
		return nil, errDeep
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return c.value(n.Content[0], depth)
	case yaml.AliasNode:
		c.aliases++
		defer func() { c.aliases-- }()
		return c.value(n.Alias, depth+1) // an alias within its own anchor ends at maxDepth
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			v, err := c.value(item, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		return c.mapping(n, depth)
	case yaml.ScalarNode:
		return scalar(n)
	}
	return nil, nil
}

func (c *converter) mapping(n *yaml.Node, depth int) (any, error) {
	m := make(map[string]any, len(n.Content)/2)
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, child := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			if key.Kind == yaml.MappingNode {
				return nil, at(key, errBraces)
			}
			return nil, at(key, errors.New("a key is a list, want a word"))
		}
		if key.Tag == "!!merge" {
			if err := c.merge(m, seen, child, depth); err != nil {
				return nil, err
			}
			continue
		}
		if line := seen[key.Value]; line > 0 && c.aliases == 0 { // reported once, in the place of the text
			c.duplicates = append(c.duplicates, at(key, fmt.Errorf("%q stands in line %d already", key.Value, line)))
		}
		seen[key.Value] = key.Line
		v, err := c.value(child, depth+1)
		if err != nil {
			return nil, err
		}
		m[key.Value] = v
	}
	return m, nil
}

// merge adds the mappings to which "<<" refers; the mapping's own keys win.
func (c *converter) merge(m map[string]any, own map[string]int, n *yaml.Node, depth int) error {
	v, err := c.value(n, depth+1)
	if err != nil {
		return err
	}
	sources, isList := v.([]any)
	if !isList {
		sources = []any{v}
	}
	for _, s := range sources {
		source, ok := s.(map[string]any)
		if !ok {
			return at(n, errors.New("<< wants a mapping, or a list of mappings"))
		}
		for k, v := range source {
			if _, set := m[k]; !set && own[k] == 0 {
				m[k] = v
			}
		}
	}
	return nil
}

// scalar reads one value. kubectl reads YAML 1.1, where a bare yes is true.
func scalar(n *yaml.Node) (any, error) {
	if n.Style == 0 && n.Tag == "!!str" {
		switch strings.ToLower(n.Value) {
		case "yes", "on", "y":
			return true, nil
		case "no", "off", "n":
			return false, nil
		}
	}
	switch n.Tag {
	case "!!str", "!!timestamp", "!!binary":
		return n.Value, nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return nil, at(n, err)
	}
	if f, ok := v.(float64); ok && (f != f || f > 1e300 || f < -1e300) {
		return n.Value, nil // JSON cannot express it
	}
	return v, nil
}

// placed is an error with a place in the file.
type placed struct {
	line, column int
	err          error
}

func (p *placed) Error() string { return p.err.Error() }
func (p *placed) Unwrap() error { return p.err }

func at(n *yaml.Node, err error) *placed { return &placed{n.Line, n.Column, err} }

// fieldPath is the way from an object's root to a field: names and indices.
type fieldPath []any

func (p fieldPath) with(more ...any) fieldPath { return append(p[:len(p):len(p)], more...) }

// String returns the path in the form spec.containers[0].name.
func (p fieldPath) String() string {
	var b strings.Builder
	for _, step := range p {
		switch s := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", s)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s)
		}
	}
	return b.String()
}

// parsePath reads a path in the form of String, which the strict decoder of
// Kubernetes also writes.
func parsePath(s string) fieldPath {
	var p fieldPath
	for _, part := range strings.Split(s, ".") {
		name, rest, _ := strings.Cut(part, "[")
		if name != "" {
			p = append(p, name)
		}
		for rest != "" {
			index, more, ok := strings.Cut(rest, "]")
			i, err := strconv.Atoi(index)
			if !ok || err != nil {
				break
			}
			p = append(p, i)
			rest = strings.TrimPrefix(more, "[")
		}
	}
	return p
}

// find returns the place of the field, or of its deepest parent that exists.
func find(n *yaml.Node, p fieldPath) (line, column int) {
	line, column = n.Line, n.Column
	for _, step := range p {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		next := (*yaml.Node)(nil)
		switch s := step.(type) {
		case int:
			if n.Kind == yaml.SequenceNode && s < len(n.Content) {
				next = n.Content[s]
				line, column = next.Line, next.Column
			}
		case string:
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == s {
					next = n.Content[i+1]
					line, column = n.Content[i].Line, n.Content[i].Column
				}
			}
		}
		if next == nil {
			return line, column
		}
		n = next
	}
	return line, column
}
