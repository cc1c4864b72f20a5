// Command lifecyclectl is the operators' command line. It shows the workflows, workers
// and processes of a fleet, their states, and acts on them.
//
//	lifecyclectl list drone-survey --active
//	lifecyclectl transition drone-survey m-17 landing --note "wind from the east"
//	lifecyclectl watch drone-survey -o json | jq .entity.phase
//	lifecyclectl processes drain web-7f9c --reason "new node"
//	lifecyclectl vet deployment.yaml --config service.yaml
//	lifecyclectl run -- ./server
//
// Workflows, hosted workers and processes come from an operator server (package
// fleet/operator), set by --server or LIFECYCLECTL_SERVER. docs/reference/lifecyclectl.md
// is the reference; the exit statuses are in lifecyclectl --help.
//
// The commands are in packages below, one for each noun; main.go puts them together. Begin
// with package cli for what they share.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/access"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/contexts"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/deadletters"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/dev"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/diagram"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/explain"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/processes"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/upgrade"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/workers"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/workflows"
	"github.com/pleme-io/lifecycle-go/internal/run"
	"github.com/pleme-io/lifecycle-go/vet/command"
)

func main() {
	dev.Main() // a child of "workers dev" runs code and does not return
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

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
			diagram.Command(),
			contexts.Command(),
			runCommand(),
			upgrade.Command(),
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
	group(root)
	return root
}

// groups are the headings of the help, with the commands below each.
var groups = []struct {
	title    string
	commands []string
}{
	{"Processes:", []string{"processes", "describe", "doctor", "events", "logs", "stacks", "bundle"}},
	{"Workflows:", []string{"workflows", "definitions", "list", "get", "history", "watch", "transition", "patch"}},
	{"Hosted workers and dead letters:", []string{"workers", "dead-letters", "redrive", "discard"}},
	{"The server and who may do what:", []string{"contexts", "login", "logout", "whoami", "audit"}},
	{"The cluster:", []string{"prove", "vet"}},
	{"On this machine:", []string{"run", "upgrade", "diagram", "explain", "version", "completion", "help"}},
}

// group puts the commands of root under the headings of groups.
func group(root *cobra.Command) {
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range root.Commands() {
			if slices.Contains(g.commands, cmd.Name()) {
				cmd.GroupID = g.title
			}
		}
	}
	local := groups[len(groups)-1].title
	root.SetHelpCommandGroupID(local)
	root.SetCompletionCommandGroupID(local)
}

func runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run [FLAGS] -- PROGRAM [ARG...]",
		Args:  cobra.ArbitraryArgs,
		Short: "Run any program with health planes, a drain before its end, and PID 1's work",
		Long:  run.About("lifecyclectl run"),
		// Its flags are the keys of its configuration, which package config parses.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			// Not the context of main, which ends with the first signal: the App
			// handles and counts the signals.
			code := run.Run(context.WithoutCancel(cmd.Context()), "lifecyclectl run", args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			if code != cli.ExitOK {
				return cli.Exit(code)
			}
			return nil
		},
	}
}

// vetCommand is the command of the module vet, with the exit statuses of this program.
func vetCommand() *cobra.Command {
	cmd := command.New()
	cmd.Args = cobra.ArbitraryArgs // --rules needs no manifest
	look := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, err := cli.Until(cmd.Context(), func() (struct{}, error) { return struct{}{}, look(cmd, args) })
		if errors.Is(err, command.ErrFindings) {
			return cli.Exit(cli.ExitFindings)
		}
		return err
	}
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show which version this is",
		RunE: func(cmd *cobra.Command, _ []string) error {
			text := fmt.Appendf(nil, "lifecyclectl %s\n%s %s/%s\n", cli.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return output.Send(cmd.OutOrStdout(), text)
		},
	}
}
