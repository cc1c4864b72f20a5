package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/access"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/contexts"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/deadletters"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/diagram"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/explain"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/processes"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/top"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/workers"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/workflows"
)

// commands returns the subcommands. To add one, write it in the package of its noun.
func commands() []*cobra.Command {
	return slices.Concat(
		workflows.Commands(),
		deadletters.Commands(),
		processes.Commands(),
		access.Commands(),
		prove.Commands(),
		[]*cobra.Command{
			workers.Command(),
			explain.Command(),
			top.Command(),
			diagram.Command(),
			contexts.Command(),
			runCommand(),
			vetCommand(),
			versionCommand(),
		},
	)
}

// Run runs the command line and returns the exit status. It uses only the given
// streams and the environment; it may be called many times in one
// process.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var printed cli.Exit
	var f *cli.Failure
	switch {
	case err == nil, errors.As(err, &printed):
	case errors.Is(err, syscall.EPIPE): // the reader has closed the pipe
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "lifecyclectl: interrupted")
		return cli.ExitInterrupted
	default:
		fmt.Fprintf(stderr, "lifecyclectl: %s\n", output.PrintableLines(err.Error()))
		if errors.As(err, &f) {
			for _, hint := range f.Hints {
				fmt.Fprintf(stderr, "  %s\n", output.Printable(hint))
			}
		}
	}
	return cli.StatusOf(err)
}

func newRoot() *cobra.Command {
	root := cli.Group(&cobra.Command{
		Use:   "lifecyclectl",
		Short: "The operators' command line for services that use lifecycle",
		Long: `The operators' command line for services that use lifecycle. It shows workflows,
workers and processes, their states, and acts on them.

The commands about workflows, workers and processes ask an operator server, set
by --server, LIFECYCLECTL_SERVER or a context of the configuration file. Every flag
of the connection has such a variable; a flag overrides it.

` + cli.ExitHelp(),
		SilenceErrors: true, // Run prints them
		SilenceUsage:  true,
	}, commands()...)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	return root
}
