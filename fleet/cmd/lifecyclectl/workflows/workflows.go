// Package workflows has the commands about workflows: their definitions and entities, with
// history and changes; transitions and patches; the check of a new table, and backups.
//
// Each command asks an operator server through package cli; begin at [Commands]. Backups
// alone go straight to NATS: see nats.go. All other commands need no NATS.
package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Commands returns the commands of this package.
func Commands() []*cobra.Command {
	whole := cli.Group(&cobra.Command{
		Use:   "workflows",
		Short: "Commands about whole workflows",
	}, check(), pause(), resume(), backUp(), restore())
	return []*cobra.Command{get(), list(), watch(), history(), transition(), patch(), definitions(), whole}
}

func get() *cobra.Command {
	var follow bool
	cmd := cli.Command(&cobra.Command{
		Use:   "get TYPE ID",
		Short: "Show one entity of a workflow",
		Long: `Show one entity of a workflow: its phase, the next phases, its fields, and the
etag for --if-match of a transition or a patch.`,
		Example: `  lifecyclectl get drone-survey m-17
  lifecyclectl get drone-survey m-17 -o json | jq -r .etag`,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		e, err := c.Workflows.GetEntity(c.Context(), &operatorv1.GetEntityRequest{Type: c.Args[0], Id: c.Args[1]})
		if err != nil {
			return err
		}
		if follow { // the watch shows the entity itself: the call above says when there is none
			return watchEntities(c, &operatorv1.ListEntitiesRequest{Type: c.Args[0]}, c.Args[1])
		}
		return c.Write(e, func(t *output.Table) { entityTable(t, e) })
	})
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "then show what has changed, as watch does")
	return cmd
}

func entityTable(t *output.Table, e *operatorv1.Entity) {
	t.Line("type", e.GetType())
	t.Line("id", e.GetId())
	t.Row(output.Faint("phase"), output.State(e.GetPhase()))
	if e.GetPaused() {
		t.Line("paused", "until lifecyclectl workflows resume")
	}
	if e.GetTerminal() {
		t.Line("next", "nothing: it is terminal")
	} else {
		t.Line("next", strings.Join(e.GetNext(), ", "))
	}
	t.Line("degraded", e.GetDegraded())
	t.Line("parent", e.GetParentId())
	t.Line("etag", e.GetEtag())
	t.Line("updated", output.Moment(e.GetUpdatedAt()))
	fields := e.GetFields().GetFields()
	for i, name := range slices.Sorted(maps.Keys(fields)) {
		label := ""
		if i == 0 {
			label = "fields"
		}
		t.Row(output.Faint(label), name+" = "+valueText(fields[name]))
	}
}

// valueText formats a value as JSON on one line.
func valueText(v *structpb.Value) string {
	text, err := json.Marshal(v.AsInterface())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func list() *cobra.Command {
	var (
		req      operatorv1.ListEntitiesRequest
		updated  time.Duration
		selector string
		limit    int
		follow   bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "list TYPE",
		Short: "List the entities of a workflow",
		Long: `List the entities of a workflow, sorted by id: all of them, unless a flag filters.
With --watch it then shows what has changed of the entities that the flags select, and that
one is not selected any more.`,
		Example: `  lifecyclectl list drone-survey --active
  lifecyclectl list drone-survey --phase flying --match org=acme --updated 1h
  lifecyclectl list drone-survey --selector phase=flying,org=acme --watch
  lifecyclectl list drone-survey -o json | jq -r '.entities[].id'`,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		req.Type = c.Args[0]
		if limit < 0 || updated < 0 {
			return errors.New("--limit and --updated want 0 or more")
		}
		if err := selectEntities(selector, &req); err != nil {
			return err
		}
		if updated > 0 {
			req.UpdatedAfter = timestamppb.New(time.Now().Add(-updated))
		}
		if follow {
			return watchEntities(c, &req, "")
		}
		entities, err := listEntities(c.Context(), c, &req, limit)
		return c.Answer(&operatorv1.ListEntitiesResponse{Entities: entities}, err, func(t *output.Table) {
			now := time.Now()
			t.Head("ID", "PHASE", "UPDATED", "PARENT", "DEGRADED", "|", "ETAG", "NEXT")
			for _, e := range entities {
				t.Row(e.GetId(), output.State(e.GetPhase()), output.Age(e.GetUpdatedAt(), now), e.GetParentId(), output.Bad(e.GetDegraded()),
					output.Extra(e.GetEtag()), output.Extra(strings.Join(e.GetNext(), ",")))
			}
		})
	})
	f := cmd.Flags()
	f.StringVar(&req.Phase, "phase", "", "only those in this `phase`")
	f.BoolVar(&req.Active, "active", false, "only those whose phase is not terminal")
	f.BoolVar(&req.Paused, "paused", false, "only those that are paused")
	f.StringArrayVar(&req.Match, "match", nil, "only those with this `field=value`; may be given more than once")
	f.StringVar(&req.Contains, "contains", "", "only those whose id contains this `text`")
	f.DurationVar(&updated, "updated", 0, "only those that changed within the last `time`, such as 90s or 2h")
	f.StringVarP(&selector, "selector", "l", "", "only those for which `terms` hold: phase=PHASE and FIELD=VALUE, with commas")
	f.IntVar(&limit, "limit", 0, "at most `N`; 0 is all")
	f.BoolVarP(&follow, "watch", "w", false, "then show what has changed, as watch does")
	cmd.MarkFlagsMutuallyExclusive("watch", "limit")
	return cmd
}

