// Command models checks the models of docs/internals/models with SPIN and writes what its
// page shows of them: how many states there are, and the shortest counterexamples of the
// mutants. It also writes states.pml, with the states that the models take from the Go code.
// Begin with [check].
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pleme-io/lifecycle-go/internal/pages"
)

func main() {
	if err := run(".."); err != nil {
		fmt.Fprintln(os.Stderr, "models:", err)
		if !errors.Is(err, errNoSpin) {
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
	if err := os.WriteFile(filepath.Join(root, folder, "states.pml"), []byte(text), 0o644); err != nil {
		return err
	}
	name := filepath.Join(root, folder, "README.md")
	page, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	filled, err := pages.Fill(string(page), "models", func(what, _ string) (string, error) {
		if what == "table" {
			return models(root)
		}
		return counterexamples(root, what)
	})
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(filled), 0o644)
}

// models returns the table of all models.
func models(root string) (string, error) {
	var rows [][]string
	for _, model := range protocols {
		found, err := check(root, model, "")
		if err != nil {
			return "", err
		}
		if found.broken != "" {
			return "", fmt.Errorf("%s: %s does not hold", model, found.broken)
		}
		rows = append(rows, []string{"[" + model + ".pml](" + model + ".pml)", found.states, found.took})
	}
	return pages.Table([]string{"model", "states", "time"}, rows), nil
}

// counterexamples returns the mutants of a model, with the shortest counterexample of each.
func counterexamples(root, model string) (text string, err error) {
	source, err := os.ReadFile(filepath.Join(root, folder, model+".pml"))
	if err != nil {
		return "", err
	}
	for _, m := range mutantsOf(string(source)) {
		found, err := check(root, model, m.name)
		if err != nil {
			return "", err
		}
		if found.broken == "" {
			return "", fmt.Errorf("%s: nothing is wrong without %q", model, m.name)
		}
		text += fmt.Sprintf("**%s**: without the rule \"%s\", `%s` fails:\n\n%s\n", m.name, m.guard, found.broken, diagram(found.steps))
	}
	return text, nil
}
