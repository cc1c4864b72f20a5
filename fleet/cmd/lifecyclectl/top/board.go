package top

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/processes"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// board is what top shows: the processes of a fleet, and how many entities of each workflow
// are in each phase.
type board struct {
	url  string
	lost error // why the server did not answer the latest question, nil when it did

	hasProcesses bool // the server has processes to show
	processes    []*operatorv1.Process
	definitions  []*operatorv1.Definition
}

// look asks the server for the board.
func look(ctx context.Context, s *cli.Server) (board, error) {
	b := board{url: s.URL}
	var err error
	b.processes, err = cli.Pages(0, func(size int32, token string) ([]*operatorv1.Process, string, error) {
		page, err := s.Processes.ListProcesses(ctx, &operatorv1.ListProcessesRequest{PageSize: size, PageToken: token})
		return page.GetProcesses(), page.GetNextPageToken(), err
	})
	b.hasProcesses = err == nil
	if err != nil && !cli.IsNotServed(err) {
		return b, err
	}
	definitions, err := s.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{})
	if err != nil && !cli.IsNotServed(err) {
		return b, err
	}
	b.definitions = definitions.GetDefinitions()
	return b, nil
}

// lines returns the board as text in the colours that w supports, with lines of any length.
func (b board) lines(w io.Writer, now time.Time) []string {
	t := output.NewTable(w)
	t.Row(output.Strong(b.url))
	if b.lost != nil {
		t.Row(output.Bad(fmt.Sprintf("lost the server (%s); trying again; this is the last known state", cli.Message(b.lost))))
	}
	if b.hasProcesses {
		t.Gap()
		b.addProcesses(t, now)
	}
	if len(b.definitions) > 0 {
		t.Gap()
		b.addWorkflows(t)
	}
	return strings.Split(strings.TrimSuffix(string(t.Text()), "\n"), "\n")
}

func (b board) addProcesses(t *output.Table, now time.Time) {
	list := slices.SortedFunc(slices.Values(b.processes), func(x, y *operatorv1.Process) int {
		return cmp.Or(strings.Compare(x.GetService(), y.GetService()), strings.Compare(x.GetId(), y.GetId()))
	})
	ready := 0
	for _, p := range list {
		if p.GetReady() {
			ready++
		}
	}
	t.Row(output.Strong(fmt.Sprintf("%d processes, %d ready", len(list), ready)))
	t.Head("SERVICE", "PROCESS", "PHASE", "READY", "UNITS", "IN FLIGHT", "AGE", "REASON")
	for _, p := range list {
		why := cmp.Or(p.GetSuspended(), p.GetReason())
		t.Row(p.GetService(), p.GetId(), output.State(p.GetPhase()), processes.ReadyCell(p), processes.Units(p),
			fmt.Sprint(processes.InFlight(p)), output.Age(p.GetStartedAt(), now), why)
	}
}

func (b board) addWorkflows(t *output.Table) {
	t.Row(output.Strong(fmt.Sprintf("%d workflows", len(b.definitions))))
	t.Head("TYPE", "ENTITIES", "PHASES")
	for _, d := range b.definitions {
		var counts []string
		for _, p := range d.GetPhases() {
			if p.GetCount() > 0 {
				counts = append(counts, fmt.Sprintf("%s %d", p.GetName(), p.GetCount()))
			}
		}
		if d.GetDegraded() > 0 { // in a phase that the table does not have
			counts = append(counts, fmt.Sprintf("degraded! %d", d.GetDegraded()))
		}
		t.Row(d.GetType(), fmt.Sprint(d.GetTotal()), strings.Join(counts, "  "))
	}
}
