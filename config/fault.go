package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Fault is one thing that is wrong with a configuration. The error of [Load]
// joins all of them; errors.As finds the first.
type Fault struct {
	// Source says where it stands: the name of the file, "environment NAME",
	// "flag -name", or "" when it is in what several of them add up to.
	Source string
	// Line in the file, from 1 on; 0 when it is not known.
	Line int
	// Key is the whole key, such as "lifecycle.drain_interval"; "" when the
	// source itself cannot be read.
	Key string
	// Value is what was given, as text; "[secret]" for one that is not to be
	// seen, and "" when there is none to show.
	Value string
	// Problem is what is wrong with it, and what would be right.
	Problem string
	// Err is what the problem was found by, if anything; [Fault.Unwrap] returns
	// it.
	Err error
}

// Error is "file:line: key is "value": problem", as far as there is each.
func (f *Fault) Error() string {
	var b strings.Builder
	b.WriteString("config: ")
	if f.Source != "" {
		b.WriteString(f.Source)
		if f.Line > 0 {
			b.WriteByte(':')
			b.WriteString(strconv.Itoa(f.Line))
		}
		b.WriteString(": ")
	}
	b.WriteString(f.Key)
	if f.Value != "" {
		b.WriteString(" is " + f.Value)
	}
	if f.Key != "" {
		b.WriteString(": ")
	}
	b.WriteString(f.Problem)
	return b.String()
}

// Unwrap returns Err.
func (f *Fault) Unwrap() error { return f.Err }

const hidden = "[secret]"

// maxShown bounds what a message shows of a value, in bytes.
const maxShown = 64

// shown is a value as a message shows it: text in quotes, numbers as they are,
// a list or a section by what it is.
func shown(raw any, secret bool) string {
	switch v := raw.(type) {
	case nil:
		return "empty"
	case map[string]any, map[any]any:
		return "a section with keys of its own"
	case []any:
		return "a list"
	case untyped:
		raw = string(v)
	}
	if secret {
		return hidden
	}
	s, isText := raw.(string)
	if !isText {
		s = fmt.Sprint(raw)
	}
	s = text.Clip(s, maxShown)
	if isText {
		return strconv.Quote(s)
	}
	return s
}
