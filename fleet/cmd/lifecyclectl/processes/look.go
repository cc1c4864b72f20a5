package processes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/endclass"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func describe() *cobra.Command {
	return cli.TextCommand(&cobra.Command{
		Use:   "describe ID",
		Short: "Describe a process: what is wrong with it, its state, and its latest events",
		Long: `Describe a process: what is wrong with it and what to do next, its phases, units
and probes, and its latest events. It also describes a process that has ended, from
the journal.`,
	}, cli.OfProcess, func(c *cli.Call) error {
		past, unread, err := latestEvents(c)
		if err != nil {
			return err
		}
		p, err := c.Processes.GetProcess(c.Context(), &operatorv1.GetProcessRequest{Id: c.Args[0]})
		if err != nil && len(past) == 0 {
			return err
		}
		t := output.NewTable(c.OutOrStdout())
		id := p.GetId() // the argument may lack the service
		if err == nil {
			processTable(t, p)
		} else { // it has ended, or does not announce itself any more
			id = past[0].GetProcess()
			t.Line("id", id)
			t.Line("service", past[0].GetService())
			t.Line("version", past[0].GetVersion())
			t.Line("host", past[0].GetHost())
			t.Row(output.Faint("state"), output.Wait(goneState(past)))
		}
		found, err := c.Processes.Diagnose(c.Context(), &operatorv1.DiagnoseRequest{Process: id})
		if err != nil {
			return err
		}
		if unread != "" {
			t.Line("events", "cannot be read now: "+unread)
		}
		t.Gap()
		if len(found.GetFindings()) == 0 {
			t.Row("nothing is known to be wrong")
		} else {
			findingTable(t, found.GetFindings())
		}
		if len(past) > 0 {
			slices.Reverse(past)
			t.Gap()
			eventTable(t, past)
		}
		return c.Send(t.Text())
	})
}

// goneState says what is known of a process that does not announce itself, by its latest events,
// newest first.
func goneState(past []*operatorv1.Event) string {
	i := slices.IndexFunc(past, func(e *operatorv1.Event) bool { return e.GetKind() == "exit" || e.GetKind() == "lost" })
	if i >= 0 && past[i].GetKind() == "lost" && past[i].GetTo() == endclass.Lost {
		return "lost: it does not announce itself; it was killed, it is frozen, or its network is cut"
	}
	return "ended"
}

// latestEvents returns the latest events of the process, the newest first, or why they
// cannot be read now.
func latestEvents(c *cli.Call) (list []*operatorv1.Event, unread string, err error) {
	page, err := c.Processes.ListEvents(c.Context(), &operatorv1.ListEventsRequest{Process: c.Args[0], PageSize: 20})
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		return nil, client.Message(err), nil
	case connect.CodeUnimplemented: // the server has no journal
		return nil, "", nil
	}
	return page.GetEvents(), "", err
}

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
	}, cli.OfNothing, func(c *cli.Call) error {
		if since > 0 {
			req.Since = timestamppb.New(time.Now().Add(-since))
		}
		newest := cli.NewestFirst(c.Processes.ListEvents, eventKey)
		return cli.List[*operatorv1.Event]{
			Head:    []string{"AT", "PROCESS", "WHAT", "WHY"},
			Widths:  []int{20, 28, 40, 20},
			Cells:   eventCells,
			Look:    func(ctx context.Context) (proto.Message, error) { return newest(ctx, limit, &req) },
			Key:     eventKey,
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
	f.IntVar(&limit, "limit", 100, "at most `N`, the newest; 0 is all")
	f.BoolVarP(&watch, "watch", "w", false, "then show each new event")
	return cmd
}

// eventKey identifies an event. A journal on a new disk has the numbers once more.
func eventKey(e *operatorv1.Event) string {
	return fmt.Sprint(e.GetSeq(), " ", e.GetAt().AsTime().UnixNano())
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
	case e.GetKind() == "lost", e.GetKind() == "forged", e.GetKind() == "exit" && e.GetTo() != endclass.Clean:
		return output.Red
	case e.GetKind() == "restart", e.GetKind() == "dropped", e.GetTo() == "down", e.GetTo() == "Failed", e.GetTo() == "Killed":
		return output.Yellow
	}
	return ""
}

