package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// folder has the models, seen from the root of the repository.
const folder = "docs/internals/models"

// protocols are the models, in the order of the page.
var protocols = []string{"stop", "goodbye", "lease", "host", "relay", "workflow", "hook", "backup", "suspend"}

var (
	mutantName = regexp.MustCompile(`(?m)^#if(?:n?def) MUTANT_(\w+) +/\* (.+?) \*/`)
	property   = regexp.MustCompile(`assert\(.*`)
	number     = regexp.MustCompile(`\b[A-Z]\d+[a-z]?\b`)
)

// mutant is a guard that a model can do without.
type mutant struct{ name, guard string }

// mutantsOf returns the mutants of the text of a model.
func mutantsOf(model string) (all []mutant) {
	for _, m := range mutantName.FindAllStringSubmatch(model, -1) {
		if found := (mutant{m[1], m[2]}); !slices.Contains(all, found) {
			all = append(all, found)
		}
	}
	return all
}

// search is what SPIN has found in one model.
type search struct {
	states, took string   // how many states there are, and how long the search took
	broken       string   // the line of the property that does not hold; "" when all hold
	steps        []string // the lines that begin with @ in the counterexample: FROM -> TO: TEXT
}

var errNoSpin = errors.New("spin is not installed (make models installs it as root)")

// check searches all states of a model, without the guard of a mutant when it is given. A
// mutant is searched breadth first, so that its counterexample is the shortest.
func check(root, model, mutant string) (search, error) {
	for _, program := range []string{"spin", compiler()} {
		if _, err := exec.LookPath(program); err != nil {
			return search{}, fmt.Errorf("%w: %w", errNoSpin, err)
		}
	}
	dir, err := os.MkdirTemp("", "models")
	if err != nil {
		return search{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := model + ".pml"
	for _, name := range []string{file, "states.pml"} {
		text, err := os.ReadFile(filepath.Join(root, folder, name))
		if err != nil {
			return search{}, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return search{}, err
		}
	}
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s of %s: %w\n%s", name, model, err, out)
		}
		return string(out), err
	}
	flags := []string{"-O2", "-DNOCLAIM", "-DSAFETY", "-DNOFAIR", "-DVECTORSZ=2048", "-o", "pan", "pan.c"}
	var of []string
	if mutant != "" {
		flags = append([]string{"-DBFS"}, flags...)
		of = []string{"-DMUTANT_" + mutant}
	}
	if _, err := run("spin", append(of, "-a", file)...); err != nil {
		return search{}, err
	}
	if _, err := run(compiler(), flags...); err != nil {
		return search{}, err
	}
	began := time.Now()
	out, err := run("./pan", "-m100000", "-w22")
	took := time.Since(began)
	switch {
	case err != nil:
		return search{}, err
	case strings.Contains(out, "max search depth too small"), strings.Contains(out, "out of memory"), !strings.Contains(out, "errors: "):
		return search{}, fmt.Errorf("the search of %s did not end:\n%s", model, out)
	}
	found := search{took: fmt.Sprintf("%.1f s", took.Seconds())}
	if m := regexp.MustCompile(`(\d+) states, stored`).FindStringSubmatch(out); m != nil {
		found.states = m[1]
	}
	if strings.Contains(out, "errors: 0") {
		return found, nil
	}
	trail, err := run("spin", append(of, "-t", "-T", file)...)
	if err != nil {
		return search{}, err
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return search{}, err
	}
	found.broken = "the model comes to a standstill"
	if m := regexp.MustCompile(regexp.QuoteMeta(file) + `:(\d+), Error: assertion`).FindStringSubmatch(trail); m != nil {
		var line int
		_, _ = fmt.Sscan(m[1], &line)
		found.broken = strings.TrimSpace(strings.Split(string(text), "\n")[line-1])
	}
	for line := range strings.Lines(trail) {
		if step, is := strings.CutPrefix(line, "@ "); is {
			found.steps = append(found.steps, strings.TrimSpace(step))
		}
	}
	return found, nil
}

// compiler returns the C compiler: that of the environment, or gcc.
func compiler() string {
	if cc := os.Getenv("MODELS_CC"); cc != "" {
		return cc
	}
	return "gcc"
}

// diagram draws a counterexample for Markdown.
func diagram(steps []string) string {
	var b strings.Builder
	b.WriteString("```mermaid\nsequenceDiagram\n")
	for _, step := range steps {
		ends, text, _ := strings.Cut(step, ": ")
		from, to, _ := strings.Cut(ends, " -> ")
		fmt.Fprintf(&b, "    %s->>%s: %s\n", from, to, text)
	}
	b.WriteString("```\n")
	return b.String()
}
