package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// pollEvery is the pause between two looks of a command that follows a journal.
const pollEvery = 2 * time.Second

func eventsCommand() *cobra.Command {
	var (
		r      remote
		o      output
		req    operatorv1.ListEventsRequest
		limit  int
		since  time.Duration
		follow bool
	)
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened in the fleet, also in processes that have ended",
		Long: `Show what happened in the fleet, oldest first: each phase, restart, change of a
probe, reload, command and end of a process. The journal keeps events for days.
A "lost" is a process that disappeared without a word.`,
		Example: `  lifecyclectl events --since 1h --kind exit,lost
  lifecyclectl events --process web-7d4b9-x2x4z
  lifecyclectl events --service web --watch`,
		Args: words(),
		RunE: asks(&r, &o, noSubject, func(a *api, cmd *cobra.Command, _ []string) error {
			if since > 0 {
				req.Since = timestamppb.New(time.Now().Add(-since))
			}
			all := &operatorv1.ListEventsResponse{}
			for more := true; more; more = req.GetPageToken() != "" && (limit == 0 || len(all.GetEvents()) < limit) {
				req.PageSize = pageSize(limit, len(all.GetEvents()))
				page, err := a.Processes.ListEvents(cmd.Context(), &req)
				if err != nil {
					return err
				}
				all.Events = append(all.Events, page.GetEvents()...)
				req.PageToken = page.GetNextPageToken()
			}
			slices.Reverse(all.GetEvents())
			if !follow {
				return o.write(cmd.OutOrStdout(), all, func(t *table) { eventTable(t, all.GetEvents()) })
			}
			return followEvents(a, cmd, &o, &req, all.GetEvents())
		}),
	}
	f := cmd.Flags()
	f.StringVar(&req.Service, "service", "", "only those of this `service`")
	f.StringVar(&req.Process, "process", "", "only those of the process with this `id`")
	f.StringSliceVar(&req.Kinds, "kind", nil, "only these `kinds`, such as exit,lost,restart")
	f.StringVar(&req.Contains, "contains", "", "only those with this `text`")
	f.DurationVar(&since, "since", 0, "only those of the last `time`, such as 1h")
	f.IntVar(&limit, "limit", 100, "at most this `many`, the newest; 0 is all")
	f.BoolVarP(&follow, "watch", "w", false, "then show each new event")
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// followEvents shows events, and then new ones until the command is interrupted.
func followEvents(a *api, cmd *cobra.Command, o *output, req *operatorv1.ListEventsRequest, list []*operatorv1.Event) error {
	out := &rows{w: cmd.OutOrStdout(), o: o, head: []string{"AT", "PROCESS", "WHAT", "WHY"}, widths: []int{20, 28, 40, 20}}
	ctx, stop := whileRead(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	if err := out.begin(); err != nil {
		return err
	}
	last := uint64(0)
	req.PageToken, req.PageSize = "", 1000
	for {
		for _, e := range list {
			if e.GetSeq() <= last {
				continue
			}
			last = e.GetSeq()
			if err := out.add(e, moment(e.GetAt()), e.GetProcess(), what(e), causeOf(e)); err != nil {
				return err
			}
		}
		pause := time.NewTimer(pollEvery)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
		page, err := a.Processes.ListEvents(ctx, req)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		list = page.GetEvents()
		slices.Reverse(list)
	}
}

func eventTable(t *table, list []*operatorv1.Event) {
	t.head("AT", "PROCESS", "WHAT", "WHY")
	for _, e := range list {
		t.row(moment(e.GetAt()), e.GetProcess(), cell{what(e), tone(e)}, causeOf(e))
	}
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

// tone returns the colour of an event.
func tone(e *operatorv1.Event) colour {
	switch {
	case e.GetKind() == "lost", e.GetKind() == "forged", e.GetKind() == "exit" && e.GetTo() != "clean":
		return bad
	case e.GetKind() == "restart", e.GetKind() == "dropped", e.GetTo() == "down", e.GetTo() == "Failed", e.GetTo() == "Killed":
		return wait
	}
	return ""
}

// describeEvents is how many events describe shows.
const describeEvents = 20

func describeCommand() *cobra.Command {
	var (
		r      remote
		config bool
	)
	cmd := &cobra.Command{
		Use:   "describe ID",
		Short: "Describe a process: what is wrong with it, its state, and its latest events",
		Long: `Describe a process: what is wrong with it and what to do next, its phases, units
and probes, and its latest events. It also describes a process that has ended, from
the journal. With --config it also shows the configuration with the source of each
value, which needs the role inspector.`,
		Args: words("ID"),
		RunE: asks(&r, &output{format: "table"}, ofProcess, func(a *api, cmd *cobra.Command, args []string) error {
			t := &table{colours: colourful(cmd.OutOrStdout())}
			past, err := a.Processes.ListEvents(cmd.Context(), &operatorv1.ListEventsRequest{Process: args[0], PageSize: describeEvents})
			unread := ""
			switch {
			case unavailable(err):
				unread = message(err)
			case err != nil && !notServed(err):
				return err
			}
			p, err := a.Processes.GetProcess(cmd.Context(), &operatorv1.GetProcessRequest{Id: args[0]})
			switch {
			case err == nil:
				processTable(t, p)
			case len(past.GetEvents()) > 0: // it has ended
				last := past.GetEvents()[0]
				t.line("id", last.GetProcess())
				t.line("service", last.GetService())
				t.line("version", last.GetVersion())
				t.line("host", last.GetHost())
				t.row(cell{"state", faint}, cell{"ended", wait})
			default:
				return err
			}
			id := p.GetId() // the argument may lack the service
			if id == "" {
				id = past.GetEvents()[0].GetProcess()
			}
			found, err := a.Processes.Diagnose(cmd.Context(), &operatorv1.DiagnoseRequest{Process: id})
			if err != nil {
				return err
			}
			findings := &table{colours: t.colours}
			findingTable(findings, found.GetFindings())
			if unread != "" {
				t.line("events", "cannot be read now: "+unread)
			}
			events := slices.Clone(past.GetEvents())
			slices.Reverse(events)
			history := &table{colours: t.colours}
			eventTable(history, events)
			if config && p != nil {
				answer, err := a.Processes.GetConfig(cmd.Context(), &operatorv1.GetConfigRequest{Id: id})
				t.gap()
				switch {
				case refused(err):
					t.line("configuration", message(err))
				case err != nil:
					return err
				default:
					configTable(t, answer)
				}
			}
			text := append(t.text(), '\n')
			if len(found.GetFindings()) == 0 {
				text = append(text, "nothing is known to be wrong\n"...)
			} else {
				text = append(text, findings.text()...)
			}
			if len(events) > 0 {
				text = append(append(text, '\n'), history.text()...)
			}
			return send(cmd.OutOrStdout(), text)
		}),
		ValidArgsFunction: completeProcesses(&r),
	}
	cmd.Flags().BoolVar(&config, "config", false, "also show its configuration")
	r.register(cmd)
	return cmd
}

// unavailable reports whether the server has answered that a service behind it does not
// answer.
func unavailable(err error) bool {
	code := connect.CodeOf(err)
	return connect.IsWireError(err) && (code == connect.CodeUnavailable || code == connect.CodeDeadlineExceeded)
}

// findingTable lists findings with what to do.
func findingTable(t *table, list []*operatorv1.Finding) {
	t.head("RULE", "SUBJECT", "SINCE", "COUNT", "CAUSE", "CHANGE", "NEXT")
	now := time.Now()
	for _, f := range list {
		colour := wait
		if f.GetSeverity() == "error" {
			colour = bad
		}
		since := "-"
		if f.GetSince() != nil {
			since = age(f.GetSince(), now)
		}
		t.row(cell{f.GetRule(), colour}, f.GetSubject(), since, fmt.Sprint(f.GetCount()), f.GetCause(), f.GetChange(), f.GetNext())
	}
}