// listEntities returns the entities that the request selects, at most limit of them unless
// it is 0.
func listEntities(
	ctx context.Context, c *cli.Call, req *operatorv1.ListEntitiesRequest, limit int,
) ([]*operatorv1.Entity, error) {
	answer, err := cli.All(ctx, limit, req, c.Workflows.ListEntities)
	return answer.GetEntities(), err
}

func history() *cobra.Command {
	var watch bool
	cmd := cli.Command(&cobra.Command{
		Use:   "history TYPE ID",
		Short: "Show the transitions of an entity, oldest first",
	}, cli.OfWorkflow, func(c *cli.Call) error {
		var answer *operatorv1.GetHistoryResponse
		return cli.List[*operatorv1.HistoryEntry]{
			Head:   []string{"AT", "FROM", "TO", "BY", "NOTE"},
			Widths: []int{20, 12, 12, 12},
			Cells: func(x *operatorv1.HistoryEntry) []any {
				note := x.GetNote()
				if p := x.GetPause(); p != "" {
					note = strings.TrimSuffix(p+": "+note, ": ")
				}
				return []any{output.Moment(x.GetAt()), x.GetFrom(), output.State(x.GetTo()), x.GetSource(), note}
			},
			Look: func(ctx context.Context) (_ proto.Message, err error) {
				answer, err = c.Workflows.GetHistory(ctx, &operatorv1.GetHistoryRequest{Type: c.Args[0], Id: c.Args[1]})
				return answer, err
			},
			Before: func(t *output.Table) {
				if answer.GetTruncated() {
					t.Row("…", "older entries are gone")
				}
			},
			Key:     func(x *operatorv1.HistoryEntry) string { return strconv.FormatUint(x.GetRevision(), 10) },
			OnlyNew: true,
		}.Show(c, watch)
	})
	cli.WatchFlag(cmd, &watch)
	return cmd
}

func definitions() *cobra.Command {
	var watch bool
	cmd := cli.Command(&cobra.Command{
		Use:     "definitions [TYPE]",
		Aliases: []string{"types"},
		Short:   "List the workflows, or show one: its phases, and the number of entities in each",
	}, cli.OfWorkflow, func(c *cli.Call) error {
		if len(c.Args) > 0 {
			d, err := c.Workflows.GetDefinition(c.Context(), &operatorv1.GetDefinitionRequest{Type: c.Args[0]})
			if err != nil || !watch {
				return c.Answer(d, err, func(t *output.Table) { definitionTable(t, d) })
			}
		}
		return cli.List[*operatorv1.Definition]{
			Head:   []string{"TYPE", "ENTITIES", "DEGRADED", "BUCKET", "PHASES"},
			Widths: []int{20, 8, 8, 12},
			Cells: func(d *operatorv1.Definition) []any {
				var phases []string
				for _, p := range d.GetPhases() {
					phases = append(phases, p.GetName())
				}
				return []any{d.GetType(), fmt.Sprint(d.GetTotal()), fmt.Sprint(d.GetDegraded()), d.GetBucket(), strings.Join(phases, ", ")}
			},
			Look: func(ctx context.Context) (proto.Message, error) {
				answer, err := c.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{})
				if err == nil && len(c.Args) > 0 {
					isOther := func(d *operatorv1.Definition) bool { return d.GetType() != c.Args[0] }
					answer.Definitions = slices.DeleteFunc(answer.GetDefinitions(), isOther)
				}
				return answer, err
			},
			Key: (*operatorv1.Definition).GetType,
		}.Show(c, watch)
	})
	cli.WatchFlag(cmd, &watch)
	return cmd
}

