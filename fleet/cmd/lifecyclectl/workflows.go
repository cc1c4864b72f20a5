package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// asks turns a function into a command's RunE. It opens the server, checks the
// output format, and explains the server's errors.
func asks(r *remote, o *output, about func(args []string) subject, do func(a *api, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := o.check(); err != nil {
			return err
		}
		a, err := r.open()
		if err != nil {
			return err
		}
		defer a.Close()
		err = do(a, cmd, args)
		if note := a.stale(); note != "" && err == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "lifecyclectl: "+note)
		}
		if isAnswer(err) {
			return a.explain(cmd.Context(), err, about(args))
		}
		return err
	}
}

// ofWorkflow returns the subject of a command about TYPE and ID.
func ofWorkflow(args []string) subject {
	s := subject{kind: "workflow"}
	if len(args) > 0 {
		s.typ = args[0]
	}
	if len(args) > 1 {
		s.id = args[1]
	}
	return s
}

func ofProcess(args []string) subject { return subject{kind: "process", id: append(args, "")[0]} }
func ofWorker(args []string) subject  { return subject{kind: "worker", id: append(args, "")[0]} }

// isAnswer reports whether err comes from a call, not from before it.
func isAnswer(err error) bool {
	var answer *connect.Error
	return errors.As(err, &answer)
}

func getCommand() *cobra.Command {
	var (
		r      remote
		o      output
		follow bool
	)
	cmd := &cobra.Command{
		Use:   "get TYPE ID",
		Short: "Show one entity of a workflow",
		Long: `Show one entity of a workflow: its phase, the next phases, its fields, and the
etag for --if-match of a transition or a patch.`,
		Example: `  lifecyclectl get drone-survey m-17
  lifecyclectl get drone-survey m-17 -o json | jq -r .etag`,
		Args: words("TYPE", "ID"),
		RunE: asks(&r, &o, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			e, err := a.Workflows.GetEntity(cmd.Context(), &operatorv1.GetEntityRequest{Type: args[0], Id: args[1]})
			if err != nil {
				return err
			}
			if follow {
				return watchEntities(a, cmd, &o, args[0], args[1], nil)
			}
			return o.write(cmd.OutOrStdout(), e, func(t *table) { entityTable(t, e) })
		}),
		ValidArgsFunction: completeEntities(&r),
	}
	cmd.Flags().BoolVarP(&follow, "watch", "w", false, "then show every change, as watch does")
	o.register(cmd)
	r.register(cmd)
	return cmd
}

func entityTable(t *table, e *operatorv1.Entity) {
	t.line("type", e.GetType())
	t.line("id", e.GetId())
	t.row(cell{"phase", faint}, state(e.GetPhase()))
	if e.GetTerminal() {
		t.line("next", "nothing: it is terminal")
	} else {
		t.line("next", strings.Join(e.GetNext(), ", "))
	}
	t.line("degraded", e.GetDegraded())
	t.line("parent", e.GetParentId())
	t.line("etag", e.GetEtag())
	t.line("updated", moment(e.GetUpdatedAt()))
	for i, name := range sortedFields(e.GetFields()) {
		label := ""
		if i == 0 {
			label = "fields"
		}
		t.row(cell{label, faint}, name+" = "+valueText(e.GetFields().GetFields()[name]))
	}
}

func sortedFields(s *structpb.Struct) []string {
	names := make([]string, 0, len(s.GetFields()))
	for name := range s.GetFields() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// valueText formats a value as JSON on one line.
func valueText(v *structpb.Value) string {
	text, err := json.Marshal(v.AsInterface())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func listCommand() *cobra.Command {
	var (
		r       remote
		o       output
		req     operatorv1.ListEntitiesRequest
		updated time.Duration
		limit   int
		follow  bool

		selector string
	)
	cmd := &cobra.Command{
		Use:   "list TYPE",
		Short: "List the entities of a workflow",
		Long: `List the entities of a workflow, sorted by id: all of them, unless a flag filters.
With --watch it then shows every change of an entity that the flags select, and that one
is not selected any more.`,
		Example: `  lifecyclectl list drone-survey --active
  lifecyclectl list drone-survey --phase flying --match org=acme --updated 1h
  lifecyclectl list drone-survey --selector phase=flying,org=acme --watch
  lifecyclectl list drone-survey -o json | jq -r '.entities[].id'`,
		Args: words("TYPE"),
		RunE: asks(&r, &o, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			req.Type = args[0]
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
				if err := unlimited(cmd, "limit"); err != nil {
					return err
				}
				req.PageSize = 1 // the server knows whether the filters can be meant
				if _, err := a.Workflows.ListEntities(cmd.Context(), &req); err != nil {
					return err
				}
				return watchEntities(a, cmd, &o, args[0], "", func(e *operatorv1.Entity) bool { return entityMatches(&req, e) })
			}
			all := &operatorv1.ListEntitiesResponse{}
			for {
				req.PageSize = 1000
				if limit > 0 {
					req.PageSize = int32(min(1000, limit-len(all.GetEntities())))
				}
				page, err := a.Workflows.ListEntities(cmd.Context(), &req)
				if err != nil {
					return err
				}
				all.Entities = append(all.Entities, page.GetEntities()...)
				req.PageToken = page.GetNextPageToken()
				if req.GetPageToken() == "" || limit > 0 && len(all.GetEntities()) >= limit {
					break
				}
			}
			return o.write(cmd.OutOrStdout(), all, func(t *table) {
				now := time.Now()
				t.head("ID", "PHASE", "UPDATED", "PARENT", "DEGRADED", "|", "ETAG", "NEXT")
				for _, e := range all.GetEntities() {
					t.row(e.GetId(), state(e.GetPhase()), age(e.GetUpdatedAt(), now), e.GetParentId(), cell{e.GetDegraded(), bad}, extra(e.GetEtag()), extra(strings.Join(e.GetNext(), ",")))
				}
			})
		}),
		ValidArgsFunction: completeTypes(&r),
	}
	f := cmd.Flags()
	f.StringVar(&req.Phase, "phase", "", "only those in this `phase`")
	f.BoolVar(&req.Active, "active", false, "only those whose phase is not terminal")
	f.StringArrayVar(&req.Match, "match", nil, "only those with this `field=value`; may be given more than once")
	f.StringVar(&req.Contains, "contains", "", "only those whose id contains this `text`")
	f.DurationVar(&updated, "updated", 0, "only those that changed within the last `time`, such as 90s or 2h")
	f.StringVarP(&selector, "selector", "l", "", "only those for which `terms` hold: phase=PHASE and FIELD=VALUE, with commas")
	f.IntVar(&limit, "limit", 0, "at most this `many`; 0 is all")
	f.BoolVarP(&follow, "watch", "w", false, "then show every change, as watch does")
	_ = cmd.RegisterFlagCompletionFunc("phase", completePhases(&r))
	o.register(cmd)
	r.register(cmd)
	return cmd
}

