package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// spec checks the form of a spec. The host checks the rest.
func (v *violations) spec(s *operatorv1.WorkerSpec) (detail string) {
	if s == nil {
		v.add("spec", "is missing")
		return ""
	}
	v.text("spec.id", s.GetId(), true, maxName)
	v.text("spec.tenant", s.GetTenant(), false, maxName)
	v.text("spec.mime_type", s.GetMimeType(), true, maxName)
	v.text("spec.topic", s.GetTopic(), true, maxName)
	v.text("spec.group", s.GetGroup(), false, maxName)
	v.text("spec.output_topic", s.GetOutputTopic(), false, maxName)
	v.text("spec.key", s.GetKey(), false, maxName)
	v.texts("spec.env", s.GetEnv(), maxName)
	v.texts("spec.secrets", s.GetSecrets(), maxName)
	v.texts("spec.http.allow", s.GetHttp().GetAllow(), maxName)
	v.texts("spec.http.secrets", s.GetHttp().GetSecrets(), maxName)
	if d := s.GetRollout().GetFor(); d != nil && (d.CheckValid() != nil || d.AsDuration() < 0) {
		v.add("spec.rollout.for", "is not a positive duration")
	}
	return v.code("spec.code", s.GetCode())
}

func (w workerService) ApplyWorker(
	ctx context.Context, req *operatorv1.ApplyWorkerRequest,
) (*operatorv1.ApplyWorkerResponse, error) {
	spec := req.GetSpec()
	c := &request{
		action: "WorkerService.ApplyWorker",
		scope:  scopeParts,
		target: "worker/" + spec.GetId(),
		dryRun: req.GetDryRun(),
	}
	c.detail = spec.GetMimeType() + ", " + c.spec(spec)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ApplyWorkerResponse, error) {
		if err := w.s.mayApply(ctx, c.who, spec); err != nil {
			return nil, err
		}
		return w.s.cfg.Workers.Apply(ctx, spec, req.GetDryRun(), c.who.Name)
	})
}

func (w workerService) ReadWorkerState(
	ctx context.Context, req *operatorv1.ReadWorkerStateRequest,
) (*operatorv1.ReadWorkerStateResponse, error) {
	c := w.request("ReadWorkerState", req.GetId())
	c.text("key", req.GetKey(), false, maxName)
	c.detail = req.GetKey()
	page := c.paging(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ReadWorkerStateResponse, error) {
		if req.GetKey() != "" {
			e, err := w.s.cfg.Workers.Value(ctx, req.GetId(), req.GetKey())
			return &operatorv1.ReadWorkerStateResponse{Entries: []*operatorv1.StateEntry{e}}, err
		}
		entries, next, err := w.s.cfg.Workers.State(ctx, req.GetId(), page.after, page.size)
		return &operatorv1.ReadWorkerStateResponse{Entries: entries, NextPageToken: page.next(next)}, err
	})
}

func (w workerService) ListWorkerTimers(
	ctx context.Context, req *operatorv1.ListWorkerTimersRequest,
) (*operatorv1.ListWorkerTimersResponse, error) {
	c := w.request("ListWorkerTimers", req.GetId())
	page := c.paging(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListWorkerTimersResponse, error) {
		timers, next, err := w.s.cfg.Workers.Timers(ctx, req.GetId(), page.after, page.size)
		return &operatorv1.ListWorkerTimersResponse{Timers: timers, NextPageToken: page.next(next)}, err
	})
}

func (w workerService) CancelWorkerTimer(
	ctx context.Context, req *operatorv1.CancelWorkerTimerRequest,
) (*operatorv1.CancelWorkerTimerResponse, error) {
	c := w.request("CancelWorkerTimer", req.GetId())
	c.text("key", req.GetKey(), true, maxNote)
	c.text("name", req.GetName(), true, maxName)
	c.detail = req.GetName() + " of " + req.GetKey()
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.CancelWorkerTimerResponse, error) {
		err := w.s.cfg.Workers.CancelTimer(ctx, req.GetId(), req.GetKey(), req.GetName(), c.who.Name)
		return &operatorv1.CancelWorkerTimerResponse{}, err
	})
}

func (w workerService) TestWorker(
	ctx context.Context, req *operatorv1.TestWorkerRequest,
) (*operatorv1.TestWorkerResponse, error) {
	c := w.request("TestWorker", req.GetId())
	c.text("topic", req.GetTopic(), false, maxName)
	if req.GetDigest() != "" {
		c.digest("digest", req.GetDigest())
	}
	if req.GetCode() != nil {
		c.code("code", req.GetCode())
		if req.GetDigest() != "" {
			c.add("code", "and digest are given: want one of the two")
		}
	}
	if len(req.GetHeaders()) > maxFields {
		c.add("headers", "has %d headers, at most %d are allowed", len(req.GetHeaders()), maxFields)
	}
	for i, h := range req.GetHeaders()[:min(len(req.GetHeaders()), maxFields)] {
		c.text(fmt.Sprintf("headers[%d].name", i), h.GetName(), true, maxName)
	}
	c.detail = req.GetDigest()
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.TestWorkerResponse, error) {
		return w.s.cfg.Workers.Test(ctx, req)
	})
}

func headersFrom(list []*operatorv1.Header) map[string][]string {
	if len(list) == 0 {
		return nil
	}
	all := make(map[string][]string, len(list))
	for _, h := range list {
		all[h.GetName()] = append(all[h.GetName()], h.GetValues()...)
	}
	return all
}

// headersOf turns headers, which may have any bytes, into the contract's.
func headersOf(all map[string][]string) []*operatorv1.Header {
	var list []*operatorv1.Header
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, &operatorv1.Header{Name: text.Valid(name), Values: validTexts(all[name])})
	}
	return list
}

// validTexts returns a copy of texts as UTF-8.
func validTexts(list []string) []string {
	valid := make([]string, len(list))
	for i, s := range list {
		valid[i] = text.Valid(s)
	}
	return valid
}
