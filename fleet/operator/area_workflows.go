package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// FromManager makes a Server's Workflows from a Manager. The Server serves every type
// that is registered with the Manager. It appends the caller's name to the note of a
// transition.
func FromManager(m *workflow.Manager) Workflows {
	return &manager{m}
}

type manager struct{ m *workflow.Manager }

// workflowErrors are the errors of a Manager.
var workflowErrors = []knownError{
	{workflow.ErrWorkflowNotRegistered, connect.CodeNotFound, ReasonUnknownType, "type"},
	{workflow.ErrEntityNotFound, connect.CodeNotFound, ReasonNotFound, "id"},
	{workflow.ErrInvalidEntityID, connect.CodeInvalidArgument, ReasonInvalid, "id"},
	{workflow.ErrTerminalPhase, connect.CodeFailedPrecondition, ReasonTerminal, "phase"},
	{workflow.ErrInvalidTransition, connect.CodeFailedPrecondition, ReasonInvalidTransition, "phase"},
	{workflow.ErrRevisionMismatch, connect.CodeAborted, ReasonStale, "if_match"},
	{workflow.ErrFieldNotOperatorWritable, connect.CodePermissionDenied, ReasonNotWritable, "fields"},
	{workflow.ErrImmutableField, connect.CodePermissionDenied, ReasonNotWritable, "fields"},
	{workflow.ErrFieldType, connect.CodeInvalidArgument, ReasonInvalid, "fields"},
	{workflow.ErrDegraded, connect.CodeFailedPrecondition, ReasonDegraded, "id"},
	{workflow.ErrUpdateRetriesExhausted, connect.CodeAborted, ReasonContention, ""},
	{workflow.ErrOutcomeUnknown, connect.CodeDeadlineExceeded, ReasonTimeout, ""},
	{workflow.ErrClosed, connect.CodeUnavailable, ReasonUnavailable, ""},
}

func workflowErr(err error) error { return translate(err, workflowErrors) }

