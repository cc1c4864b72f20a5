package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/muesli/cancelreader"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
)

// Consent is the confirmation of an action that cannot be undone.
type Consent struct{ Given bool }

// Register adds the flag --yes.
func (c *Consent) Register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.Given, "yes", "y", false, "do not ask")
}

// Ask says what will happen and returns nil when the user agrees. Without a
// terminal it refuses.
func (c *Consent) Ask(cmd *cobra.Command, what string) error {
	if c.Given {
		return nil
	}
	if !output.IsTerminal(cmd.InOrStdin()) || !output.IsTerminal(cmd.ErrOrStderr()) {
		return fmt.Errorf("%s There is no terminal on which to ask: confirm with --yes", what)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s Continue? [y/N] ", output.Printable(what))
	in, err := cancelreader.NewReader(cmd.InOrStdin())
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	defer in.Close()
	stop := context.AfterFunc(cmd.Context(), func() { in.Cancel() })
	defer stop()
	line, err := bufio.NewReader(in).ReadString('\n')
	switch answer := strings.ToLower(strings.TrimSpace(line)); {
	case cmd.Context().Err() != nil:
		fmt.Fprintln(cmd.ErrOrStderr())
		return context.Canceled
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read the answer: %w", err)
	case answer != "y" && answer != "yes":
		return Fail(ExitFindings, "not done")
	}
	return nil
}

// DryRunNote is the end of a line about something that a dry run did not do.
func DryRunNote(isDryRun bool) string {
	if isDryRun {
		return " (dry run: nothing has changed)"
	}
	return ""
}

// Progress shows on a terminal what runs, on one line that it rewrites. Elsewhere it writes
// nothing. One goroutine at a time may use it.
type Progress struct{ terminal io.Writer }

// Begin shows what runs. The caller must call End.
func Begin(w io.Writer, what string) *Progress {
	p := new(Progress)
	if output.IsTerminal(w) {
		p.terminal = w
	}
	p.Say("%s", what)
	return p
}

// Say replaces the text.
func (p *Progress) Say(format string, args ...any) {
	if p.terminal != nil {
		fmt.Fprintf(p.terminal, "\r\x1b[K%s …", output.Printable(fmt.Sprintf(format, args...)))
	}
}

// End removes the line. It may be called more than once, and before Say.
func (p *Progress) End() {
	if p.terminal != nil {
		fmt.Fprint(p.terminal, "\r\x1b[K")
	}
}
