package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagram"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
	"github.com/pleme-io/lifecycle-go/worker"
)

// picture is the format of a diagram: the value of -o.
type picture struct{ format string }

func (p *picture) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&p.format, "output", "o", "mermaid", "`format`: mermaid, dot or svg")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"mermaid", "dot", "svg"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

func (p *picture) check() error {
	switch p.format {
	case "mermaid", "dot", "svg":
		return nil
	}
	return fmt.Errorf("-o is %q, want mermaid, dot or svg", p.format)
}

func diagramCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "diagram",
		Short: "Draw a workflow, the units of a process, or a table of this library",
		Example: `  lifecyclectl diagram workflow drone-survey m-17 -o svg > m-17.svg
  lifecyclectl diagram process web-7f9c -o dot | dot -Tpng > web.png
  lifecyclectl diagram table app`,
	}, diagramWorkflowCommand(), diagramProcessCommand(), diagramTableCommand())
}

func diagramWorkflowCommand() *cobra.Command {
	var (
		r remote
		p picture
	)
	cmd := &cobra.Command{
		Use:   "workflow TYPE [ID]",
		Short: "Draw the table of a workflow, and where one entity is and has been",
		Args:  words("TYPE", "[ID]"),
		RunE: asks(&r, &output{format: "table"}, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			d, err := a.Workflows.GetDefinition(cmd.Context(), &operatorv1.GetDefinitionRequest{Type: args[0]})
			if err != nil {
				return err
			}
			picture := tableOf(d)
			if len(args) > 1 {
				h, err := a.Workflows.GetHistory(cmd.Context(), &operatorv1.GetHistoryRequest{Type: args[0], Id: args[1]})
				if err != nil {
					return err
				}
				e, err := a.Workflows.GetEntity(cmd.Context(), &operatorv1.GetEntityRequest{Type: args[0], Id: args[1]})
				if err != nil {
					return err
				}
				picture.title += "/" + args[1]
				picture.current = e.GetPhase()
				for _, x := range h.GetEntries() {
					if x.GetFrom() != "" {
						picture.been[fsm.Edge[string]{From: x.GetFrom(), To: x.GetTo()}]++
					}
				}
			}
			return send(cmd.OutOrStdout(), []byte(picture.draw(p.format)))
		}),
		ValidArgsFunction: completeEntities(&r),
	}
	p.register(cmd)
	r.register(cmd)
	return cmd
}

// drawing is a table of states, for any format.
type drawing struct {
	title            string
	table            fsm.Table[string]
	order            []string // of the states
	initial, current string
	added            []fsm.Edge[string]
	been             map[fsm.Edge[string]]int
}

func tableOf(d *operatorv1.Definition) drawing {
	p := drawing{title: d.GetType(), table: fsm.Table[string]{}, been: map[fsm.Edge[string]]int{}}
	for _, x := range d.GetPhases() {
		p.table[x.GetName()] = x.GetNext()
		p.order = append(p.order, x.GetName())
	}
	return p
}

func (p drawing) draw(format string) string {
	if format == "svg" {
		states := make([]diagram.State, len(p.order))
		for i, s := range p.order {
			states[i] = diagram.State{Name: s, Next: p.table[s]}
		}
		been := map[diagram.Edge]int{}
		for e, n := range p.been {
			been[diagram.Edge{From: e.From, To: e.To}] = n
		}
		return diagram.File(states, diagram.Drawing{Title: p.title, Initial: p.initial, Current: p.current, Been: been})
	}
	d := fsm.Drawing[string]{Initial: p.initial, Current: p.current, Added: p.added, Label: func(e fsm.Edge[string]) string {
		if n := p.been[e]; n > 0 {
			return fmt.Sprintf("%d×", n)
		}
		return ""
	}}
	if format == "dot" {
		return p.table.DOT(d)
	}
	return p.table.Mermaid(d)
}

// tables are the tables of this library, by name.
var tables = map[string]func() drawing{
	"app": func() drawing { return ownTable("app", lifecycle.Phases(), lifecycle.PhaseCreated, nil) },
	"worker": func() drawing {
		return ownTable("worker", worker.Transitions(), worker.StatusCreated, worker.AddedEdges())
	},
}

func ownTable[S ~string](title string, t fsm.Table[S], initial S, added []fsm.Edge[S]) drawing {
	d := drawing{title: title, table: fsm.Table[string]{}, initial: string(initial)}
	for _, s := range t.Phases() {
		next := make([]string, 0, len(t[s]))
		for _, to := range t[s] {
			next = append(next, string(to))
		}
		d.table[string(s)] = next
		d.order = append(d.order, string(s))
	}
	for _, e := range added {
		d.added = append(d.added, fsm.Edge[string]{From: string(e.From), To: string(e.To)})
	}
	return d
}

func diagramTableCommand() *cobra.Command {
	var p picture
	names := slices.Sorted(maps.Keys(tables))
	cmd := &cobra.Command{
		Use:       "table NAME",
		Short:     "Draw a table of this library: " + strings.Join(names, " or ") + "; needs no server",
		ValidArgs: names,
		Args:      words("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.check(); err != nil {
				return err
			}
			table, ok := tables[args[0]]
			if !ok {
				if meant := suggest.Nearest(args[0], names); meant != "" {
					return fmt.Errorf("there is no table %q; did you mean %s?", args[0], meant)
				}
				return fmt.Errorf("there is no table %q: want %s", args[0], strings.Join(names, " or "))
			}
			return send(cmd.OutOrStdout(), []byte(table().draw(p.format)))
		},
	}
	p.register(cmd)
	return cmd
}
