package processes

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func describe() *cobra.Command {
	return cli.TextCommand(&cobra.Command{
		Use:   "describe ID",
		Short: "Describe a process: what is wrong with it, its state, and its latest events",
		Long: `Describe a process: what is wrong with it and what to do next, its phases, units
and probes, and its latest events. It also describes a process that has ended, from
the journal.`,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteProcesses,
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
		} else { // it has ended
			id = past[0].GetProcess()
			t.Line("id", id)
			t.Line("service", past[0].GetService())
			t.Line("version", past[0].GetVersion())
			t.Line("host", past[0].GetHost())
			t.Row(output.Faint("state"), output.Wait("ended"))
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

// latestEvents returns the latest events of the process, the newest first, or why they
// cannot be read now.
func latestEvents(c *cli.Call) (list []*operatorv1.Event, unread string, err error) {
	page, err := c.Processes.ListEvents(c.Context(), &operatorv1.ListEventsRequest{Process: c.Args[0], PageSize: 20})
	switch {
	case cli.IsUnavailable(err):
		return nil, cli.Message(err), nil
	case cli.IsNotServed(err):
		return nil, "", nil
	}
	return page.GetEvents(), "", err
}
