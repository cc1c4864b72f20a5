package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// workflowService implements the contract's WorkflowService.
type workflowService struct{ s *Server }

// area returns the area for workflows.
func (w workflowService) area() (Workflows, error) {
	if w.s.cfg.Workflows == nil {
		return nil, notServed("workflows")
	}
	return w.s.cfg.Workflows, nil
}

func notServed(area string) error {
	return Errorf(connect.CodeUnimplemented, ReasonNotServed, "", "this server has no %s: it was started without them", area)
}

func (w workflowService) ListDefinitions(ctx context.Context, _ *operatorv1.ListDefinitionsRequest) (*operatorv1.ListDefinitionsResponse, error) {
	return call(ctx, w.s, "WorkflowService.ListDefinitions", intent{scope: scopeParts}, nil, func(ctx context.Context, who Principal) (*operatorv1.ListDefinitionsResponse, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		list, err := area.Definitions(ctx)
		list = slices.DeleteFunc(slices.Clone(list), func(d *operatorv1.Definition) bool { return !who.seesDefinition(d) })
		return &operatorv1.ListDefinitionsResponse{Definitions: list}, err
	})
}

func (w workflowService) GetDefinition(ctx context.Context, req *operatorv1.GetDefinitionRequest) (*operatorv1.Definition, error) {
	var v violations
	v.text("type", req.GetType(), true, maxName)
	return call(ctx, w.s, "WorkflowService.GetDefinition", intent{scope: scopeOne, of: req.GetType()}, v, func(ctx context.Context, _ Principal) (*operatorv1.Definition, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		return area.Definition(ctx, req.GetType())
	})
}

func (w workflowService) ListEntities(ctx context.Context, req *operatorv1.ListEntitiesRequest) (*operatorv1.ListEntitiesResponse, error) {
	var v violations
	v.text("type", req.GetType(), true, maxName)
	v.text("phase", req.GetPhase(), false, maxName)
	v.text("contains", req.GetContains(), false, maxName)
	if n := len(req.GetMatch()); n > maxFields {
		v.add("match", "has %d filters, at most %d are allowed", n, maxFields)
	}
	for i, f := range req.GetMatch()[:min(len(req.GetMatch()), maxFields)] {
		v.text(fmt.Sprintf("match[%d]", i), f, false, maxNote)
	}
	if t := req.GetUpdatedAfter(); t != nil && t.CheckValid() != nil {
		v.add("updated_after", "is not a time: %v", t.CheckValid())
	}
	size := v.size("page_size", req.GetPageSize())
	id := proto.CloneOf(req)
	id.PageSize, id.PageToken = 0, ""
	list := listID(id)
	after := v.page(req.GetPageToken(), list)
	return call(ctx, w.s, "WorkflowService.ListEntities", intent{scope: scopeOne, of: req.GetType()}, v, func(ctx context.Context, _ Principal) (*operatorv1.ListEntitiesResponse, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		def, err := area.Definition(ctx, req.GetType())
		if err != nil {
			return nil, err
		}
		var v violations
		match := w.match(area, req.GetType(), req.GetMatch(), &v)
		if p := req.GetPhase(); p != "" && !slices.ContainsFunc(def.GetPhases(), func(d *operatorv1.Phase) bool { return d.GetName() == p }) {
			v.add("phase", "%q is not a phase of %s: want one of %s", p, req.GetType(), phaseNames(def))
		}
		if err := v.err(); err != nil {
			return nil, err
		}
		q := Query{Phase: req.GetPhase(), Active: req.GetActive(), Match: match, Contains: req.GetContains(), After: after, Limit: size + 1}
		if req.GetUpdatedAfter() != nil {
			q.UpdatedAfter = req.GetUpdatedAfter().AsTime()
		}
		found, err := area.List(ctx, req.GetType(), q)
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ListEntitiesResponse{Entities: found}
		if len(found) > size {
			answer.Entities = found[:size]
			answer.NextPageToken = pageToken{found[size-1].GetId(), list}.String()
		}
		return answer, nil
	})
}

