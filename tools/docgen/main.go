// Command docgen draws the pictures and tables in docs/ from the code, so that
// they cannot differ from it. It also writes the texts of the
// keys of lifecycle for package config, whose -h prints them. "make docs" runs it; a
// test fails when a committed file is stale.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// document is one file, by its path in the repository.
type document struct {
	name   string
	render func() ([]byte, error)
}

// documents are all files that docgen writes.
var documents = []document{
	{"docs/choreography.svg", func() ([]byte, error) { return choreography(defaults()) }},
	{"docs/states.md", states},
	{"docs/config.md", configPage},
	{"docs/config.schema.json", configSchema},
	{"config/words.go", configWords},
	{"docs/metrics.md", metricsPage},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("docgen", flag.ContinueOnError)
	out := flags.String("out", ".", "the root of the repository; its folders must exist")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: docgen always draws everything", flags.Arg(0))
	}
	for _, d := range documents {
		text, err := d.render()
		if err != nil {
			return fmt.Errorf("draw %s: %w", d.name, err)
		}
		if err := os.WriteFile(filepath.Join(*out, filepath.FromSlash(d.name)), text, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", d.name, err)
		}
	}
	return nil
}
