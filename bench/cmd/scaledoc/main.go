// Command scaledoc writes docs/scale.md from the results of package rollout, which it
// keeps in docs/scale.json. With -simulate it runs every simulation again first, which
// takes a minute or more: "make scale". A test renders the page from the results and
// repeats some of the simulations, so that neither can be stale.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scaledoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("scaledoc", flag.ContinueOnError)
	results := flags.String("results", "../docs/scale.json", "the results of the simulations")
	out := flags.String("out", "../docs/scale.md", "the page to write")
	again := flags.Bool("simulate", false, "run every simulation, and write the results")
	only := flags.String("only", "", "with -simulate: run those whose name begins with this, and keep the others")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *again {
		if err := simulate(*results, *only); err != nil {
			return err
		}
	}
	page, err := render(*results)
	if err != nil {
		return err
	}
	if err := os.WriteFile(*out, page, 0o644); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// simulate runs the cells and writes the results.
func simulate(file, only string) error {
	all := make(results)
	if only != "" {
		var err error
		if all, err = readResults(file); err != nil {
			return err
		}
	}
	for _, c := range cells() {
		if !strings.HasPrefix(c.name, only) {
			continue
		}
		r, err := c.run()
		if err != nil {
			return fmt.Errorf("simulate %s: %w", c.name, err)
		}
		all[c.name] = r
		fmt.Fprintf(os.Stderr, "%-40s %9d events\n", c.name, r.Events)
	}
	text, err := all.encode()
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// encode writes the results as JSON, a line for each.
func (rs results) encode() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("{")
	for i, name := range slices.Sorted(maps.Keys(rs)) {
		if i > 0 {
			b.WriteString(",")
		}
		one, err := json.Marshal(rs[name])
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "\n%q: %s", name, one)
	}
	b.WriteString("\n}\n")
	return b.Bytes(), nil
}

func readResults(file string) (results, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	all := make(results)
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read the results in %s: %w", file, err)
	}
	return all, nil
}

// render makes the page from a file of results.
func render(file string) ([]byte, error) {
	all, err := readResults(file)
	if err != nil {
		return nil, err
	}
	for _, c := range cells() {
		if _, ok := all[c.name]; !ok {
			return nil, fmt.Errorf("render %s: the result of %q is missing: run \"make scale\"", file, c.name)
		}
	}
	return all.page(), nil
}
