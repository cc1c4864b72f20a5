// Package diagram has the command that draws the table of a workflow, with the way of an
// entity, as Mermaid, DOT or SVG. Packages fsm and fleet/internal/diagram make the pictures.
//
// Begin at [Command].
package diagram

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagram"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fsm"
)

// Command returns the command diagram.
func Command() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:   "diagram",
		Short: "Draw a workflow",
		Example: `  lifecyclectl diagram workflow drone-survey m-17 -o svg > m-17.svg
  lifecyclectl diagram workflow drone-survey -o dot | dot -Tpng > drone-survey.png`,
	}, drawWorkflow())
}

var formats = []string{"mermaid", "dot", "svg"}

func drawWorkflow() *cobra.Command {
	var format string
	cmd := cli.TextCommand(&cobra.Command{
		Use:   "workflow TYPE [ID]",
		Short: "Draw the table of a workflow, and where one entity is and has been",
	}, cli.OfWorkflow, func(c *cli.Call) error {
		if !slices.Contains(formats, format) {
			return fmt.Errorf("-o is %q, want mermaid, dot or svg", format)
		}
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
		return c.Send([]byte(d.in(format)))
	})
	cmd.Flags().StringVarP(&format, "output", "o", "mermaid", "`format`: mermaid, dot or svg")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

// drawing is a table of states, for any format.
type drawing struct {
	diagram.Drawing
	states []diagram.State
}

func drawingOf(definition *operatorv1.Definition) (d drawing) {
	d.Title, d.Been = definition.GetType(), map[diagram.Edge]int{}
	for _, p := range definition.GetPhases() {
		d.states = append(d.states, diagram.State{Name: p.GetName(), Next: p.GetNext()})
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
	d.Title += "/" + id
	d.Current = e.GetPhase()
	for _, x := range h.GetEntries() {
		if x.GetFrom() != "" && x.GetPause() == "" {
			d.Been[diagram.Edge{From: x.GetFrom(), To: x.GetTo()}]++
		}
	}
	return nil
}

func (d *drawing) in(format string) string {
	if format == "svg" {
		return diagram.File(d.states, d.Drawing)
	}
	table := fsm.Table[string]{}
	for _, s := range d.states {
		table[s.Name] = s.Next
	}
	drawn := fsm.Drawing[string]{
		Current: d.Current,
		Label: func(e diagram.Edge) string {
			if n := d.Been[e]; n > 0 {
				return fmt.Sprintf("%d×", n)
			}
			return ""
		},
	}
	if format == "dot" {
		return table.DOT(drawn)
	}
	return table.Mermaid(drawn)
}
