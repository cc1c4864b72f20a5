package host

import (
	"maps"
	"slices"
	"strings"
)

// redactor replaces secrets in texts by their names. A nil redactor changes nothing.
type redactor struct{ replacer *strings.Replacer }

// minRedacted is the length of the shortest text that a redactor replaces, in bytes. A shorter
// one occurs in ordinary words, which would be hidden.
const minRedacted = 4

func newRedactor(secrets map[string]string) *redactor {
	var replace [][2]string
	add := func(name, v string) {
		if len(v) >= minRedacted {
			replace = append(replace, [2]string{v, "[secret " + name + "]"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		v := secrets[name]
		add(name, v)
		if strings.Contains(v, "\n") { // code may print it line by line
			for line := range strings.Lines(v) {
				add(name, strings.TrimSpace(line))
			}
		}
	}
	if len(replace) == 0 {
		return nil
	}
	// The longest first: a secret may begin with another one.
	slices.SortStableFunc(replace, func(a, b [2]string) int { return len(b[0]) - len(a[0]) })
	var pairs []string
	for _, pair := range replace {
		pairs = append(pairs, pair[0], pair[1])
	}
	return &redactor{strings.NewReplacer(pairs...)}
}

func (r *redactor) text(s string) string {
	if r == nil {
		return s
	}
	return r.replacer.Replace(s)
}

// err returns an error whose text has no secret. It wraps err.
func (r *redactor) err(err error) error {
	if r == nil || err == nil {
		return err
	}
	text := err.Error()
	if redacted := r.text(text); redacted != text {
		return &redactedError{redacted, err}
	}
	return err
}

type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }
