// Command benchdoc writes docs/benchmarks.md from the results of "make bench",
// so that the page always matches them: tables as ratios, the machine and the
// versions, and for each target whether it holds.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "benchdoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("benchdoc", flag.ContinueOnError)
	in := flags.String("in", "../docs/benchmarks.txt", "the results, in Go's benchmark format")
	out := flags.String("out", "../docs/benchmarks.md", "the page to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	page, err := render(*in)
	if err != nil {
		return err
	}
	if err := os.WriteFile(*out, page, 0o644); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// render makes the page from a file of results.
func render(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	defer f.Close()
	r, err := read(f, name)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	page, err := r.page()
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	return page, nil
}
