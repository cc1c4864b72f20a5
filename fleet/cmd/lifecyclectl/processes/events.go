package processes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func events() *cobra.Command {
	var (
		req   operatorv1.ListEventsRequest
		limit int
		since time.Duration
		watch bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "events",
		Short: "Show what happened in the fleet, also in processes that have ended",
		Long: `Show what happened in the fleet, oldest first: each phase, restart, change of a
probe, reload, command and end of a process. The journal keeps events for days.
A "lost" is a process that disappeared without a word.`,
		Example: `  lifecyclectl events --since 1h --kind exit,lost
  lifecyclectl events --process web-7d4b9-x2x4z
  lifecyclectl events --service web --watch`,
		Args: cli.Words(),
	}, cli.OfNothing, func(c *cli.Call) error {
		if since > 0 {
			req.Since = timestamppb.New(time.Now().Add(-since))
		}
		return cli.List[*operatorv1.Event]{
			Head:   []string{"AT", "PROCESS", "WHAT", "WHY"},
			Widths: []int{20, 28, 40, 20},
			Cells:  eventCells,
			Look: func(ctx context.Context) ([]*operatorv1.Event, error) {
				list, err := listEvents(ctx, c, &req, limit)
				slices.Reverse(list)
				limit = 1000 // of each further look
				return list, err
			},
			Answer:  func(list []*operatorv1.Event) proto.Message { return &operatorv1.ListEventsResponse{Events: list} },
			Key:     func(e *operatorv1.Event) string { return fmt.Sprint(e.GetSeq()) },
			OnlyNew: true,
			Plain:   true,
		}.Show(c, watch)
	})
	f := cmd.Flags()
	f.StringVar(&req.Service, "service", "", "only those of this `service`")
	f.StringVar(&req.Process, "process", "", "only those of the process with this `id`")
	f.StringSliceVar(&req.Kinds, "kind", nil, "only these `kinds`, such as exit,lost,restart")
	f.StringVar(&req.Contains, "contains", "", "only those with this `text`")
	f.DurationVar(&since, "since", 0, "only those of the last `time`, such as 1h")
	f.IntVar(&limit, "limit", 100, "at most this `many`, the newest; 0 is all")
	f.BoolVarP(&watch, "watch", "w", false, "then show each new event")
	return cmd
}

// listEvents returns the newest events first, at most limit of them unless it is 0.
func listEvents(ctx context.Context, c *cli.Call, req *operatorv1.ListEventsRequest, limit int) ([]*operatorv1.Event, error) {
	return cli.Pages(limit, func(size int32, token string) ([]*operatorv1.Event, string, error) {
		req.PageSize, req.PageToken = size, token
		page, err := c.Processes.ListEvents(ctx, req)
		return page.GetEvents(), page.GetNextPageToken(), err
	})
}

func eventTable(t *output.Table, list []*operatorv1.Event) {
	t.Head("AT", "PROCESS", "WHAT", "WHY")
	for _, e := range list {
		t.Row(eventCells(e)...)
	}
}

func eventCells(e *operatorv1.Event) []any {
	return []any{output.Moment(e.GetAt()), e.GetProcess(), output.In(Tone(e), what(e)), causeOf(e)}
}

// what says what happened.
func what(e *operatorv1.Event) string {
	text := e.GetKind()
	if e.GetName() != "" {
		text += " " + e.GetName()
	}
	switch {
	case e.GetFrom() != "" && e.GetTo() != "":
		text += " " + e.GetFrom() + " -> " + e.GetTo()
	case e.GetTo() != "":
		text += " " + e.GetTo()
	}
	if n := e.GetCount(); n > 1 {
		text += fmt.Sprintf(" (%d times)", n)
	}
	return text
}

func causeOf(e *operatorv1.Event) string {
	text := e.GetCause()
	if e.GetWho() != "" {
		text = strings.TrimSpace(text + " by " + e.GetWho())
	}
	if e.GetExitStatus() != 0 {
		text = strings.TrimSpace(fmt.Sprintf("%s, exit status %d", text, e.GetExitStatus()))
	}
	return text
}

// Tone returns the colour of an event.
func Tone(e *operatorv1.Event) output.Colour {
	switch {
	case e.GetKind() == "lost", e.GetKind() == "forged", e.GetKind() == "exit" && e.GetTo() != diagnosis.EndClean:
		return output.Red
	case e.GetKind() == "restart", e.GetKind() == "dropped", e.GetTo() == "down", e.GetTo() == "Failed", e.GetTo() == "Killed":
		return output.Yellow
	}
	return ""
}
