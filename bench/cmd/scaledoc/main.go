// Command scaledoc simulates rollouts of 10,000 pods with package rollout, and writes the
// tables of docs/reference/scale.md, which is written by hand around them: "make scale", a minute.
// Every simulation is deterministic, so a test repeats some of them and compares the page.
// scenarios.go has what is simulated, and tables.go what each part of the page shows.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/pleme-io/lifecycle-go/internal/pages"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scaledoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("scaledoc", flag.ContinueOnError)
	page := flags.String("page", "../docs/reference/scale.md", "the page to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	text, err := render(*page)
	if err != nil {
		return err
	}
	return os.WriteFile(*page, []byte(text), 0o644)
}

// render returns the page with its tables simulated again: those of the given names, or
// all of them.
func render(page string, only ...string) (string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", err
	}
	chosen := map[string]bool{}
	for _, name := range only {
		chosen[name] = true
	}
	return pages.Fill(string(text), "scale", func(name, old string) (string, error) {
		table, ok := tables[name]
		if !ok {
			return "", fmt.Errorf("there is no table %q", name)
		}
		if len(only) > 0 && !chosen[name] {
			return old, nil
		}
		return table(), nil
	})
}
