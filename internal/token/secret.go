package token

import (
	"fmt"
	"io"
	"log/slog"
)

// Secret is a text that no log, dump or document shows: fmt with any verb, slog
// and encoding/json write "[secret]" for it, or nothing when it is empty. One
// exception: fmt asks no method of a value in an unexported field.
type Secret string

// String returns "[secret]", and "" for an empty one.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "[secret]"
}

// GoString is String quoted, for %#v.
func (s Secret) GoString() string { return fmt.Sprintf("%q", s.String()) }

// Format writes what String does for every verb, and quoted for %q and %#v: a
// verb that does not fit a text must not show it either.
func (s Secret) Format(f fmt.State, verb rune) {
	text := s.String()
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		text = s.GoString()
	}
	_, _ = io.WriteString(f, text)
}

// MarshalText returns what String does.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns what String does.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
