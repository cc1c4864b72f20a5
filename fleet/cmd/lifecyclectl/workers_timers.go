package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func workerTimersCommand(r *remote) *cobra.Command {
	var (
		o     output
		limit int
	)
	cmd := &cobra.Command{
		Use:   "timers ID",
		Short: "Show the timers that a worker has set",
		Long: `Show the timers that a worker has set, in the order in which it has, each with its
key, when it is due, and the beginning of its data. It needs the role operator.`,
		Example: `  lifecyclectl workers timers counter`,
		Args:    words("ID"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return fmt.Errorf("--limit is %d, want 0 for all or more", limit)
			}
			all := &operatorv1.ListWorkerTimersResponse{}
			req := &operatorv1.ListWorkerTimersRequest{Id: args[0]}
			for more := true; more; more = req.GetPageToken() != "" && (limit == 0 || len(all.GetTimers()) < limit) {
				req.PageSize = pageSize(limit, len(all.GetTimers()))
				page, err := a.Workers.ListWorkerTimers(cmd.Context(), req)
				if err != nil {
					return err
				}
				all.Timers = append(all.Timers, page.GetTimers()...)
				req.PageToken = page.GetNextPageToken()
			}
			return o.write(cmd.OutOrStdout(), all, func(t *table) {
				t.head("NAME", "KEY", "DUE", "FAILED", "DATA")
				for _, timer := range all.GetTimers() {
					t.row(timer.GetName(), timer.GetKey(), moment(timer.GetDue()), fmt.Sprint(timer.GetFailed()), preview(timer.GetData(), timer.GetSize()))
				}
			})
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this `many` timers; 0 is all")
	o.register(cmd)
	return cmd
}

func workerCancelTimerCommand(r *remote) *cobra.Command {
	var (
		o   output
		key string
	)
	cmd := &cobra.Command{
		Use:   "cancel-timer ID NAME",
		Short: "Remove a timer of a worker before it is due",
		Long: `Remove a timer of a worker before it is due, also of a worker that is stopped. A
timer that the worker handles at this moment is not affected. It needs the role operator.`,
		Example: `  lifecyclectl workers cancel-timer counter report --key alice`,
		Args:    words("ID", "NAME"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			answer, err := a.Workers.CancelWorkerTimer(cmd.Context(), &operatorv1.CancelWorkerTimerRequest{Id: args[0], Name: args[1], Key: key})
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), answer, func(t *table) { t.row(args[1], cell{"cancelled", good}) })
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	cmd.Flags().StringVar(&key, "key", "", "the `key` of the timer, as workers timers shows it")
	_ = cmd.MarkFlagRequired("key") // the flag exists
	o.register(cmd)
	return cmd
}
