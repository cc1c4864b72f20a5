package vet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pleme-io/lifecycle-go/internal/cmdline"
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
	if reason, fix := holdsSignal(c.spec); reason != "" {
		c.fault("shell-entrypoint", reason, fix, "command")
	}
	asked := cmp.Or(c.spec.TerminationMessagePath, "/dev/termination-log")
	if c.cfg.TerminationLog != "off" && asked != c.cfg.TerminationLog {
		c.fault("termination-log", fmt.Sprintf("terminationMessagePath is %s, and lifecycle.termination_log is %s", asked, c.cfg.TerminationLog),
			fmt.Sprintf("set lifecycle.termination_log to %s", asked), "terminationMessagePath")
	}
}

// runners start the script of a package by a shell, which ends at SIGTERM and does not pass it on.
var runners = []string{"npm", "npx", "yarn", "pnpm"}

// holdsSignal reports what stands between the stop signal and a container's program, or ""
// for nothing.
func holdsSignal(c *corev1.Container) (reason, fix string) {
	line, prefix := wrapped(c)
	held, fix := cmdline.Shell(line), "start the program itself, or by exec: sh -c 'exec PROGRAM'"
	if runner := runnerOf(line); held == "" && runner != "" {
		held, fix = "the shell of "+runner, "start the program itself, such as node server.js"
	}
	switch {
	case held == "":
		return "", ""
	case prefix != "":
		return held + " gets the stop signal from lifecycle-run, and does not pass it on", fix
	case strings.Contains(held, " "):
		return held + " gets SIGTERM, and does not pass it on", fix
	}
	return held + " is the container's first program and does not pass SIGTERM on", fix
}

// runnerOf returns the runner that a command line, or a shell by exec, starts, or "".
func runnerOf(line []string) string {
	first := cmdline.Program(line)
	if i := cmdline.Script(line); i >= 0 {
		_, behind, _ := strings.Cut(line[i], "exec ")
		line, first = strings.Fields(behind), 0
	}
	if first < len(line) && slices.Contains(runners, cmdline.Base(line[first])) {
		return cmdline.Base(line[first])
	}
	return ""
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
	stage := make(map[string]instruction)
	for _, s := range instructions(string(f.Data)) {
		if s.word == "FROM" {
			clear(stage)
		}
		stage[s.word] = s
	}
	if _, ok := stage["FROM"]; !ok {
		fault(1, "empty", "there is no FROM in it", "is it a Dockerfile?")
		return
	}
	if s, ok := stage["STOPSIGNAL"]; ok && !slices.Contains(handled, s.rest) && !strings.Contains(s.rest, "$") {
		fault(s.line, "stop-signal", fmt.Sprintf("STOPSIGNAL is %s, which does not begin a drain", s.rest), "remove it, or set it to SIGTERM")
	}
	entry, cmd := stage["ENTRYPOINT"], stage["CMD"]
	line := entry.words()
	if len(line) == 0 || entry.isList() { // CMD has its arguments
		line = append(line, cmd.words()...)
	}
	reason, fix := holdsSignal(&corev1.Container{Command: line})
	if reason == "" {
		return
	}
	at := cmd
	if ofEntry, _ := holdsSignal(&corev1.Container{Command: entry.words()}); ofEntry != "" {
		at = entry
	}
	if !at.isList() {
		fix = fmt.Sprintf("write the program itself as a list: %s [\"/app\"]", at.word)
	}
	fault(at.line, "shell-entrypoint", reason, fix)
}

// instruction is one of a Dockerfile.
type instruction struct {
	line       int
	word, rest string
}

// instructions splits a Dockerfile.
func instructions(text string) (all []instruction) {
	number, isContinued := 0, false
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		line, continues := strings.CutSuffix(line, `\`)
		if isContinued {
			all[len(all)-1].rest += " " + strings.TrimSpace(line)
		} else {
			word, rest, _ := strings.Cut(line, " ")
			all = append(all, instruction{number, strings.ToUpper(word), strings.TrimSpace(rest)})
		}
		isContinued = continues
	}
	return all
}

// isList reports whether the instruction names its program as a list, and not for a shell.
func (i instruction) isList() bool { return json.Unmarshal([]byte(i.rest), new([]string)) == nil }

// words returns the command line of an ENTRYPOINT or a CMD.
func (i instruction) words() (words []string) {
	if i.rest != "" && json.Unmarshal([]byte(i.rest), &words) != nil {
		words = []string{"/bin/sh", "-c", i.rest}
	}
	return words
}
