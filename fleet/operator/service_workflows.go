package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// workflowService implements the contract's WorkflowService.
type workflowService struct{ s *Server }

func (w workflowService) ListDefinitions(
	ctx context.Context, req *operatorv1.ListDefinitionsRequest,
) (*operatorv1.ListDefinitionsResponse, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListDefinitionsResponse, error) {
		list, err := w.s.cfg.Workflows.Definitions(ctx)
		list = slices.DeleteFunc(slices.Clone(list), func(d *operatorv1.Definition) bool { return !c.who.sees(object{workflow: d.GetType()}) })
		return &operatorv1.ListDefinitionsResponse{Definitions: list}, err
	})
}

func (w workflowService) GetDefinition(
	ctx context.Context, req *operatorv1.GetDefinitionRequest,
) (*operatorv1.Definition, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Definition, error) {
		return w.s.cfg.Workflows.Definition(ctx, req.GetType())
	})
}

func (w workflowService) ListEntities(
	ctx context.Context, req *operatorv1.ListEntitiesRequest,
) (*operatorv1.ListEntitiesResponse, error) {
	c := requestOf(req)
	updatedAfter := c.time("updated_after", req.GetUpdatedAfter())
	page := c.paging(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListEntitiesResponse, error) {
		def, err := w.s.cfg.Workflows.Definition(ctx, req.GetType())
		if err != nil {
			return nil, err
		}
		var v violations
		match := w.match(req.GetType(), req.GetMatch(), &v)
		if p := req.GetPhase(); p != "" && !slices.Contains(phaseNames(def), p) {
			v.add("phase", "%q is not a phase of %s: want one of %s", p, req.GetType(), strings.Join(phaseNames(def), ", "))
		}
		if err := v.err(); err != nil {
			return nil, err
		}
		found, err := w.s.cfg.Workflows.List(ctx, req.GetType(), workflow.ListOptions{
			Phase:        req.GetPhase(),
			Active:       req.GetActive(),
			Paused:       req.GetPaused(),
			Match:        match,
			Contains:     req.GetContains(),
			UpdatedAfter: updatedAfter,
			After:        page.after,
			Limit:        page.size + 1,
		})
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ListEntitiesResponse{}
		answer.Entities, answer.NextPageToken = cut(found, (*operatorv1.Entity).GetId, page)
		return answer, nil
	})
}

// match turns the filters of a list into Go values.
func (w workflowService) match(typ string, filters []string, v *violations) map[string]any {
	values := map[string]any{}
	for i, f := range filters {
		field := fmt.Sprintf("match[%d]", i)
		name, text, ok := strings.Cut(f, "=")
		if !ok {
			v.add(field, "is %q, want field=value", clip(f, 64))
			continue
		}
		t, ok := w.s.cfg.Workflows.FieldType(typ, name)
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

func phaseNames(def *operatorv1.Definition) []string {
	names := make([]string, len(def.GetPhases()))
	for i, p := range def.GetPhases() {
		names[i] = p.GetName()
	}
	return names
}

func (w workflowService) GetEntity(ctx context.Context, req *operatorv1.GetEntityRequest) (*operatorv1.Entity, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Entity, error) {
		e, err := w.s.cfg.Workflows.Get(ctx, req.GetType(), req.GetId())
		tag(ctx, e)
		return e, err
	})
}

func tag(ctx context.Context, e *operatorv1.Entity) {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok && e.GetEtag() != "" {
		info.ResponseHeader().Set("ETag", e.GetEtag())
	}
}

func (w workflowService) Transition(
	ctx context.Context, req *operatorv1.TransitionRequest,
) (*operatorv1.TransitionResponse, error) {
	c := requestOf(req)
	c.required("phase", req.GetPhase())
	revision := c.revision(ctx, req.GetIfMatch())
	c.dryRun = req.GetDryRun()
	c.detail = "to " + req.GetPhase()
	if req.GetNote() != "" {
		c.detail += ": " + req.GetNote()
	}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.TransitionResponse, error) {
		e, from, err := w.s.cfg.Workflows.Transition(ctx, req, c.who.Name, revision)
		if err != nil {
			return nil, err
		}
		tag(ctx, e)
		return &operatorv1.TransitionResponse{Entity: e, From: from}, nil
	})
}

func (w workflowService) Pause(ctx context.Context, req *operatorv1.PauseRequest) (*operatorv1.PauseResponse, error) {
	e, err := w.pause(ctx, requestOf(req), Pause{Type: req.GetType(), ID: req.GetId(), Note: req.GetReason()}, req.GetIfMatch())
	if err != nil {
		return nil, err
	}
	return &operatorv1.PauseResponse{Entity: e}, nil
}

