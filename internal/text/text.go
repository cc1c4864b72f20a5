// Package text makes text from outside the program safe to show: valid UTF-8, of
// a bounded length, on one line.
//
// An error's text, a name in a request and a reason typed by an operator may
// hold any bytes and have any length. They go through this package before they
// reach a log line, an answer, an event or a file.
package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ellipsis marks a text that was cut.
const ellipsis = "…"

// Valid returns s with U+FFFD in place of each run of bytes that is not UTF-8.
func Valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Head returns the longest beginning of s that has at most n bytes and does not
// end inside a character. It does not change bytes of s that are not UTF-8.
func Head(s string, n int) string {
	if len(s) <= n {
		return s
	}
	end := max(n, 0)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Clip returns s as valid UTF-8 of at most n bytes. It cuts a longer text between
// two characters and ends it with "…", whose 3 bytes count too. n is at least 3.
func Clip(s string, n int) string {
	// The text may be much longer than n, so cut it before repairing it. The
	// repair turns one byte into three at most, so cut the result again.
	long := len(s) > n
	if long {
		s = Head(s, n)
	}
	s = Valid(s)
	if !long && len(s) <= n {
		return s
	}
	return Head(s, n-len(ellipsis)) + ellipsis
}

// Column returns s in at most n characters, the last of them "…" when s is
// longer. It is for a column of a table or a label of a picture.
func Column(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + ellipsis
}

// Excerpt returns s, or the first n bytes of a longer s with a note of the whole
// length: "abc… (2097152 bytes)".
func Excerpt(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return fmt.Sprintf("%s%s (%d bytes)", Head(s, n), ellipsis, len(s))
}

// OneLine returns s with a space in place of every control character and every
// separator of lines, so that one value cannot look like several lines.
func OneLine(s string) string {
	if strings.IndexFunc(s, isControl) < 0 {
		return s
	}
	return strings.Map(func(c rune) rune {
		if isControl(c) {
			return ' '
		}
		return c
	}, s)
}

// isControl reports whether c is one of Unicode's control characters (C0, C1,
// delete) or separates lines.
func isControl(c rune) bool {
	return c < ' ' || c >= 0x7f && c < 0xa0 || c == '\u2028' || c == '\u2029'
}

// Shell returns s as one word of a command line that people copy into a shell: as it is
// when no shell gives a meaning to its characters, and in quotes otherwise. Characters
// that a terminal would act on, such as a line's end, become escapes in the form $'…',
// which bash, zsh and ksh know.
func Shell(s string) string {
	plain := s != ""
	for _, r := range s {
		if isControl(r) || r == utf8.RuneError || unicode.Is(unicode.Cf, r) {
			return dollarQuoted(s)
		}
		plain = plain && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@+,", r))
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func dollarQuoted(s string) string {
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + "'"
}