func historyCommand() *cobra.Command {
	var (
		r      remote
		o      output
		follow bool
	)
	cells := func(x *operatorv1.HistoryEntry) []any {
		return []any{moment(x.GetAt()), x.GetFrom(), state(x.GetTo()), x.GetSource(), x.GetNote()}
	}
	cmd := &cobra.Command{
		Use:   "history TYPE ID",
		Short: "Show the transitions of an entity, oldest first",
		Args:  words("TYPE", "ID"),
		RunE: asks(&r, &o, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			look := func(ctx context.Context) (*operatorv1.GetHistoryResponse, error) {
				return a.Workflows.GetHistory(ctx, &operatorv1.GetHistoryRequest{Type: args[0], Id: args[1]})
			}
			head := []string{"AT", "FROM", "TO", "BY", "NOTE"}
			if follow {
				return polled[*operatorv1.HistoryEntry]{
					head: head, widths: []int{20, 12, 12, 12},
					look: func(ctx context.Context) ([]*operatorv1.HistoryEntry, error) {
						h, err := look(ctx)
						return h.GetEntries(), err
					},
					key:   func(x *operatorv1.HistoryEntry) string { return fmt.Sprint(x.GetRevision(), " ", x.GetTo()) },
					cells: cells, only: true,
				}.watch(a, cmd, &o)
			}
			h, err := look(cmd.Context())
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), h, func(t *table) {
				t.head(head...)
				if h.GetTruncated() {
					t.row("…", "older entries are gone")
				}
				for _, x := range h.GetEntries() {
					t.row(cells(x)...)
				}
			})
		}),
		ValidArgsFunction: completeEntities(&r),
	}
	watchFlag(cmd, &follow)
	o.register(cmd)
	r.register(cmd)
	return cmd
}

func definitionsCommand() *cobra.Command {
	var (
		r      remote
		o      output
		follow bool
	)
	cells := func(d *operatorv1.Definition) []any {
		return []any{d.GetType(), fmt.Sprint(d.GetTotal()), fmt.Sprint(d.GetDegraded()), d.GetBucket(), phases(d)}
	}
	cmd := &cobra.Command{
		Use:     "definitions [TYPE]",
		Aliases: []string{"types"},
		Short:   "List the workflows, or show one: its phases, and the number of entities in each",
		Args:    words("[TYPE]"),
		RunE: asks(&r, &o, ofWorkflow, func(a *api, cmd *cobra.Command, args []string) error {
			head := []string{"TYPE", "ENTITIES", "DEGRADED", "BUCKET", "PHASES"}
			if follow {
				return polled[*operatorv1.Definition]{
					head: head, widths: []int{20, 8, 8, 12},
					look: func(ctx context.Context) ([]*operatorv1.Definition, error) {
						list, err := a.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{})
						return slices.DeleteFunc(list.GetDefinitions(), func(d *operatorv1.Definition) bool { return len(args) > 0 && d.GetType() != args[0] }), err
					},
					key:   (*operatorv1.Definition).GetType,
					cells: cells,
				}.watch(a, cmd, &o)
			}
			if len(args) == 0 {
				list, err := a.Workflows.ListDefinitions(cmd.Context(), &operatorv1.ListDefinitionsRequest{})
				if err != nil {
					return err
				}
				return o.write(cmd.OutOrStdout(), list, func(t *table) {
					t.head(head...)
					for _, d := range list.GetDefinitions() {
						t.row(cells(d)...)
					}
				})
			}
			d, err := a.Workflows.GetDefinition(cmd.Context(), &operatorv1.GetDefinitionRequest{Type: args[0]})
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), d, func(t *table) {
				t.head("PHASE", "ENTITIES", "NEXT")
				for _, p := range d.GetPhases() {
					t.row(state(p.GetName()), fmt.Sprint(p.GetCount()), strings.Join(p.GetNext(), ", "))
				}
				t.gap()
				t.head("WRITABLE FIELD", "TYPE")
				for _, f := range d.GetWritableFields() {
					t.row(f.GetName(), f.GetType())
				}
			})
		}),
		ValidArgsFunction: completeTypes(&r),
	}
	watchFlag(cmd, &follow)
	o.register(cmd)
	r.register(cmd)
	return cmd
}

func phases(d *operatorv1.Definition) string {
	names := make([]string, len(d.GetPhases()))
	for i, p := range d.GetPhases() {
		names[i] = p.GetName()
	}
	return strings.Join(names, ", ")
}
