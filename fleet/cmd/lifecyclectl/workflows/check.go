package workflows

import (
	"context"
	"fmt"
	"io"
	"slices"

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
		next, err := readTable(c.Context(), file, c.InOrStdin())
		if err != nil {
			return err
		}
		orphans, err := listEntities(c.Context(), c, &operatorv1.ListEntitiesRequest{Type: c.Args[0]}, 0)
		if err != nil {
			return err
		}
		orphans = slices.DeleteFunc(orphans, func(e *operatorv1.Entity) bool { return why(e, next) == "" })
		err = c.Write(&operatorv1.ListEntitiesResponse{Entities: orphans}, func(t *output.Table) {
			if len(orphans) == 0 {
				t.Row("no entity is orphaned")
				return
			}
			t.Head("ID", "PHASE", "WHY")
			for _, e := range orphans {
				t.Row(e.GetId(), output.State(e.GetPhase()), output.Bad(why(e, next)))
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
func readTable(ctx context.Context, file string, stdin io.Reader) (fsm.Table[string], error) {
	data, err := cli.ReadFile(ctx, file, stdin)
	if err != nil {
		return nil, err
	}
	var definition struct {
		Transitions fsm.Table[string] `yaml:"transitions"`
	}
	// A phase may be called "transitions" too: then its value is a list, no object.
	var next fsm.Table[string]
	if err := yaml.Unmarshal(data, &definition); err == nil && definition.Transitions != nil {
		next = definition.Transitions
	} else if err := yaml.Unmarshal(data, &next); err != nil {
		return nil, fmt.Errorf("%s is not a table of phases, such as {\"planning\": [\"flying\"], \"flying\": []}: %w", file, err)
	}
	if err := next.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return next, nil
}

// why says what the new table does to an entity, "" when it keeps it.
func why(e *operatorv1.Entity, next fsm.Table[string]) string {
	switch {
	case !next.Has(e.GetPhase()):
		return "the new table does not have the phase"
	case len(e.GetNext()) > 0 && next.IsTerminal(e.GetPhase()):
		return "the phase is terminal in the new table"
	}
	return ""
}
