// Command docgen draws the picture, the tables and the reference of keys in docs/ from the
// code, so that they cannot differ from it. It also writes the texts of the keys of
// lifecycle for package config, whose -h prints them. Pages are written by hand around what
// is generated; see package pages. "make docs" runs it; a test fails when a committed file
// is stale.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/pages"
	"github.com/pleme-io/lifecycle-go/metrics"
)

// documents are all files that docgen writes, by their paths in the repository.
var documents = map[string]func(d docs) (string, error){
	"docs/choreography.svg":             func(docs) (string, error) { return choreography(defaultTimeline()) },
	"docs/reference/states.md":          func(d docs) (string, error) { return d.fill("docs/reference/states.md", states) },
	"docs/reference/metrics.md":         func(d docs) (string, error) { return d.fill("docs/reference/metrics.md", metricTable) },
	"docs/reference/config.md":          func(d docs) (string, error) { return d.fill("docs/reference/config.md", d.keys) },
	"docs/reference/config.schema.json": docs.configSchema,
	"config/keytexts.go":                docs.configTexts,
}

// docs writes documents in a repository.
type docs struct{ root string }

// fill returns a page with its generated parts written anew.
func (d docs) fill(page string, write func(what string) (string, error)) (string, error) {
	return pages.Fill(filepath.Join(d.root, page), "docgen", write)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("docgen", flag.ContinueOnError)
	root := flags.String("root", "..", "the root of the repository")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: docgen always draws everything", flags.Arg(0))
	}
	for name, render := range documents {
		text, err := render(docs{*root})
		if err != nil {
			return fmt.Errorf("draw %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(*root, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func metricTable(string) (string, error) {
	var rows [][]string
	for _, m := range metrics.Reference() {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		rows = append(rows, []string{"`" + m.Name + "`", m.Type, labels, m.Help})
	}
	return pages.Table([]string{"metric", "type", "labels", "meaning"}, rows), nil
}
