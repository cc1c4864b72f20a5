package call

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"unicode/utf8"
)

// reader reads one tree of errors.
type reader struct {
	nodes   int    // how many errors may still be read
	texts   int    // how many bytes of text may still be kept
	deep    bool   // an error is too deep, usually because an error wraps itself
	probing bool   // stop at the first error that has to be copied
	why     string // why the last unreadable error is unreadable
	stack   []byte // the stack of its panic
}

func newReader() reader { return reader{nodes: maxNodes, texts: maxTexts} }

// errLeftOut takes the place of an inner error that is unreadable or beyond the
// limits. So [Only] sees that the rest is not everything.
var errLeftOut = errors.New("an error that cannot be read, or one of too many")

// read returns err's frozen form, and whether that is err itself. It returns nil
// for an error that is unreadable or beyond the limits.
func (r *reader) read(err error, depth int) (out error, same bool) { //nolint:revive // the error is what is read, not how it went
	r.nodes--
	if depth >= maxDepth || r.nodes < 0 {
		r.deep = r.deep || depth >= maxDepth
		return nil, false
	}
	s := shapeOf(err)
	if !s.known && (r.probing || !r.unwrap(err, &s)) {
		return nil, false
	}
	same = s.known
	switch {
	case s.inner != nil:
		inner, asIs := r.read(s.inner, depth+1)
		if inner == nil {
			inner = errLeftOut
		}
		same, s.inner = same && asIs, inner
	case s.parts != nil:
		parts, asIs := r.readAll(s.parts, depth+1)
		same, s.parts = same && asIs, parts
	}
	if same && s.size <= maxText && s.size <= r.texts {
		r.texts -= s.size
		return err, true
	}
	if r.probing {
		return nil, false
	}
	return r.copy(err, s), false
}

// readAll reads the parts of one error. It returns errs itself when none of them
// changes.
func (r *reader) readAll(errs []error, depth int) (parts []error, same bool) {
	for i, err := range errs {
		if err == nil {
			continue
		}
		part, asIs := r.read(err, depth)
		if asIs && parts == nil {
			continue
		}
		if parts == nil {
			parts = slices.Clone(errs[:i])
		}
		if part == nil {
			part = errLeftOut
		}
		parts = append(parts, part)
		if r.probing || r.nodes < 0 {
			break
		}
	}
	if parts == nil {
		return errs, true
	}
	return parts, false
}

// unwrap asks a foreign error what it wraps. It returns false when that panics.
func (r *reader) unwrap(err error, s *shape) (ok bool) {
	defer r.catch(&ok)
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself
	case interface{ Unwrap() error }:
		s.inner = e.Unwrap()
	case interface{ Unwrap() []error }:
		parts := e.Unwrap()
		s.parts = slices.Clone(parts[:min(len(parts), maxNodes)])
	}
	return true
}

// copy reads the text of an error and the answers of its Is method. s has the
// frozen errors that it wraps. copy returns nil when a method panics.
func (r *reader) copy(err error, s shape) error {
	if p, ok := err.(*PanicError); ok { //nolint:errorlint // err itself
		return p.freeze(s.inner)
	}
	f, ok := r.words(err, s)
	switch {
	case !ok:
		return nil
	case s.inner != nil:
		return &frozenOne{f, s.inner}
	case s.parts != nil:
		return &frozenMany{f, slices.DeleteFunc(s.parts, func(e error) bool { return e == nil })}
	}
	return &f
}

func (r *reader) words(err error, s shape) (f frozen, ok bool) {
	defer r.catch(&ok)
	f.kept = err
	if s.lazy && r.deep { // in a cycle its Error would never return
		f.text = fmt.Sprintf("a %T that wraps itself, or more than %d errors", err, maxDepth)
	} else {
		f.text = clip(err.Error(), min(maxText, max(r.texts, 0)))
	}
	r.texts -= len(f.text)
	if e, asks := err.(interface{ Is(error) bool }); asks {
		for _, target := range *sentinels.Load() {
			if e.Is(target) {
				f.answers = append(f.answers, target)
			}
		}
	}
	return f, true
}

// catch is deferred around foreign methods: a panic in them makes ok false.
func (r *reader) catch(ok *bool) {
	if v := recover(); v != nil {
		*ok, r.why, r.stack = false, textOf(v), debug.Stack()
	}
}

// clip cuts a text to limit bytes and says how long it was.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	end := limit
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	// Clone it, because a part of a string keeps the whole string in memory.
	return fmt.Sprintf("%s… (%d bytes)", strings.Clone(text[:end]), len(text))
}