func (w workflowService) Resume(ctx context.Context, req *operatorv1.ResumeRequest) (*operatorv1.ResumeResponse, error) {
	p := Pause{Type: req.GetType(), ID: req.GetId(), Note: req.GetNote(), Resume: true}
	e, err := w.pause(ctx, requestOf(req), p, req.GetIfMatch())
	if err != nil {
		return nil, err
	}
	return &operatorv1.ResumeResponse{Entity: e}, nil
}

// pause pauses or resumes an entity.
func (w workflowService) pause(ctx context.Context, c *request, p Pause, ifMatch string) (*operatorv1.Entity, error) {
	c.detail = p.Note
	p.Revision = c.revision(ctx, ifMatch)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Entity, error) {
		p.Who = c.who.Name
		e, err := w.s.cfg.Workflows.Pause(ctx, p)
		tag(ctx, e)
		return e, err
	})
}

func (w workflowService) Patch(ctx context.Context, req *operatorv1.PatchRequest) (*operatorv1.PatchResponse, error) {
	c := requestOf(req)
	revision := c.revision(ctx, req.GetIfMatch())
	// Values may be confidential; the audit needs only the names.
	names := slices.Sorted(maps.Keys(req.GetFields().GetFields()))
	if len(names) == 0 {
		c.add("fields", "is missing: a patch changes at least one field")
	}
	c.list("fields", names)
	c.dryRun = req.GetDryRun()
	c.detail = "fields " + strings.Join(names, ", ")
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.PatchResponse, error) {
		fields, err := w.patched(ctx, req.GetType(), req.GetFields().GetFields())
		if err != nil {
			return nil, err
		}
		e, err := w.s.cfg.Workflows.Patch(ctx, req, fields, revision)
		if err != nil {
			return nil, err
		}
		tag(ctx, e)
		return &operatorv1.PatchResponse{Entity: e}, nil
	})
}

// patched turns the fields of a patch into values of their own Go types.
func (w workflowService) patched(ctx context.Context, typ string, given map[string]*structpb.Value) (map[string]any, error) {
	def, err := w.s.cfg.Workflows.Definition(ctx, typ)
	if err != nil {
		return nil, err
	}
	var v violations
	fields := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		t, ok := w.s.cfg.Workflows.FieldType(typ, name)
		if !ok {
			v.add("fields."+clip(name, 64), "%s has no such field", typ)
			continue
		}
		if !slices.ContainsFunc(def.GetWritableFields(), func(f *operatorv1.Field) bool { return f.GetName() == name }) {
			return nil, Errorf(connect.CodePermissionDenied, ReasonNotWritable, "fields."+name,
				"%s has no field %q that operators may write", typ, clip(name, 64))
		}
		value, err := fromValue(given[name], t)
		if err != nil {
			v.add("fields."+name, "%v", err)
		}
		fields[name] = value
	}
	return fields, v.err()
}

func (w workflowService) GetHistory(
	ctx context.Context, req *operatorv1.GetHistoryRequest,
) (*operatorv1.GetHistoryResponse, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.GetHistoryResponse, error) {
		list, truncated, err := w.s.cfg.Workflows.History(ctx, req.GetType(), req.GetId())
		return &operatorv1.GetHistoryResponse{Entries: list, Truncated: truncated}, err
	})
}

func (w workflowService) Watch(
	ctx context.Context, req *operatorv1.WatchRequest, stream *connect.ServerStream[operatorv1.WatchResponse],
) error {
	return w.watch(ctx, req, stream.Send)
}

// watch serves Watch; send sends one message.
func (w workflowService) watch(
	ctx context.Context, req *operatorv1.WatchRequest, send func(*operatorv1.WatchResponse) error,
) error {
	c := requestOf(req)
	err := w.s.begin(ctx, c)
	if err == nil {
		_, err = w.s.cfg.Workflows.Definition(ctx, req.GetType())
	}
	if err == nil {
		r := w.s.flows.flow(req.GetType()).whole.Read(req.GetId(), nil)
		err = follow(ctx, w.s, c.who, r, func(
			kind operatorv1.WatchResponse_Kind, key string, e *operatorv1.Entity,
		) *operatorv1.WatchResponse {
			if kind == operatorv1.WatchResponse_KIND_DELETED {
				e = &operatorv1.Entity{Type: req.GetType(), Id: key}
			}
			return &operatorv1.WatchResponse{Kind: kind, Entity: e}
		}, send)
	}
	return w.s.failure(ctx, c.action, err)
}
