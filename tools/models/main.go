// Command models checks the models of docs/internals/models with SPIN and writes what its
// page shows of them: how many states there are, and the shortest counterexamples of the
// mutants. It also writes states.pml, with the states that the models take from the Go code.
// Begin with [models.Check].
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/models"
	"github.com/pleme-io/lifecycle-go/internal/pages"
)

// protocols are the models, in the order of the page.
var protocols = []string{"stop", "goodbye", "lease", "host", "relay", "workflow", "hook", "backup", "suspend", "handover", "upgrade"}

var (
	mutantName = regexp.MustCompile(`(?m)^#if(?:n?def) MUTANT_(\w+) +/\* (.+?) \*/`)
	property   = regexp.MustCompile(`assert\(.*`)
	number     = regexp.MustCompile(`\b[A-Z]\d+[a-z]?\b`)
)

func main() {
	if err := run(".."); err != nil {
		fmt.Fprintln(os.Stderr, "models:", err)
		if !errors.Is(err, models.ErrNoSpin) {
			os.Exit(1)
		}
	}
}

// run writes states.pml and the generated parts of the page, in the repository root.
func run(root string) error {
	text, err := statesFile(root)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, models.Folder, "states.pml"), []byte(text), 0o644); err != nil {
		return err
	}
	name := filepath.Join(root, models.Folder, "README.md")
	filled, err := pages.Fill(name, "models", func(what string) (string, error) {
		if what == "table" {
			return summary(root)
		}
		return counterexamples(root, what)
	})
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(filled), 0o644)
}

// summary returns the table of all models.
func summary(root string) (string, error) {
	var rows [][]string
	for _, model := range protocols {
		found, err := models.Check(root, model, "")
		if err != nil {
			return "", err
		}
		if found.Broken != "" {
			return "", fmt.Errorf("%s: %s does not hold", model, found.Broken)
		}
		rows = append(rows, []string{"[" + model + ".pml](" + model + ".pml)", found.States})
	}
	return pages.Table([]string{"model", "states"}, rows), nil
}

// counterexamples returns the mutants of a model, with the shortest counterexample of each.
func counterexamples(root, model string) (text string, err error) {
	source, err := os.ReadFile(filepath.Join(root, models.Folder, model+".pml"))
	if err != nil {
		return "", err
	}
	for _, m := range mutantsOf(string(source)) {
		found, err := models.Check(root, model, m.name)
		if err != nil {
			return "", err
		}
		if found.Broken == "" {
			return "", fmt.Errorf("%s: nothing is wrong without %q", model, m.name)
		}
		text += fmt.Sprintf("**%s**: without the rule \"%s\", `%s` fails:\n\n%s\n", m.name, m.guard, found.Broken, diagram(found.Steps))
	}
	return text, nil
}

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
