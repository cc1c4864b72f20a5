// Package stderr keeps the end of what a program writes to its standard error.
package stderr

import (
	"io"
	"slices"
	"strings"
	"sync"
)

// Tail keeps the end of what a program writes to its standard error.
type Tail struct {
	Next io.Writer // gets what is written; nil for none
	Size int       // bytes that are kept

	mu  sync.Mutex // guards the fields below
	buf []byte
}

// Write never fails: errors of Next are ignored.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.buf = append(t.buf, b...)
	t.buf = slices.Delete(t.buf, 0, max(0, len(t.buf)-t.Size))
	t.mu.Unlock()
	if t.Next != nil {
		_, _ = t.Next.Write(b)
	}
	return len(b), nil
}

// String returns what is kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// LastLine returns the line of a standard error that says most: the message of what was
// thrown last, when Go, Node or Python has printed that, and else the last line.
func LastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	last := lines[len(lines)-1]
	for i := len(lines) - 2; i >= 0; i-- {
		rest := lines[i+1:]
		switch line := strings.TrimSpace(lines[i]); {
		case strings.HasPrefix(last, "Node.js v") && line != "" && strings.Trim(line, "^") == "": // under the place in the source
			rest = slices.DeleteFunc(rest, func(line string) bool { return strings.TrimSpace(line) == "" })
		case isGoPanic(line, rest):
			rest = []string{line}
		case line == "Traceback (most recent call last):": // the message follows the indented frames
			rest = slices.DeleteFunc(rest, func(line string) bool { return line == "" || line[0] == ' ' })
		default:
			continue
		}
		if len(rest) > 0 {
			return rest[0]
		}
	}
	return last
}

// isGoPanic reports whether a line begins the trace of a Go program that ends: the stacks of
// goroutines follow.
func isGoPanic(line string, rest []string) bool {
	begins := strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")
	return begins && slices.ContainsFunc(rest, func(line string) bool { return strings.HasPrefix(line, "goroutine ") })
}