// match turns the filters of a list into Go values.
func (w workflowService) match(area Workflows, typ string, filters []string, v *violations) map[string]any {
	values := map[string]any{}
	for i, f := range filters {
		field := fmt.Sprintf("match[%d]", i)
		name, text, ok := strings.Cut(f, "=")
		if !ok {
			v.add(field, "is %q, want field=value", clip(f, 64))
			continue
		}
		t, ok := area.FieldType(typ, name)
		if !ok {
			v.add(field, "%s has no field %q", typ, clip(name, 64))
			continue
		}
		value, err := FromText(text, t)
		if err != nil {
			v.add(field, "%s: %v", name, err)
			continue
		}
		if _, twice := values[name]; twice {
			v.add(field, "%s is filtered twice", name)
		}
		values[name] = value
	}
	return values
}

func phaseNames(def *operatorv1.Definition) string {
	names := make([]string, len(def.GetPhases()))
	for i, p := range def.GetPhases() {
		names[i] = p.GetName()
	}
	return strings.Join(names, ", ")
}

func (w workflowService) GetEntity(ctx context.Context, req *operatorv1.GetEntityRequest) (*operatorv1.Entity, error) {
	return call(ctx, w.s, "WorkflowService.GetEntity", intent{scope: scopeOne, of: req.GetType()}, entityName(req), func(ctx context.Context, _ Principal) (*operatorv1.Entity, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		e, err := area.Get(ctx, req.GetType(), req.GetId())
		if err != nil {
			return nil, err
		}
		tag(ctx, e)
		return e, nil
	})
}

// tag sets the response's ETag header to that of e.
func tag(ctx context.Context, e *operatorv1.Entity) {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok && e.GetEtag() != "" {
		info.ResponseHeader().Set("ETag", e.GetEtag())
	}
}

// named is a request about one entity.
type named interface {
	GetType() string
	GetId() string
}

func entityName(req named) (v violations) {
	v.text("type", req.GetType(), true, maxName)
	v.text("id", req.GetId(), true, maxName)
	return v
}

func (w workflowService) Transition(ctx context.Context, req *operatorv1.TransitionRequest) (*operatorv1.TransitionResponse, error) {
	v := entityName(req)
	v.text("phase", req.GetPhase(), true, maxName)
	v.text("note", req.GetNote(), false, maxNote)
	revision := v.revision(ctx, req.GetIfMatch())
	what := intent{target: req.GetType() + "/" + req.GetId(), detail: "to " + req.GetPhase(), dryRun: req.GetDryRun(), scope: scopeOne, of: req.GetType()}
	if req.GetNote() != "" {
		what.detail += ": " + req.GetNote()
	}
	return call(ctx, w.s, "WorkflowService.Transition", what, v, func(ctx context.Context, who Principal) (*operatorv1.TransitionResponse, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		e, from, err := area.Transition(ctx, Transition{
			Type: req.GetType(), ID: req.GetId(), Phase: req.GetPhase(), Note: req.GetNote(),
			Who: who.Name, Revision: revision, DryRun: req.GetDryRun(),
		})
		if err != nil {
			return nil, err
		}
		tag(ctx, e)
		return &operatorv1.TransitionResponse{Entity: e, From: from}, nil
	})
}

