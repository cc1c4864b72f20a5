package diagram

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagram"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/worker"
)

func drawProcess() *cobra.Command {
	return withFormats(cli.TextCommand(&cobra.Command{
		Use:               "process ID",
		Short:             "Draw the units of a process as a tree, each with its status",
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteProcesses,
	}, cli.OfProcess, func(c *cli.Call) error {
		p, err := c.Processes.GetProcess(c.Context(), &operatorv1.GetProcessRequest{Id: c.Args[0]})
		if err != nil {
			return err
		}
		return c.Send([]byte(drawTree(treeOf(p), formatOf(c.Command))))
	}))
}

// treeOf returns a process as the root of its units, for package worker to draw. The
// contract has the statuses of package worker.
func treeOf(p *operatorv1.Process) worker.State {
	root := worker.State{Name: p.GetId(), Kind: p.GetService(), Status: worker.StatusRunning, Reason: "phase " + p.GetPhase()}
	switch lifecycle.Phase(p.GetPhase()) {
	case lifecycle.PhaseCreated, lifecycle.PhaseStarting:
		root.Status = worker.StatusStarting
	case lifecycle.PhaseDraining, lifecycle.PhaseStopping:
		root.Status = worker.StatusStopping
	}
	root.Children = statesOf(p.GetUnits())
	return root
}

func statesOf(list []*operatorv1.Unit) []worker.State {
	states := make([]worker.State, len(list))
	for i, u := range list {
		states[i] = worker.State{
			Name:     u.GetName(),
			Kind:     u.GetKind(),
			Status:   worker.Status(u.GetStatus()),
			Health:   worker.Health(u.GetHealth()),
			Reason:   u.GetReason(),
			Restarts: int(u.GetRestarts()),
			Children: statesOf(u.GetChildren()),
		}
	}
	return states
}

func drawTree(root worker.State, format string) string {
	switch format {
	case "dot":
		return root.DOT()
	case "mermaid":
		return root.Mermaid()
	}
	var states []diagram.State
	var add func(worker.State) (name string)
	add = func(w worker.State) string {
		i := len(states)
		name := strconv.Itoa(i) // a unit's name may occur twice
		states = append(states, diagram.State{
			Name:  name,
			Label: w.Name,
			Note:  string(w.Status),
			Class: classOf(string(w.Status)),
		})
		for _, c := range w.Children {
			next := add(c)
			states[i].Next = append(states[i].Next, next)
		}
		return name
	}
	add(root)
	return diagram.File(states, diagram.Drawing{Title: root.Name})
}

// classOf returns the class of the picture's style for a status.
func classOf(status string) string {
	switch output.ColourOf(status) {
	case output.Green:
		return "good"
	case output.Red:
		return "bad"
	case output.Yellow:
		return "wait"
	}
	return "over"
}
