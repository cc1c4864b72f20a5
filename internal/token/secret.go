package token

import (
	"fmt"
	"io"
	"log/slog"
)

// Secret is a text that no log, dump or document shows. fmt (with any verb), slog
// and encoding/json write "[secret]" instead, or nothing when it is empty. There
// is one exception: fmt calls no methods of a value in an unexported field.
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

// Format writes the result of String for every verb, and quotes it for %q and
// %#v. A verb that does not fit a string must not show the text either.
func (s Secret) Format(f fmt.State, verb rune) {
	text := s.String()
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		text = s.GoString()
	}
	_, _ = io.WriteString(f, text)
}

// MarshalText returns the result of String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns the result of String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