func (w workflowService) Patch(ctx context.Context, req *operatorv1.PatchRequest) (*operatorv1.PatchResponse, error) {
	v := entityName(req)
	revision := v.revision(ctx, req.GetIfMatch())
	switch n := len(req.GetFields().GetFields()); {
	case n == 0:
		v.add("fields", "is missing: a patch changes at least one field")
	case n > maxFields:
		v.add("fields", "has %d fields, at most %d are allowed", n, maxFields)
	}
	// Values may be confidential; the audit needs only the names.
	names := slices.Sorted(maps.Keys(req.GetFields().GetFields()))
	for _, name := range names[:min(len(names), maxFields)] {
		v.text("fields", name, true, maxName)
	}
	what := intent{target: req.GetType() + "/" + req.GetId(), detail: "fields " + strings.Join(names, ", "), dryRun: req.GetDryRun(), scope: scopeOne, of: req.GetType()}
	return call(ctx, w.s, "WorkflowService.Patch", what, v, func(ctx context.Context, who Principal) (*operatorv1.PatchResponse, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		def, err := area.Definition(ctx, req.GetType())
		if err != nil {
			return nil, err
		}
		var v violations
		fields := map[string]any{}
		for _, name := range names {
			t, ok := area.FieldType(req.GetType(), name)
			if !ok {
				v.add("fields."+clip(name, 64), "%s has no such field", req.GetType())
				continue
			}
			if !slices.ContainsFunc(def.GetWritableFields(), func(f *operatorv1.Field) bool { return f.GetName() == name }) {
				return nil, Errorf(connect.CodePermissionDenied, ReasonNotWritable, "fields."+name,
					"%s has no field %q that operators may write", req.GetType(), clip(name, 64))
			}
			value, err := fromValue(req.GetFields().GetFields()[name], t)
			if err != nil {
				v.add("fields."+name, "%v", err)
			}
			fields[name] = value
		}
		if err := v.err(); err != nil {
			return nil, err
		}
		e, err := area.Patch(ctx, Patch{Type: req.GetType(), ID: req.GetId(), Fields: fields, Who: who.Name, Revision: revision, DryRun: req.GetDryRun()})
		if err != nil {
			return nil, err
		}
		tag(ctx, e)
		return &operatorv1.PatchResponse{Entity: e}, nil
	})
}

func (w workflowService) GetHistory(ctx context.Context, req *operatorv1.GetHistoryRequest) (*operatorv1.GetHistoryResponse, error) {
	return call(ctx, w.s, "WorkflowService.GetHistory", intent{scope: scopeOne, of: req.GetType()}, entityName(req), func(ctx context.Context, _ Principal) (*operatorv1.GetHistoryResponse, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		list, truncated, err := area.History(ctx, req.GetType(), req.GetId())
		return &operatorv1.GetHistoryResponse{Entries: list, Truncated: truncated}, err
	})
}

func (w workflowService) Watch(ctx context.Context, req *operatorv1.WatchRequest, stream *connect.ServerStream[operatorv1.WatchResponse]) error {
	return w.watch(ctx, req, stream.Send)
}

// watch serves Watch; send sends one message.
func (w workflowService) watch(ctx context.Context, req *operatorv1.WatchRequest, send func(*operatorv1.WatchResponse) error) error {
	const action = "WorkflowService.Watch"
	var v violations
	v.text("type", req.GetType(), true, maxName)
	v.text("id", req.GetId(), false, maxName)
	err := func() error {
		who, err := w.s.authorize(ctx, action)
		if err != nil {
			return err
		}
		if err := v.err(); err != nil {
			return err
		}
		area, err := w.area()
		if err != nil {
			return err
		}
		if err := w.s.within(ctx, who, action, &intent{scope: scopeOne, of: req.GetType()}); err != nil {
			return err
		}
		if _, err := area.Definition(ctx, req.GetType()); err != nil {
			return err
		}
		return follow(ctx, w.s, who, w.s.entityFeed(req.GetType()).Read(req.GetId()), nil, func(kind operatorv1.WatchResponse_Kind, key string, e *operatorv1.Entity) error {
			if kind == operatorv1.WatchResponse_KIND_DELETED {
				e = &operatorv1.Entity{Type: req.GetType(), Id: key}
			}
			return send(&operatorv1.WatchResponse{Kind: kind, Entity: e})
		})
	}()
	return wire(ctx, w.s.log, action, w.s.deps.explain(err))
}
