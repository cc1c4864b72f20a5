package processes

import (
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func logs() *cobra.Command {
	var (
		limit    int32
		follow   bool
		contains string
	)
	cmd := cli.TextCommand(&cobra.Command{
		Use:   "logs ID",
		Short: "Show the last lines of a process's log",
		Long: `Show the last lines of a process's log, those that the process keeps for it:
at most 1000. It needs the role inspector. With --follow it then shows each new line,
and goes on when the process has restarted under the same id, until it is interrupted.`,
		Example: `  lifecyclectl logs web-7d4b9-x2x4z --limit 50
  lifecyclectl logs web-7d4b9-x2x4z --follow --contains ERROR`,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteProcesses,
	}, cli.OfProcess, func(c *cli.Call) error {
		req := &operatorv1.GetLogsRequest{Id: c.Args[0], Limit: limit}
		if contains != "" {
			req.Limit = 1000
		}
		ctx, stop := cli.WhileRead(c.Context(), c.OutOrStdout())
		defer stop()
		for first := true; ; first = false {
			answer, err := c.Processes.GetLogs(ctx, req)
			switch {
			case ctx.Err() != nil && follow:
				return nil
			case err != nil && (first || !mayAnswerAgain(err)):
				return err
			}
			var text []byte
			if n := answer.GetMissed(); n > 0 {
				text = fmt.Appendf(text, "… %d lines are not kept any more\n", n)
			}
			for _, l := range answer.GetLines() {
				if strings.Contains(l.GetText(), contains) {
					text = append(text, output.Printable(l.GetText())+"\n"...)
				}
				req.After = l.GetSeq()
			}
			if err := c.Send(text); err != nil || !follow {
				return err
			}
			req.Limit = 1000
			if !cli.Pause(ctx, cli.PollEvery/2) {
				return nil
			}
		}
	})
	cmd.Flags().Int32Var(&limit, "limit", 200, "at most this `many`, the newest, before --contains; 1 to 1000")
	cmd.Flags().StringVar(&contains, "contains", "", "only lines with this `text`, of all that are kept")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "then show each new line")
	return cmd
}

// mayAnswerAgain reports whether a process that has answered does not answer at this moment: it
// restarts, or the server does.
func mayAnswerAgain(err error) bool {
	code := connect.CodeOf(err)
	return code == connect.CodeUnavailable || code == connect.CodeNotFound || !connect.IsWireError(err)
}

func stacks() *cobra.Command {
	return cli.TextCommand(&cobra.Command{
		Use:   "stacks ID",
		Short: "Show the stacks of all goroutines of a process: where it hangs",
		Long: `Show the stacks of all goroutines of a process, as a panic would: where it hangs,
and for how long. It works until the process's last hook, so it shows a stop that hangs
too. It needs the role inspector. A process with more than 1000 goroutines shows each
different stack once, with how many goroutines have it.`,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteProcesses,
	}, cli.OfProcess, func(c *cli.Call) error {
		answer, err := c.Processes.GetStacks(c.Context(), &operatorv1.GetStacksRequest{Id: c.Args[0]})
		if err != nil {
			return err
		}
		return c.Send([]byte(strings.TrimRight(output.PrintableText(answer.GetText()), "\n") + "\n"))
	})
}
