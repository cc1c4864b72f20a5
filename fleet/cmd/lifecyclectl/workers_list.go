package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// allWorkers lists the hosted workers, page by page.
func allWorkers(ctx context.Context, a *api, req *operatorv1.ListWorkersRequest) (list []*operatorv1.Worker, err error) {
	for req.PageSize, req.PageToken = 1000, ""; ; {
		page, err := a.Workers.ListWorkers(ctx, req)
		if err != nil {
			return nil, err
		}
		list = append(list, page.GetWorkers()...)
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return list, nil
		}
	}
}

func workerListCommand(r *remote) *cobra.Command {
	var (
		o      output
		req    operatorv1.ListWorkersRequest
		follow bool
	)
	cells := func(w *operatorv1.Worker) []any {
		return []any{
			w.GetId(), state(w.GetState()), w.GetDesired(), strings.Join(w.GetTopics(), ","), w.GetGroup(),
			fmt.Sprint(w.GetBacklog()), fmt.Sprint(w.GetDeadLetters()), percent(w.GetCanary()), w.GetHost(), age(w.GetCreatedAt(), time.Now()), cell{w.GetError(), bad},
		}
	}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the hosted workers",
		Args:  words(),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, _ []string) error {
			p := polled[*operatorv1.Worker]{
				head: []string{"ID", "STATE", "DESIRED", "TOPICS", "GROUP", "BACKLOG", "DEAD", "CANARY", "HOST", "AGE", "ERROR"}, widths: []int{20, 9, 9, 20, 8, 7, 4, 6, 16, 4},
				look:  func(ctx context.Context) ([]*operatorv1.Worker, error) { return allWorkers(ctx, a, &req) },
				key:   (*operatorv1.Worker).GetId,
				cells: cells,
			}
			if follow {
				return p.watch(a, cmd, &o)
			}
			list, err := p.look(cmd.Context())
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), &operatorv1.ListWorkersResponse{Workers: list}, func(t *table) {
				t.head(p.head...)
				for _, w := range list {
					t.row(cells(w)...)
				}
			})
		}),
	}
	cmd.Flags().StringVar(&req.State, "state", "", "only those in this `state`")
	cmd.Flags().StringVar(&req.Group, "group", "", "only those of this `group`")
	watchFlag(cmd, &follow)
	o.register(cmd)
	return cmd
}

func workerHistoryCommand(r *remote) *cobra.Command {
	var (
		o      output
		follow bool
	)
	cells := func(v *operatorv1.CodeVersion) []any {
		now := v.GetRollout()
		if v.GetCurrent() {
			now = "*"
		}
		succeeded, failed := "-", "-" // only the host that runs it knows
		if v.GetCounted() {
			succeeded, failed = fmt.Sprint(v.GetSucceeded()), fmt.Sprint(v.GetFailed())
		}
		return []any{now, moment(v.GetAt()), v.GetDigest(), v.GetSource(), v.GetWho(), fmt.Sprint(v.GetBytes()), succeeded, failed, fmt.Sprint(v.GetDeadLettered())}
	}
	cmd := &cobra.Command{
		Use:   "history ID",
		Short: "Show the versions of a worker's code and their results",
		Args:  words("ID"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			head := []string{"", "AT", "DIGEST", "SOURCE", "BY", "BYTES", "SUCCEEDED", "FAILED", "DEAD"}
			look := func(ctx context.Context) (*operatorv1.GetWorkerHistoryResponse, error) {
				return a.Workers.GetWorkerHistory(ctx, &operatorv1.GetWorkerHistoryRequest{Id: args[0]})
			}
			if follow {
				return polled[*operatorv1.CodeVersion]{
					head: head, widths: []int{1, 20, 16, 16, 8, 6, 9, 6},
					look: func(ctx context.Context) ([]*operatorv1.CodeVersion, error) {
						h, err := look(ctx)
						return h.GetVersions(), err
					},
					key:   func(v *operatorv1.CodeVersion) string { return v.GetDigest() + " " + moment(v.GetAt()) },
					cells: cells,
				}.watch(a, cmd, &o)
			}
			h, err := look(cmd.Context())
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), h, func(t *table) {
				t.head(head...)
				for _, v := range h.GetVersions() {
					t.row(cells(v)...)
				}
			})
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	watchFlag(cmd, &follow)
	o.register(cmd)
	return cmd
}
