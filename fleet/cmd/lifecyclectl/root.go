package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// The exit statuses of every command.
const (
	exitOK       = 0
	exitFindings = 1 // the command did its work, and there is something to say
	exitUsage    = 2 // it could not
)

// commands make the subcommands. A new one is a file with its function, and a
// line here.
var commands = []func() *cobra.Command{
	runCommand,
	vetCommand,
}

// exitStatus is an error that has been told already; only its status is left.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Run runs the command line and returns the exit status. Everything it reads
// and writes is given; it may be called many times in one process.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var status exitStatus
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	}
	fmt.Fprintf(stderr, "lifecyclectl: %v\n", err)
	return exitUsage
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "lifecyclectl",
		Short: "The operators' side of services that are run by lifecycle",
		Long: `The operators' side of services that are run by lifecycle.

Exit status: 0 when there is nothing to say, 1 when there is, 2 when it could
not be asked.`,
		Args:                       unknownCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:              true, // Run tells them
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	for _, command := range commands {
		root.AddCommand(command())
	}
	return root
}

// unknownCommand names the command that was probably meant.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("there is no command %q; see lifecyclectl --help", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("there is no command %q; did you mean %s?", args[0], near[0])
	}
	return err
}