func (a *manager) Definitions(ctx context.Context) ([]*operatorv1.Definition, error) {
	defs := a.m.ListWorkflows()
	list := make([]*operatorv1.Definition, len(defs))
	for i, def := range defs {
		var err error
		if list[i], err = a.definition(ctx, def); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (a *manager) Definition(ctx context.Context, typ string) (*operatorv1.Definition, error) {
	def, err := a.m.GetWorkflowDefinition(typ)
	if err != nil {
		return nil, workflowErr(err)
	}
	return a.definition(ctx, def)
}

func (a *manager) definition(ctx context.Context, def workflow.WorkflowDef) (*operatorv1.Definition, error) {
	out := &operatorv1.Definition{
		Type:          def.Workflow,
		Bucket:        def.KVBucket,
		IndexedFields: def.IndexedFields,
		Version:       int32(def.Version),
		Hooks:         def.Hooks,
	}
	for _, name := range inOrder(def.Transitions) {
		page, err := a.m.Query(ctx, def.Workflow, workflow.ListOptions{Phase: name, Limit: 1})
		if err != nil {
			return nil, workflowErr(err)
		}
		out.Phases = append(out.Phases, &operatorv1.Phase{Name: name, Next: def.Transitions[name], Count: int64(page.Total)})
	}
	all, err := a.m.Query(ctx, def.Workflow, workflow.ListOptions{Limit: 1})
	if err != nil {
		return nil, workflowErr(err)
	}
	bad, err := a.m.Degraded(ctx, def.Workflow)
	if err != nil {
		return nil, workflowErr(err)
	}
	out.Total, out.Degraded = int64(all.Total), int64(len(bad))
	for _, name := range def.OperatorWritableFields {
		t, err := a.m.FieldType(def.Workflow, name)
		if err != nil {
			return nil, workflowErr(err)
		}
		out.WritableFields = append(out.WritableFields, &operatorv1.Field{Name: name, Type: t.String()})
	}
	return out, nil
}

// inOrder returns the phases in the order in which an entity enters them: first the phases to
// which no edge leads, and the terminal ones last.
func inOrder(t workflow.Transitions) []string {
	led := map[string]bool{}
	for from, next := range t {
		for _, to := range next {
			led[to] = led[to] || to != from
		}
	}
	var order []string
	var visit func(string)
	visit = func(s string) {
		if slices.Contains(order, s) {
			return
		}
		order = append(order, s)
		for _, next := range t[s] {
			visit(next)
		}
	}
	for _, s := range t.Phases() {
		if !led[s] {
			visit(s)
		}
	}
	for _, s := range t.Phases() {
		visit(s) // a phase in a cycle that no edge leads into
	}
	slices.SortStableFunc(order, func(x, y string) int {
		switch {
		case t.IsTerminal(x) == t.IsTerminal(y):
			return 0
		case t.IsTerminal(x):
			return 1
		}
		return -1
	})
	return order
}

func (a *manager) FieldType(typ, field string) (reflect.Type, bool) {
	return a.m.StoredFieldType(typ, field)
}

func (a *manager) List(ctx context.Context, typ string, q workflow.ListOptions) ([]*operatorv1.Entity, error) {
	def, err := a.m.GetWorkflowDefinition(typ)
	if err != nil {
		return nil, workflowErr(err)
	}
	page, err := a.m.Query(ctx, typ, q)
	if err != nil {
		return nil, workflowErr(err)
	}
	var list []*operatorv1.Entity
	for _, rec := range page.Records {
		list = append(list, entity(def.Transitions, rec))
	}
	return list, nil
}

func (a *manager) Counts(ctx context.Context, typ string, longer time.Duration) ([]workflow.PhaseCount, error) {
	def, err := a.m.GetWorkflowDefinition(typ)
	if err != nil {
		return nil, workflowErr(err)
	}
	list, err := a.m.Counts(ctx, typ, longer)
	return slices.DeleteFunc(list, func(c workflow.PhaseCount) bool {
		_, isKnown := def.Transitions[c.Phase]
		return !isKnown || c.Terminal || c.Entities == 0
	}), workflowErr(err)
}

// entity turns a record into the contract's message.
func entity(t workflow.Transitions, rec workflow.Record) *operatorv1.Entity {
	e := &operatorv1.Entity{
		Type: rec.Workflow, Id: rec.EntityID, Phase: rec.Phase, Terminal: rec.Terminal,
		Revision: rec.Revision, Etag: ETag(rec.Revision), Next: t[rec.Phase], Paused: rec.Paused,
	}
	if !rec.UpdatedAt.IsZero() {
		e.UpdatedAt = diagnosis.Stamp(rec.UpdatedAt)
	}
	if e.GetId() == "" {
		e.Id = rec.Key
	}
	if rec.Degraded != nil {
		e.Degraded = rec.Degraded.Error()
	}
	if p := rec.Participant; p != nil {
		fill(e, p)
	}
	return e
}

// fill adds the fields of the state.
func fill(e *operatorv1.Entity, p workflow.Participant) {
	e.ParentId = p.ParentEntityID()
	text, err := json.Marshal(p)
	if err == nil {
		e.Fields, err = Fields(text)
	}
	if err != nil && e.GetDegraded() == "" {
		e.Degraded = err.Error()
	}
}

func (a *manager) Get(ctx context.Context, typ, id string) (*operatorv1.Entity, error) {
	def, err := a.m.GetWorkflowDefinition(typ)
	if err != nil {
		return nil, workflowErr(err)
	}
	var rec workflow.Record
	if _, err := a.m.Get(ctx, typ, id, workflow.RecordTo(&rec)); err != nil {
		return nil, workflowErr(err)
	}
	return entity(def.Transitions, rec), nil
}

// write does one write and returns the entity after it. For a dry run, it returns
// the entity as it would be.
func (a *manager) write(
	ctx context.Context, typ, id string, revision uint64, dry bool, do func(...workflow.WriteOption) error,
) (*operatorv1.Entity, error) {
	def, err := a.m.GetWorkflowDefinition(typ)
	if err != nil {
		return nil, workflowErr(err)
	}
	var opts []workflow.WriteOption
	var would workflow.Participant
	if revision != 0 {
		opts = append(opts, workflow.IfMatch(revision))
	}
	if dry {
		opts = append(opts, workflow.DryRun(&would))
	}
	if err := do(opts...); err != nil {
		return nil, workflowErr(err)
	}
	e, err := a.Get(ctx, typ, id)
	if err != nil || would == nil {
		return e, err
	}
	e.Phase, e.Terminal, e.Next = would.Phase(), def.Transitions.IsTerminal(would.Phase()), def.Transitions[would.Phase()]
	fill(e, would)
	return e, nil
}

// signed appends the caller's name to a note.
func signed(note, who string) string {
	if who == "" {
		return note
	}
	return strings.TrimSpace(note + " (" + who + ")")
}

func (a *manager) Pause(ctx context.Context, p Pause) (*operatorv1.Entity, error) {
	do := a.m.Pause
	if p.Resume {
		do = a.m.Resume
	}
	return a.write(ctx, p.Type, p.ID, p.Revision, false, func(opts ...workflow.WriteOption) error {
		return do(ctx, p.Type, p.ID, signed(p.Note, p.Who), opts...)
	})
}

func (a *manager) Transition(
	ctx context.Context, req *operatorv1.TransitionRequest, who string, revision uint64,
) (*operatorv1.Entity, string, error) {
	typ, id, from, note := req.GetType(), req.GetId(), "", signed(req.GetNote(), who)
	e, err := a.write(ctx, typ, id, revision, req.GetDryRun(), func(opts ...workflow.WriteOption) error {
		before := func(p workflow.Participant) error {
			from = p.Phase()
			return nil
		}
		return a.m.TransitionWith(ctx, typ, id, req.GetPhase(), workflow.TransitionSourceOperator, note, before, opts...)
	})
	return e, from, err
}

func (a *manager) Patch(
	ctx context.Context, req *operatorv1.PatchRequest, fields map[string]any, revision uint64,
) (*operatorv1.Entity, error) {
	typ, id := req.GetType(), req.GetId()
	return a.write(ctx, typ, id, revision, req.GetDryRun(), func(opts ...workflow.WriteOption) error {
		return a.m.UpdateFromOperator(ctx, typ, id, fields, opts...)
	})
}

func (a *manager) History(ctx context.Context, typ, id string) ([]*operatorv1.HistoryEntry, bool, error) {
	trail, err := a.m.Trail(ctx, typ, id)
	if err != nil {
		return nil, false, workflowErr(err)
	}
	list := make([]*operatorv1.HistoryEntry, len(trail.Events))
	for i, e := range trail.Events {
		list[i] = &operatorv1.HistoryEntry{
			From:     e.From,
			To:       e.To,
			At:       diagnosis.Stamp(e.At),
			Source:   string(e.Triggered),
			Note:     e.Note,
			Revision: e.Revision,
			Pause:    e.Pause,
		}
	}
	return list, trail.Truncated, nil
}

func (a *manager) Watch(ctx context.Context, typ string, to Sink[*operatorv1.Entity]) error {
	def, err := a.m.GetWorkflowDefinition(typ)
	if err != nil {
		return workflowErr(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := a.m.WatchEvents(ctx, typ)
	if err != nil {
		return workflowErr(err)
	}
	for e := range events {
		switch e.Kind {
		case workflow.EventPut:
			x := entity(def.Transitions, e.Record)
			to.Put(x.GetId(), x)
		case workflow.EventDeleted:
			id := e.Record.EntityID
			if id == "" {
				id = e.Record.Key
			}
			to.Delete(id)
		case workflow.EventSynced:
			to.Sync()
		case workflow.EventGap:
			to.Gap()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("watch %s: the manager is closed", typ)
}
