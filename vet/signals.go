package vet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// handled are the signals that begin a drain.
var handled = []string{"SIGTERM", "SIGINT", "TERM", "INT", "15", "2"}

// signals checks which signal reaches the process when its container is stopped, and where
// it leaves its last words.
func (c *container) signals() {
	if l := c.spec.Lifecycle; l != nil && l.StopSignal != nil && !slices.Contains(handled, string(*l.StopSignal)) {
		c.fault("stop-signal", fmt.Sprintf("lifecycle.stopSignal is %s, which does not begin a drain", *l.StopSignal),
			"remove it, or set it to SIGTERM", "lifecycle", "stopSignal")
	}
	line, prefix := wrapped(c.spec)
	if shell := shellWithoutExec(line); shell != "" {
		reason := shell + " is the container's first program and does not pass SIGTERM on"
		if prefix != "" {
			reason = shell + " gets the stop signal from lifecycle-run, and does not pass it on"
		}
		c.fault("shell-entrypoint", reason, "start the program itself, or by exec: sh -c 'exec PROGRAM'", "command")
	}
	asked := cmp.Or(c.spec.TerminationMessagePath, "/dev/termination-log")
	if c.cfg.TerminationLog != "off" && asked != c.cfg.TerminationLog {
		c.fault("termination-log", fmt.Sprintf("terminationMessagePath is %s, and lifecycle.termination_log is %s", asked, c.cfg.TerminationLog),
			fmt.Sprintf("set lifecycle.termination_log to %s", asked), "terminationMessagePath")
	}
}

// shellWithoutExec returns the shell that stays the first process of a command
// line, or "".
func shellWithoutExec(line []string) string {
	i := scriptAt(line)
	if i < 0 || strings.Contains(line[i], "exec ") {
		return ""
	}
	return baseName(line[programAt(line)])
}

// dockerfile checks the instructions that decide which signal reaches the process.
// Only the last stage becomes the image.
func (r *run) dockerfile(f File) {
	if !r.isText(f) {
		return
	}
	fault := func(line int, rule, reason, fix string) {
		r.add(rule, Finding{File: f.Name, Line: line, Column: 1, Object: "Dockerfile", Reason: reason, Fix: fix})
	}
	type instruction struct {
		line int
		rest string
	}
	stage := make(map[string]instruction)
	number, isContinued := 0, false
	for line := range strings.Lines(string(f.Data)) {
		number++
		text := strings.TrimSpace(line)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		isPartOfThePrevious := isContinued
		isContinued = strings.HasSuffix(text, `\`)
		if isPartOfThePrevious {
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		word = strings.ToUpper(word)
		if word == "FROM" {
			clear(stage)
		}
		stage[word] = instruction{number, strings.TrimSpace(rest)}
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
		fault(start.line, "shell-entrypoint", "the entrypoint is written for a shell, which becomes the first process and does not pass SIGTERM on",
			`write it as a list: ENTRYPOINT ["/app"]`)
	}
}
