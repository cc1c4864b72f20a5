package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// commands make the subcommands. To add one, write a file with its function and add a
// line here.
var commands = []func() *cobra.Command{
	getCommand,
	listCommand,
	watchCommand,
	historyCommand,
	transitionCommand,
	patchCommand,
	definitionsCommand,
	workflowsCommand,
	workersCommand,
	deadLettersCommand,
	redriveCommand,
	discardCommand,
	processesCommand,
	describeCommand,
	eventsCommand,
	logsCommand,
	stacksCommand,
	doctorCommand,
	bundleCommand,
	explainCommand,
	topCommand,
	diagramCommand,
	loginCommand,
	logoutCommand,
	whoamiCommand,
	auditCommand,
	contextsCommand,
	runCommand,
	vetCommand,
	proveCommand,
	proveLoadCommand,
	versionCommand,
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
	status := statusOfError(err)
	var told exitStatus
	var f *failure
	switch {
	case err == nil, errors.As(err, &told):
	case errors.Is(err, syscall.EPIPE): // the reader has closed the pipe
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		status = exitInterrupted
		fmt.Fprintln(stderr, "lifecyclectl: interrupted")
	default:
		fmt.Fprintf(stderr, "lifecyclectl: %s\n", printableLines(err.Error()))
		if errors.As(err, &f) {
			for _, hint := range f.hints {
				fmt.Fprintf(stderr, "  %s\n", printable(hint))
			}
		}
	}
	return status
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "lifecyclectl",
		Short: "The operators' command line for services that use lifecycle",
		Long: `The operators' command line for services that use lifecycle. It shows workflows,
workers and processes, their states, and acts on them.

The commands about workflows, workers and processes ask an operator server, set
by --server, LIFECYCLECTL_SERVER or a context of the configuration file. Every flag
of the connection has such a variable; a flag overrides it.

` + exitHelp(),
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true, // Run prints them
		SilenceUsage:  true,
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
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	if meant := suggest.Nearest(args[0], names); meant != "" {
		return fmt.Errorf("there is no command %q; did you mean %s?", args[0], meant)
	}
	return fmt.Errorf("there is no command %q; see %s --help", args[0], cmd.CommandPath())
}

// group returns a command that only has subcommands.
func group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	cmd.Args = unknownCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(subcommands...)
	return cmd
}

// words requires one argument per name, and says which is missing.
// An argument with a name in brackets is optional.
func words(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) && name[0] != '[' {
				return fmt.Errorf("which %s? the command is: %s", name, cmd.UseLine())
			}
			if i < len(args) && args[i] == "" {
				return fmt.Errorf("%s is empty; the command is: %s", name, cmd.UseLine())
			}
		}
		if len(args) > len(names) {
			return fmt.Errorf("%q is one argument too many; the command is: %s", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}
