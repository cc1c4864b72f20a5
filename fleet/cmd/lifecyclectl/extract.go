package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// value returns a message as -o json shows it.
func value(m proto.Message) (v any, err error) {
	text, err := asJSON(m, "")
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return v, dec.Decode(&v)
}

// extract writes the parts of a message that a path or a template selects.
func (o *output) extract(m proto.Message) ([]byte, error) {
	v, err := value(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if o.path != nil {
		o.path.write(&b, v)
	} else if err := o.text.Execute(&b, v); err != nil {
		return nil, err
	}
	text := printableLines(b.String())
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return []byte(text), nil
}

// names writes the names of what a message has, one a line: the elements of its list, or
// its own.
func names(m proto.Message) []byte {
	var b bytes.Buffer
	r := m.ProtoReflect()
	add := func(one protoreflect.Message) {
		for _, name := range []string{"id", "type", "name", "rule", "seq", "digest", "key"} {
			if f := one.Descriptor().Fields().ByName(protoreflect.Name(name)); f != nil && one.Has(f) {
				b.WriteString(printable(fmt.Sprint(one.Get(f).Interface())) + "\n")
				return
			}
		}
	}
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if i == 0 && f.IsList() && f.Message() != nil { // the list of an answer is its first field
			for j := range r.Get(f).List().Len() {
				add(r.Get(f).List().Get(j).Message())
			}
			return b.Bytes()
		}
		if f.Message() != nil && !f.IsList() && !f.IsMap() && (f.Name() == "entity" || f.Name() == "worker" || f.Name() == "process") {
			add(r.Get(f).Message()) // of an answer to a transition, and of a watch
			return b.Bytes()
		}
	}
	add(r)
	return b.Bytes()
}

// jsonPath is the value of -o jsonpath=…: texts, and paths in braces, as kubectl has
// them, without filters: {.processes[*].id}{"\n"}, {.units[0]}, {.fields['a.b']}.
type jsonPath []part

// part is a text, or a path when steps is not nil.
type part struct {
	text  string
	steps []step
}

// step goes into an object by a name, or into a list by an index; all is [*].
type step struct {
	name  string
	index int
	all   bool
	list  bool
}

func parsePath(text string) (path jsonPath, err error) {
	if !strings.Contains(text, "{") {
		text = "{" + text + "}"
	}
	for text != "" {
		before, rest, found := strings.Cut(text, "{")
		if before != "" {
			path = append(path, part{text: before})
		}
		if !found {
			break
		}
		if rest != "" && (rest[0] == '"' || rest[0] == '\'') { // {"\n"}
			end := strings.Index(rest[1:], rest[:1]+"}")
			if end < 0 {
				return nil, fmt.Errorf("-o jsonpath: %q has no end", clipped(rest))
			}
			quoted, err := strconv.Unquote(`"` + rest[1:1+end] + `"`)
			if err != nil {
				return nil, fmt.Errorf("-o jsonpath: %q is not a text", clipped(rest))
			}
			path, text = append(path, part{text: quoted}), rest[end+3:]
			continue
		}
		inside, after, closed := strings.Cut(rest, "}")
		if !closed {
			return nil, fmt.Errorf("-o jsonpath: %q has no closing brace", clipped(rest))
		}
		steps, err := parseSteps(inside)
		if err != nil {
			return nil, err
		}
		path, text = append(path, part{steps: steps}), after
	}
	if len(path) == 0 {
		return nil, fmt.Errorf("-o jsonpath is empty: want a path such as {.id}")
	}
	return path, nil
}

func clipped(text string) string { return text[:min(len(text), 64)] }

// parseSteps reads .a.b[0]['c'].
func parseSteps(text string) ([]step, error) {
	wrong := func(why string) ([]step, error) {
		return nil, fmt.Errorf("-o jsonpath: %q: %s; want a path such as {.processes[*].id}", clipped(text), why)
	}
	rest := strings.TrimPrefix(strings.TrimSpace(text), "$")
	steps := []step{}
	for rest != "" {
		switch rest[0] {
		case '.':
			n := strings.IndexAny(rest[1:], ".[")
			if n < 0 {
				n = len(rest) - 1
			}
			name := rest[1 : 1+n]
			rest = rest[1+n:]
			if name == "" {
				if len(steps) == 0 && rest == "" {
					return steps, nil // {.} is all of it
				}
				return wrong("a name is missing")
			}
			steps = append(steps, step{name: name, all: name == "*"})
		case '[':
			inside, after, closed := strings.Cut(rest[1:], "]")
			if !closed {
				return wrong("a bracket is not closed")
			}
			rest = after
			if n := len(inside); n >= 2 && (inside[0] == '\'' || inside[0] == '"') && inside[n-1] == inside[0] {
				steps = append(steps, step{name: inside[1 : n-1]})
				continue
			}
			index, err := strconv.Atoi(inside)
			if err != nil && inside != "*" {
				return wrong("[" + inside + "] is neither an index nor *")
			}
			steps = append(steps, step{index: index, all: inside == "*", list: true})
		default:
			return wrong("a path begins with a dot")
		}
	}
	return steps, nil
}

// write writes the texts, and what the paths select, with a space between the values of
// one path. What does not exist is empty.
func (p jsonPath) write(b *bytes.Buffer, v any) {
	for _, one := range p {
		b.WriteString(one.text)
		if one.steps == nil {
			continue
		}
		for i, found := range selected(v, one.steps) {
			if i > 0 {
				b.WriteByte(' ')
			}
			switch found := found.(type) {
			case string:
				b.WriteString(found)
			default:
				text, err := json.Marshal(found)
				if err == nil { // it was JSON
					b.Write(text)
				}
			}
		}
	}
}

// selected returns what the steps lead to.
func selected(v any, steps []step) (found []any) {
	if len(steps) == 0 {
		return []any{v}
	}
	s, rest := steps[0], steps[1:]
	switch v := v.(type) {
	case map[string]any:
		if child, ok := v[s.name]; ok && !s.list {
			return selected(child, rest)
		}
	case []any:
		for i, child := range v {
			if s.all || s.list && (i == s.index || i-len(v) == s.index) {
				found = append(found, selected(child, rest)...)
			}
		}
	}
	return found
}
