package vet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// dockerfile checks the instructions that decide which signal reaches the process.
// Only the last stage becomes the image.
func (r *run) dockerfile(f File) {
	fault := func(line int, rule, reason, fix string) {
		r.add(rule, Finding{File: f.Name, Line: line, Column: 1, Object: "Dockerfile", Reason: reason, Fix: fix})
	}
	switch {
	case len(f.Data) > MaxSize:
		fault(1, "too-large", fmt.Sprintf("the file has %d bytes, and vet reads at most %d", len(f.Data), MaxSize), "is it a Dockerfile?")
		return
	case bytes.IndexByte(f.Data, 0) >= 0 || !utf8.Valid(f.Data):
		fault(1, "not-text", "the file is not UTF-8 text", "is it a Dockerfile?")
		return
	}
	type step struct {
		line int
		rest string
	}
	stage := make(map[string]step)
	number, continued := 0, false
	for line := range strings.Lines(string(f.Data)) {
		number++
		text := strings.TrimSpace(line)
		if was := continued; text == "" || strings.HasPrefix(text, "#") {
			continue
		} else if continued = strings.HasSuffix(text, `\`); was {
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		word = strings.ToUpper(word)
		if word == "FROM" {
			clear(stage)
		}
		stage[word] = step{number, strings.TrimSpace(rest)}
	}
	if _, ok := stage["FROM"]; !ok {
		fault(1, "empty", "there is no FROM in it", "is it a Dockerfile?")
		return
	}
	if s, ok := stage["STOPSIGNAL"]; ok && !slices.Contains(handled, s.rest) && !strings.Contains(s.rest, "$") {
		fault(s.line, "stop-signal", fmt.Sprintf("STOPSIGNAL is %s, which does not begin a drain", s.rest), "remove it, or set it to SIGTERM")
	}
	start, ok := stage["ENTRYPOINT"]
	if !ok {
		start, ok = stage["CMD"]
	}
	if ok && !strings.HasPrefix(start.rest, "[") && !strings.HasPrefix(start.rest, "exec ") {
		fault(start.line, "shell-entrypoint", "the entrypoint is written for a shell, which becomes the first process and does not pass SIGTERM on", `write it as a list: ENTRYPOINT ["/app"]`)
	}
}
