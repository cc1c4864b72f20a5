package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fsm"
)

func workflowsCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "workflows",
		Short: "Commands about whole workflows",
	}, workflowsCheckCommand(), workflowsBackupCommand(), workflowsRestoreCommand())
}

func workflowsCheckCommand() *cobra.Command {
	var (
		r    remote
		o    output
		file string
	)
	cmd := &cobra.Command{
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
		Args:    words("TYPE"),
		RunE: asks(&r, &o, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			next, err := readTable(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			d, err := a.Workflows.GetDefinition(cmd.Context(), &operatorv1.GetDefinitionRequest{Type: args[0]})
			if err != nil {
				return err
			}
			orphans, err := orphansOf(cmd.Context(), a, d, next)
			if err != nil {
				return err
			}
			err = o.write(cmd.OutOrStdout(), orphans, func(t *table) {
				if len(orphans.GetEntities()) == 0 {
					t.row("no entity is orphaned")
					return
				}
				t.head("ID", "PHASE", "WHY")
				for _, e := range orphans.GetEntities() {
					t.row(e.GetId(), state(e.GetPhase()), cell{orphaned(next, e.GetPhase()), bad})
				}
			})
			if err == nil && len(orphans.GetEntities()) > 0 {
				err = exitStatus(exitFindings)
			}
			return err
		}),
		ValidArgsFunction: completeTypes(&r),
	}
	cmd.Flags().StringVar(&file, "table", "", "the new table, a JSON or YAML `file`; - is the standard input")
	_ = cmd.MarkFlagRequired("table") // the flag exists
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// readTable reads and checks a table of phases.
func readTable(file string, stdin io.Reader) (fsm.Table[string], error) {
	var data []byte
	var err error
	if file == "-" {
		data, err = io.ReadAll(io.LimitReader(stdin, 1<<20))
	} else {
		data, err = os.ReadFile(file)
	}
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
func orphansOf(ctx context.Context, a *api, d *operatorv1.Definition, next fsm.Table[string]) (*operatorv1.ListEntitiesResponse, error) {
	found := &operatorv1.ListEntitiesResponse{}
	known := make(map[string]bool)
	for _, p := range d.GetPhases() {
		known[p.GetName()] = true
		lost := !next.Has(p.GetName()) || len(p.GetNext()) > 0 && next.IsTerminal(p.GetName())
		if !lost || p.GetCount() == 0 {
			continue
		}
		if err := listAll(ctx, a, &operatorv1.ListEntitiesRequest{Type: d.GetType(), Phase: p.GetName()}, found, nil); err != nil {
			return nil, err
		}
	}
	if d.GetDegraded() > 0 { // some are in a phase that even the present table does not have
		err := listAll(ctx, a, &operatorv1.ListEntitiesRequest{Type: d.GetType(), Active: true}, found, func(e *operatorv1.Entity) bool {
			return !known[e.GetPhase()] && !next.Has(e.GetPhase())
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(found.GetEntities(), func(a, b *operatorv1.Entity) int { return strings.Compare(a.GetId(), b.GetId()) })
	return found, nil
}

// listAll appends the entities of all pages for which is returns true; nil is all.
func listAll(ctx context.Context, a *api, req *operatorv1.ListEntitiesRequest, all *operatorv1.ListEntitiesResponse, is func(*operatorv1.Entity) bool) error {
	req.PageSize = 1000
	for {
		page, err := a.Workflows.ListEntities(ctx, req)
		if err != nil {
			return err
		}
		for _, e := range page.GetEntities() {
			if is == nil || is(e) {
				all.Entities = append(all.Entities, e)
			}
		}
		if page.GetNextPageToken() == "" {
			return nil
		}
		if page.GetNextPageToken() == req.GetPageToken() {
			return errors.New("the server sends the same page again")
		}
		req.PageToken = page.GetNextPageToken()
	}
}

// orphaned says what a new table does to the entities of a phase.
func orphaned(next fsm.Table[string], phase string) string {
	if !next.Has(phase) {
		return "the new table does not have the phase"
	}
	return "the phase is terminal in the new table"
}
