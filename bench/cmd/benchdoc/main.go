// Command benchdoc writes docs/benchmarks.md from the results of "make bench",
// so that the page always matches them: tables as ratios, the machine and the
// versions, and for each target whether it holds.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	return withLongProof(page, filepath.Join(filepath.Dir(name), "long-proof.txt"))
}

// withLongProof adds what "make e2e-long" has printed, when there is such a file.
func withLongProof(page []byte, name string) ([]byte, error) {
	table, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return page, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the long proof: %w", err)
	}
	page = append(page, "\n## Pods replaced under load of every protocol\n\n"...)
	page = append(page, "\"make e2e-long\" rolls several Deployments at once on a real Kubernetes. No client sends a request twice: the bodies of the POSTs cannot be read again, half of the clients are idle for up to 4 s on connections that they keep through the stops, and a stream or a websocket is lost when it ends without a goodbye. [The harness](../deploy/e2e/README.md) says more.\n\n"...)
	return append(page, table...), nil
}
