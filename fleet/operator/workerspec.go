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
	v.texts("spec.env", s.GetEnv())
	v.texts("spec.secrets", s.GetSecrets())
	v.texts("spec.http.allow", s.GetHttp().GetAllow())
	v.texts("spec.http.secrets", s.GetHttp().GetSecrets())
	if d := s.GetRollout().GetFor(); d != nil && (d.CheckValid() != nil || d.AsDuration() < 0) {
		v.add("spec.rollout.for", "is not a positive duration")
	}
	return v.code("spec.code", s.GetCode())
}

// texts checks a list of names.
func (v *violations) texts(field string, names []string) {
	if len(names) > maxFields {
		v.add(field, "has %d names, at most %d are allowed", len(names), maxFields)
		return
	}
	for i, name := range names {
		v.text(fmt.Sprintf("%s[%d]", field, i), name, true, maxName)
	}
}

func (w workerService) ApplyWorker(ctx context.Context, req *operatorv1.ApplyWorkerRequest) (*operatorv1.ApplyWorkerResponse, error) {
	var v violations
	detail := v.spec(req.GetSpec())
	what := intent{target: "worker/" + req.GetSpec().GetId(), detail: req.GetSpec().GetMimeType() + ", " + detail, dryRun: req.GetDryRun(), scope: scopeParts}
	return call(ctx, w.s, "WorkerService.ApplyWorker", what, v, func(ctx context.Context, who Principal) (*operatorv1.ApplyWorkerResponse, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		if err := w.s.mayApply(ctx, who, req.GetSpec()); err != nil {
			return nil, err
		}
		return area.Apply(ctx, req.GetSpec(), req.GetDryRun(), who.Name)
	})
}

func (w workerService) ReadWorkerState(ctx context.Context, req *operatorv1.ReadWorkerStateRequest) (*operatorv1.ReadWorkerStateResponse, error) {
	v := workerID(req.GetId())
	v.text("key", req.GetKey(), false, maxName)
	size := v.size("page_size", req.GetPageSize())
	list := "state of " + req.GetId()
	after := v.page(req.GetPageToken(), list)
	return onWorker(ctx, w, "ReadWorkerState", req.GetId(), req.GetKey(), v, func(ctx context.Context, area Workers, _ string) (*operatorv1.ReadWorkerStateResponse, error) {
		if req.GetKey() != "" {
			e, err := area.Value(ctx, req.GetId(), req.GetKey())
			if err != nil {
				return nil, err
			}
			return &operatorv1.ReadWorkerStateResponse{Entries: []*operatorv1.StateEntry{e}}, nil
		}
		entries, next, err := area.State(ctx, req.GetId(), after, size)
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ReadWorkerStateResponse{Entries: entries}
		if next != "" {
			answer.NextPageToken = pageToken{next, list}.String()
		}
		return answer, nil
	})
}

func (w workerService) ListWorkerTimers(ctx context.Context, req *operatorv1.ListWorkerTimersRequest) (*operatorv1.ListWorkerTimersResponse, error) {
	v := workerID(req.GetId())
	size := v.size("page_size", req.GetPageSize())
	list := "timers of " + req.GetId()
	after := v.page(req.GetPageToken(), list)
	return onWorker(ctx, w, "ListWorkerTimers", req.GetId(), "", v, func(ctx context.Context, area Workers, _ string) (*operatorv1.ListWorkerTimersResponse, error) {
		timers, next, err := area.Timers(ctx, req.GetId(), after, size)
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ListWorkerTimersResponse{Timers: timers}
		if next != "" {
			answer.NextPageToken = pageToken{next, list}.String()
		}
		return answer, nil
	})
}

func (w workerService) CancelWorkerTimer(ctx context.Context, req *operatorv1.CancelWorkerTimerRequest) (*operatorv1.CancelWorkerTimerResponse, error) {
	v := workerID(req.GetId())
	v.text("key", req.GetKey(), true, maxNote)
	v.text("name", req.GetName(), true, maxName)
	return onWorker(ctx, w, "CancelWorkerTimer", req.GetId(), req.GetName()+" of "+req.GetKey(), v, func(ctx context.Context, area Workers, who string) (*operatorv1.CancelWorkerTimerResponse, error) {
		return &operatorv1.CancelWorkerTimerResponse{}, area.CancelTimer(ctx, req.GetId(), req.GetKey(), req.GetName(), who)
	})
}

func (w workerService) TestWorker(ctx context.Context, req *operatorv1.TestWorkerRequest) (*operatorv1.TestWorkerResponse, error) {
	v := workerID(req.GetId())
	v.text("topic", req.GetTopic(), false, maxName)
	if req.GetDigest() != "" {
		v.digest("digest", req.GetDigest())
	}
	if req.GetCode() != nil {
		v.code("code", req.GetCode())
		if req.GetDigest() != "" {
			v.add("code", "and digest are given: want one of the two")
		}
	}
	if len(req.GetHeaders()) > maxFields {
		v.add("headers", "has %d headers, at most %d are allowed", len(req.GetHeaders()), maxFields)
	}
	for i, h := range req.GetHeaders()[:min(len(req.GetHeaders()), maxFields)] {
		v.text(fmt.Sprintf("headers[%d].name", i), h.GetName(), true, maxName)
	}
	return onWorker(ctx, w, "TestWorker", req.GetId(), req.GetDigest(), v, func(ctx context.Context, area Workers, _ string) (*operatorv1.TestWorkerResponse, error) {
		return area.Test(ctx, req)
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
