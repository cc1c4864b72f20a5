package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// maxDepth is how deep values may be nested, as in encoding/json.
const maxDepth = 10_000

// scanner walks over JSON and finds where values end. Outside of strings it
// accepts what JSON is and nothing else; inside of them it looks for quotes and
// backslashes only, since whoever parses a payload will look at the rest. That
// is enough for a payload to be unable to end before its end.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) fail(what string) error {
	return fmt.Errorf("%w: %s, at byte %d of %s", ErrNotJSON, what, s.i, Excerpt(s.b))
}

// peek returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// byte skips white space and then c, if that is what comes.
func (s *scanner) byte(c byte) bool {
	if s.space(); s.peek() != c {
		return false
	}
	s.i++
	return true
}

// string skips a string and returns what is between its quotes.
func (s *scanner) string() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.fail("want a string")
	}
	from := s.i + 1
	for at := from; ; {
		end := bytes.IndexByte(s.b[at:], '"')
		if end < 0 {
			return nil, s.fail("a string does not end")
		}
		end += at
		slashes := 0
		for k := end - 1; k >= from && s.b[k] == '\\'; k-- {
			slashes++
		}
		if slashes%2 == 0 {
			s.i = end + 1
			return s.b[from:end], nil
		}
		at = end + 1
	}
}

// value skips one value.
func (s *scanner) value(depth int) error {
	if depth > maxDepth {
		return s.fail("it is nested too deep")
	}
	s.space()
	switch c := s.peek(); c {
	case '"':
		_, err := s.string()
		return err
	case '{', '[':
		return s.list(depth, c == '{')
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

// list skips an object or an array.
func (s *scanner) list(depth int, object bool) error {
	end := byte(']')
	if object {
		end = '}'
	}
	s.i++
	if s.space(); s.peek() == end {
		s.i++
		return nil
	}
	for {
		if object {
			s.space()
			if _, err := s.string(); err != nil {
				return err
			}
			if !s.byte(':') {
				return s.fail("want : after the name of a field")
			}
		}
		if err := s.value(depth + 1); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
		case end:
			s.i++
			return nil
		default:
			return s.fail("want , or " + string(end))
		}
	}
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.b[s.i:], []byte(word)) {
		return s.fail("want " + word)
	}
	s.i += len(word)
	return nil
}

// number skips -?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?
func (s *scanner) number() error {
	if s.peek() == '-' {
		s.i++
	}
	switch c := s.peek(); {
	case c == '0':
		s.i++
	case !s.digits():
		return s.fail("want a value")
	}
	if s.peek() == '.' {
		s.i++
		if !s.digits() {
			return s.fail("want a digit after the point")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		if !s.digits() {
			return s.fail("want a digit in the exponent")
		}
	}
	return nil
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

// CheckValue reports why b is not one JSON value in UTF-8. It is what a pool
// asks of a payload before a worker sees it, and costs a fraction of what
// parsing it would. The error wraps [ErrNotJSON].
func CheckValue(b []byte) error {
	s := scanner{b: b}
	if err := s.value(0); err != nil {
		return err
	}
	if s.space(); s.i != len(b) {
		return s.fail("there is more after the value")
	}
	ascii, literal := survey(b)
	if !ascii && !utf8.Valid(b) {
		return fmt.Errorf("%w: it is not UTF-8: %s", ErrNotJSON, Excerpt(b))
	}
	// Escapes may be wrong, and control characters are right between the tokens
	// and wrong in strings: this is not common, and is looked at closely.
	if !literal && !json.Valid(b) {
		return fmt.Errorf("%w: a string has a wrong escape or a control character in it: %s", ErrNotJSON, Excerpt(b))
	}
	return nil
}

// survey looks at every byte once. ascii: none is 0x80 or above. literal: none
// is below 0x20 or a backslash, so what stands between quotes is what is meant.
func survey(b []byte) (ascii, literal bool) {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	var beyond, odd uint64
	// Of each word the bytes below 0x20, and those that are zero without the
	// backslash's bits, borrow from their high bit; bytes that had it set already
	// are masked out. Two words at a time need not wait for each other.
	for ; len(b) >= 16; b = b[16:] {
		v, w := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		beyond |= v | w
		odd |= ((v-ones*0x20)|((v^ones*'\\')-ones))&^v | ((w-ones*0x20)|((w^ones*'\\')-ones))&^w
	}
	for _, c := range b {
		beyond |= uint64(c)
		if c < 0x20 || c == '\\' {
			odd |= high
		}
	}
	return beyond&high == 0, odd&high == 0
}
