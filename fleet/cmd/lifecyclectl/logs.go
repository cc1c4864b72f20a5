package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func logsCommand() *cobra.Command {
	var (
		r        remote
		limit    int32
		follow   bool
		contains string
	)
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Show the last lines of a process's log",
		Long: `Show the last lines of a process's log, those that the process keeps for it:
at most 1000. It needs the role inspector. With --follow it then shows each new line,
and goes on when the process has restarted under the same id, until it is interrupted.`,
		Example: `  lifecyclectl logs web-7d4b9-x2x4z --limit 50
  lifecyclectl logs web-7d4b9-x2x4z --follow --contains ERROR`,
		Args: words("ID"),
		RunE: asks(&r, &output{format: "table"}, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			req := &operatorv1.GetLogsRequest{Id: args[0], Limit: limit}
			if contains != "" {
				req.Limit = 1000
			}
			ctx, stop := whileRead(cmd.Context(), cmd.OutOrStdout())
			defer stop()
			for first := true; ; first = false {
				answer, err := a.Processes.GetLogs(ctx, req)
				switch {
				case ctx.Err() != nil && follow:
					return nil
				case err != nil && (first || !silent(err)):
					return err
				}
				var text []byte
				if n := answer.GetMissed(); n > 0 {
					text = fmt.Appendf(text, "… %d lines are not kept any more\n", n)
				}
				for _, l := range answer.GetLines() {
					if strings.Contains(l.GetText(), contains) {
						text = append(text, printable(l.GetText())+"\n"...)
					}
					req.After = l.GetSeq()
				}
				if err := send(cmd.OutOrStdout(), text); err != nil || !follow {
					return err
				}
				req.Limit = 1000
				if !pause(ctx, pollEvery/2) {
					return nil
				}
			}
		}),
		ValidArgsFunction: completeProcesses(&r),
	}
	cmd.Flags().Int32Var(&limit, "limit", 200, "at most this `many`, the newest, before --contains; 1 to 1000")
	cmd.Flags().StringVar(&contains, "contains", "", "only lines with this `text`, of all that are kept")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "then show each new line")
	r.register(cmd)
	return cmd
}

// silent reports whether a process that has answered does not answer at this moment: it
// restarts, or the server does.
func silent(err error) bool {
	code := connect.CodeOf(err)
	return code == connect.CodeUnavailable || code == connect.CodeNotFound || !connect.IsWireError(err)
}

// pause waits, and returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func stacksCommand() *cobra.Command {
	var r remote
	cmd := &cobra.Command{
		Use:   "stacks ID",
		Short: "Show the stacks of all goroutines of a process: where it hangs",
		Long: `Show the stacks of all goroutines of a process, as a panic would: where it hangs,
and for how long. It works until the process's last hook, so it shows a stop that hangs
too. It needs the role inspector. A process with more than 1000 goroutines shows each
different stack once, with how many goroutines have it.`,
		Args: words("ID"),
		RunE: asks(&r, &output{format: "table"}, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			answer, err := a.Processes.GetStacks(cmd.Context(), &operatorv1.GetStacksRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return send(cmd.OutOrStdout(), []byte(strings.TrimRight(tabbed(answer.GetText()), "\n")+"\n"))
		}),
		ValidArgsFunction: completeProcesses(&r),
	}
	r.register(cmd)
	return cmd
}

// tabbed makes a text safe for a terminal, and keeps its lines and tabs.
func tabbed(text string) string {
	parts := strings.Split(text, "\t")
	for i, p := range parts {
		parts[i] = printableLines(p)
	}
	return strings.Join(parts, "\t")
}