func config() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "config ID",
		Short: "Show the configuration of a process, with the source of each value",
		Long: `Show the configuration of a process as the process itself reports it: each key, its
value, and where that was given: a line of a file, a variable of the environment, a flag,
or the default. It also shows reloads that were refused, and why. It needs the role
inspector. Secrets never leave the process.`,
		Example: `  lifecyclectl processes config web-7d4b9-x2x4z`,
	}, cli.OfProcess, func(c *cli.Call) error {
		answer, err := c.Processes.GetConfig(c.Context(), &operatorv1.GetConfigRequest{Id: c.Args[0]})
		return c.Answer(answer, err, func(t *output.Table) { configTable(t, answer) })
	})
}

// configTable lists settings, and the reloads that were refused.
func configTable(t *output.Table, answer *operatorv1.GetConfigResponse) {
	t.Head("KEY", "VALUE", "SOURCE", "IN PLACE OF")
	for _, s := range answer.GetSettings() {
		value := s.GetValue()
		if now := s.GetInForce(); now != "" {
			value += " (" + now + " until the next start)"
		}
		source := output.In("", s.GetSource())
		if s.GetSource() == "default" {
			source = output.Faint(s.GetSource())
		}
		t.Row(s.GetKey(), value, source, strings.Join(s.GetLost(), "; "))
	}
	if answer.GetTruncated() {
		t.Row("… the configuration is larger than an answer")
	}
	if len(answer.GetReloads()) > 0 {
		t.Gap()
		t.Head("RELOAD", "RESULT", "WHY")
		for _, s := range answer.GetReloads() {
			t.Row(s.GetName(), output.State(s.GetResult()), s.GetError())
		}
	}
}

func logs() *cobra.Command {
	var (
		limit  int32
		follow bool
	)
	cmd := cli.TextCommand(&cobra.Command{
		Use:   "logs ID",
		Short: "Show the last lines of a process's log",
		Long: `Show the last lines of a process's log, those that the process keeps for it:
at most 1000. It needs the role inspector. With --follow it then shows each new line,
and goes on when the process has restarted under the same id, until it is interrupted.`,
		Example: `  lifecyclectl logs web-7d4b9-x2x4z --limit 50
  lifecyclectl logs web-7d4b9-x2x4z --follow`,
	}, cli.OfProcess, func(c *cli.Call) error {
		req := &operatorv1.GetLogsRequest{Id: c.Args[0], Limit: limit}
		read := func(ctx context.Context) (*operatorv1.GetLogsResponse, error) {
			answer, err := c.Processes.GetLogs(ctx, req)
			if req.GetAfter() > 0 && connect.CodeOf(err) == connect.CodeNotFound {
				return nil, nil //nolint:nilnil // it restarts, and has no new line
			}
			return answer, err
		}
		show := func(answer *operatorv1.GetLogsResponse) error {
			var text []byte
			if n := answer.GetMissed(); n > 0 {
				text = fmt.Appendf(text, "… %d lines are not kept any more\n", n)
			}
			for _, l := range answer.GetLines() {
				text = append(text, output.Printable(l.GetText())+"\n"...)
				req.After = l.GetSeq()
			}
			req.Limit = 1000
			return c.Send(text)
		}
		if follow {
			return cli.Watch(c, read, show)
		}
		answer, err := read(c.Context())
		if err != nil {
			return err
		}
		return show(answer)
	})
	cmd.Flags().Int32Var(&limit, "limit", 200, "at most `N`, the newest; 1 to 1000")
	cmd.Flags().BoolVar(&follow, "follow", false, "then show each new line")
	return cmd
}

func stacks() *cobra.Command {
	return cli.TextCommand(&cobra.Command{
		Use:   "stacks ID",
		Short: "Show the stacks of all goroutines of a process: where it hangs",
		Long: `Show the stacks of all goroutines of a process, as a panic would: where it hangs,
and for how long. It works until the process's last hook, so it shows a stop that hangs
too. It needs the role inspector. A process with more than 1000 goroutines shows each
different stack once, with how many goroutines have it.`,
	}, cli.OfProcess, func(c *cli.Call) error {
		answer, err := c.Processes.GetStacks(c.Context(), &operatorv1.GetStacksRequest{Id: c.Args[0]})
		if err != nil {
			return err
		}
		return c.Send([]byte(strings.TrimRight(output.PrintableText(answer.GetText()), "\n") + "\n"))
	})
}
