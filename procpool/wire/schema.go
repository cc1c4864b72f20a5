package wire

import (
	"embed"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

//go:embed schema/*.schema.json
var schemas embed.FS

// Schema returns the JSON Schema (draft 2020-12) of a type, and false for an unknown
// type.
func Schema(t Type) (text []byte, ok bool) {
	text, err := schemas.ReadFile("schema/" + string(t) + ".schema.json")
	return text, err == nil
}

// Types returns all types, the pool's first.
func Types() []Type {
	return []Type{
		Query, Cancel, Shutdown, HealthCheck, Dump, Reply,
		Ready, Session, Message, Complete, Error, ShutdownAck, HealthOK, Stacks, Call,
	}
}

// Validate checks a line against the schema of its type. It is slower and stricter
// than [Decode], which accepts harmless deviations. The error says which field is
// wrong and what would be right.
func Validate(line []byte) error {
	var message map[string]any
	if err := json.Unmarshal(line, &message); err != nil {
		return fmt.Errorf("%w: %w: %s", ErrNotJSON, err, Excerpt(line))
	}
	if !utf8.Valid(line) {
		return fmt.Errorf("%w: it is not UTF-8: %s", ErrNotJSON, Excerpt(line))
	}
	name, ok := message["type"].(string)
	if !ok {
		return fmt.Errorf("%w: type is missing or not a string: %s", ErrField, Excerpt(line))
	}
	text, ok := Schema(Type(name))
	if !ok {
		return fmt.Errorf("%w: type is %q, want one of %q", ErrField, name, Types())
	}
	var s schema
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("the schema of %q: %w", name, err)
	}
	for _, field := range s.Required {
		if _, ok := message[field]; !ok {
			return fmt.Errorf("%w: a %s without %s: %s", ErrField, name, field, Excerpt(line))
		}
	}
	for field, value := range message {
		if fault := s.Properties[field].check(value); fault != "" {
			return fmt.Errorf("%w: %s of a %s %s: %s", ErrField, field, name, fault, Excerpt(line))
		}
	}
	return nil
}

// schema is the part of JSON Schema that the messages use.
type schema struct {
	Required   []string            `json:"required"`
	Properties map[string]property `json:"properties"`
}

type property struct {
	Type      string    `json:"type"`
	Const     any       `json:"const"`
	MinLength int       `json:"minLength"`
	Minimum   *float64  `json:"minimum"`
	Maximum   *float64  `json:"maximum"`
	Enum      []string  `json:"enum"`
	Items     *property `json:"items"`
	Values    *property `json:"additionalProperties"`
}

// check returns what is wrong with a value, "" when nothing is.
func (p property) check(value any) string {
	got := "null"
	switch v := value.(type) {
	case string:
		got = "string"
		if utf8.RuneCountInString(v) < p.MinLength && p.Type == got {
			return "is empty"
		}
		if p.Enum != nil && !slices.Contains(p.Enum, v) {
			return fmt.Sprintf("is %.80q, want one of %q", v, p.Enum)
		}
	case bool:
		got = "boolean"
	case float64:
		got = "number"
		if p.Type == "integer" && v == math.Trunc(v) {
			got = "integer"
		}
		if p.Minimum != nil && v < *p.Minimum {
			return fmt.Sprintf("is %v, want %v or more", v, *p.Minimum)
		}
		if p.Maximum != nil && v > *p.Maximum {
			return fmt.Sprintf("is %v, want %v or less", v, *p.Maximum)
		}
	case []any:
		got = "array"
		for i, item := range v {
			if p.Items == nil {
				break
			}
			if fault := p.Items.check(item); fault != "" {
				return fmt.Sprintf("[%d] %s", i, fault)
			}
		}
	case map[string]any:
		got = "object"
		for name, item := range v {
			if p.Values == nil {
				break
			}
			if fault := p.Values.check(item); fault != "" {
				return fmt.Sprintf("[%.80q] %s", name, fault)
			}
		}
	}
	switch {
	case p.Const != nil && p.Const != value:
		return fmt.Sprintf("is %v, want %v", value, p.Const)
	case p.Type != "" && p.Type != got:
		return fmt.Sprintf("is of type %s, want %s", got, p.Type)
	}
	return ""
}
