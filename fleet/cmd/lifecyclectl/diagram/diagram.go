// Package diagram has the command that draws: the table of a workflow with the way of an
// entity, the units of a process, and the tables of this library, as Mermaid, DOT or SVG.
// The pictures are made by packages fsm, worker and fleet/internal/diagram.
//
// Begin at [Command].
package diagram

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagram"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Command returns the command diagram.
func Command() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "diagram",
		Short: "Draw a workflow, the units of a process, or a table of this library",
		Example: `  lifecyclectl diagram workflow drone-survey m-17 -o svg > m-17.svg
  lifecyclectl diagram process web-7f9c -o dot | dot -Tpng > web.png
  lifecyclectl diagram table app`,
	}, drawWorkflow(), drawProcess(), drawTable())
}

// withFormats adds the flag -o to a command that draws.
func withFormats(cmd *cobra.Command) *cobra.Command {
	formats := []string{"mermaid", "dot", "svg"}
	format := cmd.Flags().StringP("output", "o", "mermaid", "`format`: mermaid, dot or svg")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if !slices.Contains(formats, *format) {
			return fmt.Errorf("-o is %q, want mermaid, dot or svg", *format)
		}
		return nil
	}
	return cmd
}

func formatOf(cmd *cobra.Command) string { return cmd.Flags().Lookup("output").Value.String() }

func drawWorkflow() *cobra.Command {
	return withFormats(cli.TextCommand(&cobra.Command{
		Use:   "workflow TYPE [ID]",
		Short: "Draw the table of a workflow, and where one entity is and has been",
	}, cli.OfWorkflow, func(c *cli.Call) error {
		typ, id := c.Args[0], c.Arg(1)
		definition, err := c.Workflows.GetDefinition(c.Context(), &operatorv1.GetDefinitionRequest{Type: typ})
		if err != nil {
			return err
		}
		d := drawingOf(definition)
		if id != "" {
			if err := d.addEntity(c, typ, id); err != nil {
				return err
			}
		}
		return c.Send([]byte(d.in(formatOf(c.Command))))
	}))
}

// drawing is a table of states, for any format.
type drawing struct {
	title            string
	table            fsm.Table[string]
	order            []string // of the states
	initial, current string
	been             map[fsm.Edge[string]]int
}

func drawingOf(definition *operatorv1.Definition) drawing {
	d := drawing{title: definition.GetType(), table: fsm.Table[string]{}, been: map[fsm.Edge[string]]int{}}
	for _, p := range definition.GetPhases() {
		d.table[p.GetName()] = p.GetNext()
		d.order = append(d.order, p.GetName())
	}
	return d
}

// addEntity adds where an entity is and has been.
func (d *drawing) addEntity(c *cli.Call, typ, id string) error {
	h, err := c.Workflows.GetHistory(c.Context(), &operatorv1.GetHistoryRequest{Type: typ, Id: id})
	if err != nil {
		return err
	}
	e, err := c.Workflows.GetEntity(c.Context(), &operatorv1.GetEntityRequest{Type: typ, Id: id})
	if err != nil {
		return err
	}
	d.title += "/" + id
	d.current = e.GetPhase()
	for _, x := range h.GetEntries() {
		if x.GetFrom() != "" {
			d.been[fsm.Edge[string]{From: x.GetFrom(), To: x.GetTo()}]++
		}
	}
	return nil
}

// in returns the drawing in a format.
func (d *drawing) in(format string) string {
	if format == "svg" {
		states := make([]diagram.State, len(d.order))
		for i, s := range d.order {
			states[i] = diagram.State{Name: s, Next: d.table[s]}
		}
		been := map[diagram.Edge]int{}
		for e, n := range d.been {
			been[diagram.Edge{From: e.From, To: e.To}] = n
		}
		return diagram.File(states, diagram.Drawing{Title: d.title, Initial: d.initial, Current: d.current, Been: been})
	}
	drawn := fsm.Drawing[string]{
		Initial: d.initial,
		Current: d.current,
		Label: func(e fsm.Edge[string]) string {
			if n := d.been[e]; n > 0 {
				return fmt.Sprintf("%d×", n)
			}
			return ""
		},
	}
	if format == "dot" {
		return d.table.DOT(drawn)
	}
	return d.table.Mermaid(drawn)
}

// tables are the tables of this library, by name.
var tables = map[string]drawing{
	"app":    ownTable("app", lifecycle.Phases(), lifecycle.PhaseCreated),
	"worker": ownTable("worker", worker.Transitions(), worker.StatusCreated),
}

func ownTable[S ~string](title string, t fsm.Table[S], initial S) drawing {
	d := drawing{title: title, table: fsm.Table[string]{}, initial: string(initial)}
	for _, s := range t.Phases() {
		next := make([]string, 0, len(t[s]))
		for _, to := range t[s] {
			next = append(next, string(to))
		}
		d.table[string(s)] = next
		d.order = append(d.order, string(s))
	}
	return d
}

func drawTable() *cobra.Command {
	names := slices.Sorted(maps.Keys(tables))
	return withFormats(&cobra.Command{
		Use:       "table NAME",
		Short:     "Draw a table of this library: " + strings.Join(names, " or ") + "; needs no server",
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, ok := tables[args[0]]
			if !ok {
				if meant := suggest.Nearest(args[0], names); meant != "" {
					return fmt.Errorf("there is no table %q; did you mean %s?", args[0], meant)
				}
				return fmt.Errorf("there is no table %q: want %s", args[0], strings.Join(names, " or "))
			}
			return output.Send(cmd.OutOrStdout(), []byte(d.in(formatOf(cmd))))
		},
	})
}

func drawProcess() *cobra.Command {
	return withFormats(cli.TextCommand(&cobra.Command{
		Use:   "process ID",
		Short: "Draw the units of a process as a tree, each with its status",
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
