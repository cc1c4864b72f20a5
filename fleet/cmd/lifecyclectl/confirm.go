package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/muesli/cancelreader"
	"github.com/spf13/cobra"
)

// consent is the confirmation of an action that cannot be undone.
type consent struct{ given bool }

func (c *consent) register(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.given, "yes", "y", false, "do not ask")
}

// ask says what will happen and returns nil when the user agrees. Without a
// terminal it refuses.
func (c *consent) ask(cmd *cobra.Command, what string) error {
	if c.given {
		return nil
	}
	if !terminal(cmd.InOrStdin()) || !terminal(cmd.ErrOrStderr()) {
		return fmt.Errorf("%s There is no terminal on which to ask: confirm with --yes", what)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s Continue? [y/N] ", printable(what))
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
		return &failure{status: exitFindings, err: errors.New("not done")}
	}
	return nil
}

// progress shows the progress of long work on a terminal, on one line that it
// rewrites. Elsewhere it writes nothing.
type progress struct {
	w    io.Writer
	stop chan struct{}
	done chan struct{}
	says chan string
}

// begin starts to show what runs and for how long. The caller must call end.
func begin(w io.Writer, what string) *progress {
	p := &progress{w: w, stop: make(chan struct{}), done: make(chan struct{}), says: make(chan string)}
	if !terminal(w) {
		close(p.done)
		return p
	}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		started := time.Now()
		for shown := false; ; {
			select {
			case <-p.stop:
				if shown {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			case what = <-p.says:
			case <-tick.C:
				shown = true
				fmt.Fprintf(w, "\r\x1b[K%s … %ds", printable(what), int(time.Since(started).Seconds()))
			}
		}
	}()
	return p
}

// say replaces the text.
func (p *progress) say(format string, args ...any) {
	select {
	case p.says <- fmt.Sprintf(format, args...):
	case <-p.done:
	}
}

// end removes the line and waits for that.
func (p *progress) end() {
	close(p.stop)
	<-p.done
}
