package workers

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func timers() *cobra.Command {
	var limit int
	cmd := cli.Command(&cobra.Command{
		Use:   "timers ID",
		Short: "Show the timers that a worker has set",
		Long: `Show the timers that a worker has set, in the order in which it has, each with its
key, when it is due, and the beginning of its data. It needs the role operator.`,
		Example:           `  lifecyclectl workers timers counter`,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		list, err := cli.Pages(limit, func(size int32, token string) ([]*operatorv1.WorkerTimer, string, error) {
			req := &operatorv1.ListWorkerTimersRequest{Id: c.Args[0], PageSize: size, PageToken: token}
			page, err := c.Workers.ListWorkerTimers(c.Context(), req)
			return page.GetTimers(), page.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return c.Write(&operatorv1.ListWorkerTimersResponse{Timers: list}, func(t *output.Table) {
			t.Head("NAME", "KEY", "DUE", "FAILED", "DATA")
			for _, timer := range list {
				t.Row(timer.GetName(), timer.GetKey(), output.Moment(timer.GetDue()), fmt.Sprint(timer.GetFailed()),
					preview(timer.GetData(), timer.GetSize()))
			}
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this `many` timers; 0 is all")
	return cmd
}

func cancelTimer() *cobra.Command {
	var key string
	cmd := cli.Command(&cobra.Command{
		Use:   "cancel-timer ID NAME",
		Short: "Remove a timer of a worker before it is due",
		Long: `Remove a timer of a worker before it is due, also of a worker that is stopped. A
timer that the worker handles at this moment is not affected. It needs the role operator.`,
		Example:           `  lifecyclectl workers cancel-timer counter report --key alice`,
		Args:              cli.Words("ID", "NAME"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		answer, err := c.Workers.CancelWorkerTimer(c.Context(), &operatorv1.CancelWorkerTimerRequest{Id: c.Args[0], Name: c.Args[1], Key: key})
		if err != nil {
			return err
		}
		return c.Write(answer, func(t *output.Table) { t.Row(c.Args[1], output.Good("cancelled")) })
	})
	cmd.Flags().StringVar(&key, "key", "", "the `key` of the timer, as workers timers shows it")
	_ = cmd.MarkFlagRequired("key") // the flag exists
	return cmd
}
