package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Fault is one fault of a configuration. The error of [Load] joins all of them;
// errors.As finds the first.
type Fault struct {
	// Source is where the fault is: the name of the file, "environment NAME", "flag
	// -name", or "" when several sources together cause it.
	Source string
	// Line is the line in the file, from 1; 0 when it is not known.
	Line int
	// Key is the whole key, such as "lifecycle.drain_interval"; "" when the source
	// itself cannot be read.
	Key string
	// Value is the given value, as text; "[secret]" for a secret, and "" when there
	// is none to show.
	Value string
	// Problem is what is wrong, and what would be right.
	Problem string
	// Err is the underlying error, nil for none; [Fault.Unwrap] returns it.
	Err error
}

// Error is `file:line: key is "value": problem`, without the parts that are empty and
// without credentials in URLs.
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
	return withoutUser(b.String())
}

// Unwrap returns Err.
func (f *Fault) Unwrap() error { return f.Err }

// ExitCode returns [lifecycle.ExitConfig].
func (f *Fault) ExitCode() int { return lifecycle.ExitConfig }

const hidden = "[secret]"

// userInfo matches the user and the password of a URL, or the token in their place.
var userInfo = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/"'\x60]*@`)

// withoutUser returns a text without the credentials of the URLs in it.
func withoutUser(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return userInfo.ReplaceAllString(text, "${1}"+hidden+"@")
}

// maxShown is the maximum length of a value in a message, in bytes.
const maxShown = 64

// shown returns a value for a message: text in quotes, numbers as they are, the kind
// of a list or a section.
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
	if number, ok := strings.CutPrefix(s, zeroMark); ok {
		return number
	}
	if !isText {
		s = fmt.Sprint(raw)
	}
	s = text.Clip(withoutUser(s), maxShown)
	if isText {
		return strconv.Quote(s)
	}
	return s
}
