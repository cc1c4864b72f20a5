package workflows

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fsm"
)

func check() *cobra.Command {
	var file string
	cmd := cli.Command(&cobra.Command{
		Use:   "check TYPE --table FILE",
		Short: "Name the entities that a new table would orphan",
		Long: `Name the entities that a new table of phases would orphan: a gate for a release.

FILE is the new table as JSON or YAML, an object with a list of next phases for
each phase: {"planning": ["flying"], "flying": []}. It may also be a whole
definition, with the table under "transitions". - is the standard input.

An entity is orphaned when its phase is not in the new table. It is also named
when its phase has next phases now and none in the new table: then it would
count as terminal. Without such entities the exit status is 0, else 1.`,
		Example: `  lifecyclectl workflows check drone-survey --table table.json`,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		next, err := readTable(file, c.InOrStdin())
		if err != nil {
			return err
		}
		d, err := c.Workflows.GetDefinition(c.Context(), &operatorv1.GetDefinitionRequest{Type: c.Args[0]})
		if err != nil {
			return err
		}
		orphans, err := orphansOf(c, d, next)
		if err != nil {
			return err
		}
		err = c.Write(&operatorv1.ListEntitiesResponse{Entities: orphans}, func(t *output.Table) {
			if len(orphans) == 0 {
				t.Row("no entity is orphaned")
				return
			}
			t.Head("ID", "PHASE", "WHY")
			for _, e := range orphans {
				t.Row(e.GetId(), output.State(e.GetPhase()), output.Bad(why(next, e.GetPhase())))
			}
		})
		if err == nil && len(orphans) > 0 {
			err = cli.Exit(cli.ExitFindings)
		}
		return err
	})
	cmd.Flags().StringVar(&file, "table", "", "the new table, a JSON or YAML `file`; - is the standard input")
	_ = cmd.MarkFlagRequired("table") // the flag exists
	return cmd
}

// readTable reads and checks a table of phases.
func readTable(file string, stdin io.Reader) (fsm.Table[string], error) {
	data, err := cli.ReadFile(file, stdin)
	if err != nil {
		return nil, err
	}
	var definition struct {
		Transitions fsm.Table[string] `yaml:"transitions"`
	}
	// A phase may be called "transitions" too: then its value is a list, no object.
	if err := yaml.Unmarshal(data, &definition); err == nil && definition.Transitions != nil {
		return definition.Transitions, checkTable(file, definition.Transitions)
	}
	var next fsm.Table[string]
	if err := yaml.Unmarshal(data, &next); err != nil {
		return nil, fmt.Errorf("%s is not a table of phases, such as {\"planning\": [\"flying\"], \"flying\": []}: %w", file, err)
	}
	return next, checkTable(file, next)
}

func checkTable(file string, next fsm.Table[string]) error {
	if err := next.Validate(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// orphansOf returns the entities whose phase the new table lost or made terminal.
func orphansOf(c *cli.Call, d *operatorv1.Definition, next fsm.Table[string]) (found []*operatorv1.Entity, err error) {
	known := make(map[string]bool)
	for _, p := range d.GetPhases() {
		known[p.GetName()] = true
		isLost := !next.Has(p.GetName()) || len(p.GetNext()) > 0 && next.IsTerminal(p.GetName())
		if !isLost || p.GetCount() == 0 {
			continue
		}
		list, err := listEntities(c, &operatorv1.ListEntitiesRequest{Type: d.GetType(), Phase: p.GetName()}, 0)
		if err != nil {
			return nil, err
		}
		found = append(found, list...)
	}
	if d.GetDegraded() > 0 { // some are in a phase that even the present table does not have
		list, err := listEntities(c, &operatorv1.ListEntitiesRequest{Type: d.GetType(), Active: true}, 0)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if !known[e.GetPhase()] && !next.Has(e.GetPhase()) {
				found = append(found, e)
			}
		}
	}
	slices.SortFunc(found, func(a, b *operatorv1.Entity) int { return strings.Compare(a.GetId(), b.GetId()) })
	return found, nil
}

// why says what a new table does to the entities of a phase.
func why(next fsm.Table[string], phase string) string {
	if !next.Has(phase) {
		return "the new table does not have the phase"
	}
	return "the phase is terminal in the new table"
}