func definitionTable(t *output.Table, d *operatorv1.Definition) {
	t.Head("PHASE", "ENTITIES", "NEXT")
	for _, p := range d.GetPhases() {
		t.Row(output.State(p.GetName()), fmt.Sprint(p.GetCount()), strings.Join(p.GetNext(), ", "))
	}
	t.Gap()
	t.Head("WRITABLE FIELD", "TYPE")
	for _, f := range d.GetWritableFields() {
		t.Row(f.GetName(), f.GetType())
	}
	if len(d.GetHooks()) > 0 {
		t.Gap()
		t.Head("HOOK", "ITS DEAD LETTERS")
	}
	for _, hook := range d.GetHooks() {
		t.Row(hook, diagnosis.Command("dead-letters %s", d.GetType()+"/"+hook))
	}
}

func watch() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "watch TYPE [ID]",
		Short: "Show the entities of a workflow, or one, and then what changes",
		Long: `Show the entities of a workflow, or one, and then what changes, until it is
interrupted. It looks every 2 s. When an entity has changed more than once since, only
the last change is shown. It waits for a server that is away, and shows nothing twice.

With -o json each change is one line with "kind" and "entity".`,
	}, cli.OfWorkflow, func(c *cli.Call) error {
		return watchEntities(c, &operatorv1.ListEntitiesRequest{Type: c.Args[0]}, c.Arg(1))
	})
}

// watchEntities shows the entities that the request selects, or the one with the id, and
// what changes.
func watchEntities(c *cli.Call, req *operatorv1.ListEntitiesRequest, id string) error {
	out := c.Rows([]string{"AT", "ID", "PHASE", "ETAG"}, 20, 24, 14, 6)
	show := func(kind operatorv1.WatchResponse_Kind, e *operatorv1.Entity, cells ...any) error {
		return out.Add(&operatorv1.WatchResponse{Kind: kind, Entity: e}, cells...)
	}
	changes := cli.Changes[*operatorv1.Entity]{
		Key:  (*operatorv1.Entity).GetId,
		Same: func(a, b *operatorv1.Entity) bool { return a.GetRevision() == b.GetRevision() },
		Put: func(e *operatorv1.Entity) error {
			return show(operatorv1.WatchResponse_KIND_PUT, e, output.Moment(e.GetUpdatedAt()), e.GetId(), output.State(e.GetPhase()), e.GetEtag())
		},
		Gone: func(id string, last *operatorv1.Entity) error {
			e, err := c.Workflows.GetEntity(c.Context(), &operatorv1.GetEntityRequest{Type: req.GetType(), Id: id})
			if connect.CodeOf(err) == connect.CodeNotFound {
				e = &operatorv1.Entity{Type: req.GetType(), Id: id}
				at := time.Now().UTC().Format(time.RFC3339)
				return show(operatorv1.WatchResponse_KIND_DELETED, e, at, id, output.Faint("(deleted)"), "")
			}
			if err != nil {
				e = last
			}
			note := output.Faint("(no longer selected)")
			return show(operatorv1.WatchResponse_KIND_DELETED, e, output.Moment(e.GetUpdatedAt()), id, output.State(e.GetPhase()), note)
		},
	}
	if id != "" {
		req.Contains = id
	}
	return cli.Watch(c, func(ctx context.Context) ([]*operatorv1.Entity, error) {
		entities, err := listEntities(ctx, c, req, 0)
		return slices.DeleteFunc(entities, func(e *operatorv1.Entity) bool { return id != "" && e.GetId() != id }), err
	}, changes.Take)
}

// selectEntities adds the terms of a selector to the filters of a list.
func selectEntities(selector string, req *operatorv1.ListEntitiesRequest) error {
	terms, err := cli.ParseSelector(selector)
	if err != nil {
		return err
	}
	for _, t := range terms {
		switch {
		case t.Not:
			return fmt.Errorf("--selector: %s!=%s: for entities only KEY=VALUE is possible", t.Key, t.Value)
		case t.Key == "phase" && req.GetPhase() != "" && req.GetPhase() != t.Value:
			return fmt.Errorf("two phases are given, %s and %s: no entity is in both", req.GetPhase(), t.Value)
		case t.Key == "phase":
			req.Phase = t.Value
		default:
			req.Match = append(req.Match, t.Key+"="+t.Value)
		}
	}
	return nil
}
