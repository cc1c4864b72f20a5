package wire

import (
	"errors"
	"fmt"
	"io"
)

var (
	// ErrNotJSON is wrapped by the error for a line that is not one JSON object
	// and for a payload that is not one JSON value.
	ErrNotJSON = errors.New("not JSON")

	// ErrField is wrapped by the error for a message with a missing field or one of
	// the wrong type. The message's type is known then.
	ErrField = errors.New("bad field")

	// ErrPoisoned is wrapped by the error of every write after a failed one. A part of
	// that line may have arrived, so the other side could not read the lines after it.
	ErrPoisoned = errors.New("an earlier write has failed")
)

// TooLongError says that a line, or a line with the bytes that follow it, is longer than
// the limit. After a line that is too long the next call of Next returns the line after
// it.
type TooLongError struct {
	Limit int
	// Length is how many bytes were to follow the line, 0 when the line itself is too
	// long.
	Length int
	// Head is the beginning of the line, as much as the reader kept.
	Head []byte
}

// Error says what the limit is and which setting changes it.
func (e *TooLongError) Error() string {
	if e.Length > 0 {
		return fmt.Sprintf("a line with %d bytes after it is longer than %d bytes, the limit (MaxFrame)", e.Length, e.Limit)
	}
	return fmt.Sprintf("a line is longer than %d bytes, the limit (MaxFrame)", e.Limit)
}

// PartialError says that the stream ended in the middle of a line, or of the bytes that
// follow one.
type PartialError struct {
	Line    []byte // its beginning; nil when bytes are missing
	Length  int    // how many bytes were to follow the line
	Missing int    // of them and the newline after them
}

// Error shows the beginning of the line, or how much is missing.
func (e *PartialError) Error() string {
	if e.Length > 0 {
		return fmt.Sprintf("the connection ended in the middle of the %d bytes after a line: %d are missing, with the newline",
			e.Length, e.Missing)
	}
	return "the connection ended in the middle of a line: " + Excerpt(e.Line)
}

// Unwrap returns [io.ErrUnexpectedEOF].
func (e *PartialError) Unwrap() error { return io.ErrUnexpectedEOF }

// LengthError says that the bytes after a line are not as many as the line says. What
// comes next on the connection cannot be read.
type LengthError struct {
	Length int  // as the line says
	Next   byte // what came after them in place of the newline
}

// Error shows the length and what came after it.
func (e *LengthError) Error() string {
	return fmt.Sprintf("after the %d bytes that its line announced came %q, want a newline", e.Length, string(rune(e.Next)))
}

// Excerpt quotes the beginning of received bytes, at most 128, for an error or a
// log.
func Excerpt(b []byte) string {
	if len(b) > 128 {
		return fmt.Sprintf("%q… (%d bytes)", b[:128], len(b))
	}
	return fmt.Sprintf("%q", b)
}
