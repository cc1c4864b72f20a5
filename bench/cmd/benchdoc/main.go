// Command benchdoc writes the measurements of docs/reference/benchmarks.txt into the page beside it,
// docs/reference/benchmarks.md, which is written by hand around them. Each part of the page says in a
// comment, in YAML, what stands there: a table of medians (table.go), the targets with
// their verdicts (targets.go), the machines, or a file. With -merge it first puts the
// results of another run into docs/reference/benchmarks.txt, in place of those of the same benchmarks.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/internal/pages"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "benchdoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("benchdoc", flag.ContinueOnError)
	docs := flags.String("docs", "../docs/reference", "the folder of benchmarks.txt and benchmarks.md")
	other := flags.String("merge", "", "a file of results that replace those of the same benchmarks")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	results, page := filepath.Join(*docs, "benchmarks.txt"), filepath.Join(*docs, "benchmarks.md")
	if *other != "" {
		if err := merge(results, *other); err != nil {
			return fmt.Errorf("merge %s: %w", *other, err)
		}
	}
	text, err := render(results, page)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(text), 0o644)
}

// render returns the page with the measurements of a file of results.
func render(results, page string) (string, error) {
	r, err := readResults(results)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", results, err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return "", err
	}
	return pages.Fill(string(text), "bench", func(what, _ string) (string, error) {
		return r.part(what, filepath.Dir(page))
	})
}

// part is what a part of the page shows: one of its fields.
type part struct {
	Table    *table
	Targets  []target
	Machines bool
	File     string // beside the page
}

func (r *results) part(what, dir string) (string, error) {
	var p part
	in := yaml.NewDecoder(strings.NewReader(what))
	in.KnownFields(true)
	if err := in.Decode(&p); err != nil {
		return "", err
	}
	switch {
	case p.Table != nil:
		return r.table(*p.Table), nil
	case p.Targets != nil:
		return r.targets(p.Targets), nil
	case p.Machines:
		return r.machineTable(), nil
	case p.File != "":
		text, err := os.ReadFile(filepath.Join(dir, p.File))
		return string(bytes.TrimSpace(text)), err
	}
	return "", errors.New("it needs table, targets, machines or file")
}
