package workers

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func list() *cobra.Command {
	var (
		req   operatorv1.ListWorkersRequest
		watch bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "list",
		Short: "List the hosted workers",
		Args:  cli.Words(),
	}, cli.OfWorker, func(c *cli.Call) error {
		return cli.List[*operatorv1.Worker]{
			Head:   []string{"ID", "STATE", "DESIRED", "TOPICS", "GROUP", "BACKLOG", "DEAD", "CANARY", "HOST", "AGE", "ERROR"},
			Widths: []int{20, 9, 9, 20, 8, 7, 4, 6, 16, 4},
			Cells: func(w *operatorv1.Worker) []any {
				return []any{
					w.GetId(), output.State(w.GetState()), w.GetDesired(), strings.Join(w.GetTopics(), ","), w.GetGroup(),
					fmt.Sprint(w.GetBacklog()), fmt.Sprint(w.GetDeadLetters()), percent(w.GetCanary()), w.GetHost(),
					output.Age(w.GetCreatedAt(), time.Now()), output.Bad(w.GetError()),
				}
			},
			Look: func(ctx context.Context) ([]*operatorv1.Worker, error) {
				return cli.Pages(0, func(size int32, token string) ([]*operatorv1.Worker, string, error) {
					req.PageSize, req.PageToken = size, token
					page, err := c.Workers.ListWorkers(ctx, &req)
					return page.GetWorkers(), page.GetNextPageToken(), err
				})
			},
			Answer: func(list []*operatorv1.Worker) proto.Message { return &operatorv1.ListWorkersResponse{Workers: list} },
			Key:    (*operatorv1.Worker).GetId,
		}.Show(c, watch)
	})
	cmd.Flags().StringVar(&req.State, "state", "", "only those in this `state`")
	cmd.Flags().StringVar(&req.Group, "group", "", "only those of this `group`")
	cli.WatchFlag(cmd, &watch)
	return cmd
}

func history() *cobra.Command {
	var watch bool
	cmd := cli.Command(&cobra.Command{
		Use:               "history ID",
		Short:             "Show the versions of a worker's code and their results",
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		var answer *operatorv1.GetWorkerHistoryResponse
		return cli.List[*operatorv1.CodeVersion]{
			Head:   []string{"", "AT", "DIGEST", "SOURCE", "BY", "BYTES", "SUCCEEDED", "FAILED", "DEAD"},
			Widths: []int{1, 20, 16, 16, 8, 6, 9, 6},
			Cells:  versionCells,
			Look: func(ctx context.Context) (list []*operatorv1.CodeVersion, err error) {
				answer, err = c.Workers.GetWorkerHistory(ctx, &operatorv1.GetWorkerHistoryRequest{Id: c.Args[0]})
				return answer.GetVersions(), err
			},
			Answer: func([]*operatorv1.CodeVersion) proto.Message { return answer },
			Key:    func(v *operatorv1.CodeVersion) string { return v.GetDigest() + " " + output.Moment(v.GetAt()) },
		}.Show(c, watch)
	})
	cli.WatchFlag(cmd, &watch)
	return cmd
}

func versionCells(v *operatorv1.CodeVersion) []any {
	now := v.GetRollout()
	if v.GetCurrent() {
		now = "*"
	}
	succeeded, failed := "-", "-" // only the host that runs it knows
	if v.GetCounted() {
		succeeded, failed = fmt.Sprint(v.GetSucceeded()), fmt.Sprint(v.GetFailed())
	}
	return []any{
		now, output.Moment(v.GetAt()), v.GetDigest(), v.GetSource(), v.GetWho(), fmt.Sprint(v.GetBytes()),
		succeeded, failed, fmt.Sprint(v.GetDeadLettered()),
	}
}
