// Command clientdoc writes the tables of docs/reference/clients.md, which is written by hand around
// them, from docs/reference/clients.json, the results that "make clients" has measured. causes.go says
// why requests were lost, and what their sender can set; page.go makes the tables.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clientdoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("clientdoc", flag.ContinueOnError)
	results := flags.String("results", "../docs/reference/clients.json", "the results")
	page := flags.String("page", "../docs/reference/clients.md", "the page to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	text, err := render(*page, *results)
	if err != nil {
		return err
	}
	return os.WriteFile(*page, []byte(text), 0o644)
}
