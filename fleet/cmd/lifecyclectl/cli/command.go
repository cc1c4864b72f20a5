// Package cli has what the commands of lifecyclectl share: the connection to an operator
// server with its contexts and logins, errors with their exit statuses and hints, watches
// that outlive their server, lists with --watch, questions, progress and completion.
//
// [Command] makes a command that asks the server; begin there. What it shows is in the
// package output.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
)

// Call is one run of a command that asks an operator server.
type Call struct {
	*cobra.Command
	*Server
	Args   []string
	Format *output.Format
}

// Write writes a message in the format that the user wants. fill fills the table.
func (c *Call) Write(m proto.Message, fill func(*output.Table)) error {
	return c.Format.Write(c.OutOrStdout(), m, fill)
}

// Answer writes the answer to a call, as Write does, or returns the error of the call.
func (c *Call) Answer(m proto.Message, err error, fill func(*output.Table)) error {
	if err != nil {
		return err
	}
	return c.Write(m, fill)
}

// Send writes a text.
func (c *Call) Send(text []byte) error { return output.Send(c.OutOrStdout(), text) }

// Rows returns a table whose rows come one by one.
func (c *Call) Rows(head []string, widths ...int) *output.Rows {
	return &output.Rows{W: c.OutOrStdout(), Format: c.Format, Head: head, Widths: widths}
}

// Warn writes a line for people beside the output.
func (c *Call) Warn(format string, args ...any) {
	fmt.Fprintf(c.ErrOrStderr(), "lifecyclectl: "+format+"\n", args...)
}

// Subject is what a command is about, for the hints of an error.
type Subject string

// The subjects. A command about a workflow has the arguments TYPE and ID, and one about a
// worker or a process has the argument ID.
const (
	OfNothing  Subject = ""
	OfWorkflow Subject = "workflow"
	OfWorker   Subject = "worker"
	OfProcess  Subject = "process"
)

// Command makes cmd a command that asks the server, and shows the answer in the format of
// -o. It explains the errors of the server.
func Command(cmd *cobra.Command, about Subject, run func(*Call) error) *cobra.Command {
	output.AddFlag(cmd)
	return TextCommand(cmd, about, run)
}

// TextCommand is Command for one without -o.
func TextCommand(cmd *cobra.Command, about Subject, run func(*Call) error) *cobra.Command {
	return command(cmd, Open, about, run)
}

// LoginCommand is TextCommand for one that does not use the login at the server.
func LoginCommand(cmd *cobra.Command, run func(*Call) error) *cobra.Command {
	return command(cmd, openWithoutLogin, OfNothing, run)
}

func command(cmd *cobra.Command, open func(*cobra.Command) (*Server, error), about Subject, run func(*Call) error) *cobra.Command {
	if cmd.ValidArgsFunction == nil {
		each := completions[about]
		cmd.ValidArgsFunction = completeArgs(each[:min(len(each), len(arguments(cmd)))]...)
	}
	cmd.PersistentFlags().AddFlagSet(ConnectionFlags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := open(cmd)
		if err != nil {
			return err
		}
		defer func() { s.Close() }()
		c := LocalCall(cmd, args)
		c.Server = s
		err = run(c)
		if note := s.staleNote(); note != "" && err == nil {
			c.Warn("%s", note)
		}
		if answer := new(connect.Error); errors.As(err, &answer) {
			return s.Explain(cmd.Context(), err, about, args)
		}
		return err
	}
	return cmd
}

// LocalCall returns a call without a server.
func LocalCall(cmd *cobra.Command, args []string) *Call {
	return &Call{Command: cmd, Args: args, Format: output.FormatOf(cmd)}
}

// Group makes cmd a command that only has subcommands. Each of them takes the arguments that
// its Use names, unless it checks them by itself.
func Group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	for _, c := range subcommands {
		if c.Args == nil {
			c.Args = Words(arguments(c)...)
		}
	}
	cmd.Args = unknownCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(subcommands...)
	return cmd
}

// unknownCommand names the command that was probably meant.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 1 // letters that are wrong
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		return fmt.Errorf("there is no command %q; did you mean %s?", args[0], strings.Join(meant, " or "))
	}
	return fmt.Errorf("there is no command %q; see %s --help", args[0], cmd.CommandPath())
}

// arguments returns the names of a command's arguments, which stand in its Use before the flags.
func arguments(cmd *cobra.Command) (names []string) {
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		names = append(names, word)
	}
	return names
}

// Words requires one argument per name, and says which is missing. An argument with a name
// in brackets is optional; the last one may be there more than once when its name has "...".
func Words(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) && name[0] != '[' {
				return fmt.Errorf("which %s? the command is: %s", name, cmd.UseLine())
			}
		}
		isOpen := len(names) > 0 && strings.Contains(names[len(names)-1], "...")
		if len(args) > len(names) && !isOpen {
			return fmt.Errorf("%q is one argument too many; the command is: %s", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}

// Arg returns an argument, "" when it was not given.
func (c *Call) Arg(i int) string {
	if i < len(c.Args) {
		return c.Args[i]
	}
	return ""
}

// maxFile is how many bytes a file may have.
const maxFile = 64 << 20

// ReadFile reads a file of at most 64 MiB, or for "-" stdin, unless that is nil. It also ends with ctx.
func ReadFile(ctx context.Context, file string, stdin io.Reader) ([]byte, error) {
	return Until(ctx, func() ([]byte, error) {
		from := stdin
		if file != "-" || stdin == nil {
			f, err := os.Open(file)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			from = f
		}
		text, err := io.ReadAll(io.LimitReader(from, maxFile+1))
		if err == nil && len(text) > maxFile {
			err = fmt.Errorf("%s has more than %d MiB", file, maxFile>>20)
		}
		return text, err
	})
}

// Until returns what read returns, or the error of ctx when that ends first: the open of a pipe
// without a writer, or of a file of a server that is away, knows no context.
func Until[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	var none T
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := read()
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// ReplaceFile writes a file. Another command that reads it sees the old one or the new one.
func ReplaceFile(path string, text []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new") // one for each command
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(mode)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// Version returns the version of the module that the linker recorded. That of a build in a
// repository names the revision, and whether files had changed.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
