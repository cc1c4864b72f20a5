// Command conformance checks a worker program against the wire contract of a process
// pool and says what is wrong:
//
//	go run ./procpool/cmd/conformance -slow '{"op":"sleep","seconds":60}' -- python3 worker.py
//
// It exits with code 0 when nothing is wrong, 1 when the worker breaks a rule, and 2
// when its arguments are wrong.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/conformance"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string, out io.Writer) (code int, err error) {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	query := flags.String("query", "{}", "a payload, JSON, that the worker answers soon, with a result or an error")
	slow := flags.String("slow", "", "a payload that keeps the worker busy until it is cancelled; without it six checks are skipped")
	stream := flags.String("stream", "", "a payload for which the worker sends at least 8 MB of messages; without it one check is skipped")
	timeout := flags.Duration("timeout", 10*time.Second, "how long the worker may take for each step")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: conformance [flags] -- COMMAND [ARGUMENT...]")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0, nil
		}
		return 2, nil // flag has printed why
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2, errors.New("there is no COMMAND: pass the worker's program after --")
	}
	cfg := conformance.Config{
		Command: func() *exec.Cmd { return exec.Command(flags.Arg(0), flags.Args()[1:]...) },
		Query:   json.RawMessage(*query), Timeout: *timeout,
	}
	if *slow != "" {
		cfg.Slow = json.RawMessage(*slow)
	}
	if *stream != "" {
		cfg.Stream = json.RawMessage(*stream)
	}
	results, err := conformance.Run(ctx, cfg)
	wrong, skipped := 0, 0
	for _, r := range results {
		switch {
		case r.Skipped != "":
			skipped++
			fmt.Fprintf(out, "skip  %s: %s\n", r.Check, r.Skipped)
		case r.Err != nil:
			wrong++
			fmt.Fprintf(out, "FAIL  %s\n      %v\n", r.Check, r.Err)
			for line := range strings.Lines(r.Stderr) {
				fmt.Fprintf(out, "      stderr: %s\n", strings.TrimSuffix(line, "\n"))
			}
		default:
			fmt.Fprintf(out, "ok    %s\n", r.Check)
		}
	}
	if err != nil {
		return 2, err
	}
	fmt.Fprintf(out, "%d checks, %d failed, %d skipped\n", len(results), wrong, skipped)
	if wrong > 0 {
		return 1, nil
	}
	return 0, nil
}
