package workers

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// keptLines is how many lines of a worker the hosts keep.
const keptLines = 1000

func logs() *cobra.Command {
	var (
		tail   int32
		follow bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "logs ID",
		Short: "Show what the code of a worker printed, and the errors of its messages",
		Long: `Show what the code of a worker printed, and the errors of its messages, oldest
first. The hosts keep the newest 1000 lines of each worker for a week, whichever host
ran it. It needs the role operator.`,
		Example: `  lifecyclectl workers logs thumbs --tail 20
  lifecyclectl workers logs thumbs --follow`,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		if tail < 1 || tail > keptLines {
			return fmt.Errorf("--tail is %d, want 1 to %d", tail, keptLines)
		}
		if follow {
			return followLogs(c, tail)
		}
		page, err := c.Workers.ReadWorkerLogs(c.Context(), &operatorv1.ReadWorkerLogsRequest{Id: c.Args[0], PageSize: tail})
		if err != nil {
			return err
		}
		for _, l := range page.GetLines() {
			if err := showLine(c, l); err != nil {
				return err
			}
		}
		return nil
	})
	cmd.Flags().Int32Var(&tail, "tail", 100, "the newest `lines`")
	cmd.Flags().BoolVar(&follow, "follow", false, "then show each new line, until it is interrupted")
	return cmd
}

// showLine writes a line of a log.
func showLine(c *cli.Call, l *operatorv1.WorkerLogLine) error {
	if !c.Format.IsTable() {
		return c.Format.Item(c.OutOrStdout(), l)
	}
	t := output.NewTable(c.OutOrStdout())
	text := output.In("", l.GetText())
	if l.GetError() {
		text = output.Bad("! " + l.GetText())
	}
	t.Row(output.Faint(output.Moment(l.GetAt())), text)
	return c.Send(t.Text())
}

func followLogs(c *cli.Call, tail int32) error {
	ctx, stop := cli.WhileRead(c.Context(), c.OutOrStdout())
	defer stop()
	last := int64(0)
	type lines = connect.ServerStreamForClient[operatorv1.FollowWorkerLogsResponse]
	return cli.Follow(ctx, c.Notices(), func(ctx context.Context) (*lines, error) {
		if last > 0 {
			tail = keptLines // what was printed while the server was away
		}
		return c.Workers.FollowWorkerLogs(ctx, &operatorv1.FollowWorkerLogsRequest{Id: c.Args[0], Tail: tail})
	}, func() {}, func(m *operatorv1.FollowWorkerLogsResponse) error {
		l := m.GetLine()
		if l.GetNumber() <= last {
			return nil
		}
		last = l.GetNumber()
		return showLine(c, l)
	})
}
