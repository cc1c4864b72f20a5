package operator

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// specOf returns the spec of a worker, with the digest of its code.
func specOf(rec *host.Record) *operatorv1.WorkerSpec {
	return &operatorv1.WorkerSpec{
		Id:          rec.ID,
		Tenant:      rec.Tenant,
		MimeType:    rec.MIMEType,
		Topic:       rec.Topic,
		Group:       rec.Group,
		OutputTopic: rec.OutputTopic,
		Key:         rec.Key,
		Limits:      limitsOf(rec.Limits),
		Env:         rec.Env,
		Secrets:     rec.Secrets,
		Rate:        rateOf(rec.Rate),
		Code:        &operatorv1.Code{Digest: "sha256:" + rec.Digest, Signature: rec.Signature},
		Rollout:     rolloutOf(rec.Rollout),
		Http:        httpOf(rec.HTTP),
	}
}

// httpOf turns the requests that a worker may send into the contract's message: nil for
// none.
func httpOf(w host.HTTP) *operatorv1.HTTP {
	if len(w.Allow)+len(w.Secrets) == 0 {
		return nil
	}
	return &operatorv1.HTTP{Allow: w.Allow, Secrets: w.Secrets}
}

// rolloutOf turns a rollout into the contract's message: nil for none.
func rolloutOf(o host.Rollout) *operatorv1.Rollout {
	if o == (host.Rollout{}) {
		return nil
	}
	m := &operatorv1.Rollout{Canary: int32(o.Canary), Messages: int32(o.Messages), Margin: int32(o.Margin)}
	if o.For != 0 {
		m.For = durationpb.New(o.For)
	}
	return m
}

// canaryOf turns a candidate into the contract's message.
func canaryOf(c *host.Candidate) *operatorv1.Canary {
	if c == nil {
		return nil
	}
	return &operatorv1.Canary{
		Digest:  "sha256:" + c.Digest,
		Percent: int32(c.Rollout.Canary),
		Since:   timestamppb.New(c.At),
		Until:   timestamppb.New(c.Until()),
	}
}

// specFrom is the inverse of specOf.
func specFrom(s *operatorv1.WorkerSpec, who string) (host.Spec, error) {
	limits, err := limitsFrom(s.GetLimits())
	return host.Spec{
		ID:          s.GetId(),
		Tenant:      s.GetTenant(),
		MIMEType:    s.GetMimeType(),
		Topic:       s.GetTopic(),
		Group:       s.GetGroup(),
		OutputTopic: s.GetOutputTopic(),
		Key:         s.GetKey(),
		Limits:      limits,
		Env:         s.GetEnv(),
		Secrets:     s.GetSecrets(),
		Rate: host.Rate{
			Messages: int(s.GetRate().GetMessages()),
			Per:      s.GetRate().GetPer().AsDuration(),
			Burst:    int(s.GetRate().GetBurst()),
		},
		Code:      s.GetCode().GetContent(),
		URL:       s.GetCode().GetUrl(),
		Digest:    sha(s.GetCode().GetDigest()),
		By:        who,
		Signature: s.GetCode().GetSignature(),
		HTTP:      host.HTTP{Allow: s.GetHttp().GetAllow(), Secrets: s.GetHttp().GetSecrets()},
		Rollout: host.Rollout{
			Canary:   int(s.GetRollout().GetCanary()),
			For:      s.GetRollout().GetFor().AsDuration(),
			Messages: int(s.GetRollout().GetMessages()),
			Margin:   int(s.GetRollout().GetMargin()),
		},
	}, err
}

func rateOf(r host.Rate) *operatorv1.Rate {
	if r == (host.Rate{}) {
		return nil
	}
	rate := &operatorv1.Rate{Messages: int32(r.Messages), Burst: int32(r.Burst)}
	if r.Per != 0 {
		rate.Per = durationpb.New(r.Per)
	}
	return rate
}

func (a hosts) Apply(
	ctx context.Context, s *operatorv1.WorkerSpec, dryRun bool, who string,
) (*operatorv1.ApplyWorkerResponse, error) {
	spec, err := specFrom(s, who)
	if err != nil {
		return nil, err
	}
	do := a.h.Apply
	if dryRun {
		do = a.h.Diff
	}
	plan, err := do(ctx, spec)
	if err != nil {
		return nil, codeErr(s.GetCode(), err)
	}
	answer := &operatorv1.ApplyWorkerResponse{Created: plan.Create}
	for _, d := range plan.Differences {
		answer.Changes = append(answer.Changes, &operatorv1.ApplyWorkerResponse_Change{
			Field: d.Field,
			From:  d.From,
			To:    d.To,
		})
	}
	if !dryRun || !plan.Create {
		answer.Worker, err = a.Get(ctx, spec.ID)
	}
	return answer, err
}

func lineOf(l host.Line) *operatorv1.WorkerLogLine {
	return &operatorv1.WorkerLogLine{
		Number: int64(l.Seq),
		At:     timestamppb.New(l.At),
		Text:   l.Text,
		Host:   l.Host,
		Digest: "sha256:" + l.Digest,
		Error:  l.Error,
	}
}

func (a hosts) Logs(ctx context.Context, id string, before int64, limit int) ([]*operatorv1.WorkerLogLine, error) {
	lines, err := a.h.Logs(ctx, id, uint64(before), limit)
	if err != nil {
		return nil, workerErr(err)
	}
	list := make([]*operatorv1.WorkerLogLine, len(lines))
	for i, l := range lines {
		list[i] = lineOf(l)
	}
	return list, nil
}

func (a hosts) FollowLogs(ctx context.Context, id string, after int64, send func(*operatorv1.WorkerLogLine) error) error {
	return workerErr(a.h.FollowLogs(ctx, id, uint64(after), func(l host.Line) error { return send(lineOf(l)) }))
}

// maxPreview is how many bytes of a value a list of keys shows.
const maxPreview = 256

func (a hosts) State(ctx context.Context, id, after string, limit int) ([]*operatorv1.StateEntry, string, error) {
	from, err := sequence(after)
	if err != nil {
		return nil, "", err
	}
	values, more, err := a.h.Values(ctx, id, from, limit)
	if err != nil {
		return nil, "", workerErr(err)
	}
	var list []*operatorv1.StateEntry
	for _, v := range values {
		if v.Key != "" {
			list = append(list, entryOf(v, maxPreview))
		}
	}
	if !more {
		return list, "", nil
	}
	return list, fmt.Sprint(values[len(values)-1].Seq), nil
}

func (a hosts) Timers(ctx context.Context, id, after string, limit int) ([]*operatorv1.WorkerTimer, string, error) {
	from, err := sequence(after)
	if err != nil {
		return nil, "", err
	}
	timers, next, err := a.h.Timers(ctx, id, from, limit)
	if err != nil {
		return nil, "", workerErr(err)
	}
	var list []*operatorv1.WorkerTimer
	for _, t := range timers {
		list = append(list, &operatorv1.WorkerTimer{
			Name:   t.Name,
			Key:    text.Valid(t.Key),
			Due:    diagnosis.Stamp(t.Due),
			Data:   t.Data[:min(len(t.Data), maxPreview)],
			Size:   int64(len(t.Data)),
			Failed: int32(t.Failed),
		})
	}
	if next == 0 {
		return list, "", nil
	}
	return list, fmt.Sprint(next), nil
}

func (a hosts) CancelTimer(ctx context.Context, id, key, name, _ string) error {
	return workerErr(a.h.CancelTimer(ctx, id, key, name))
}

func (a hosts) Value(ctx context.Context, id, key string) (*operatorv1.StateEntry, error) {
	v, err := a.h.Value(ctx, id, key)
	if err != nil {
		return nil, workerErr(err)
	}
	return entryOf(*v, len(v.Data)), nil
}

func entryOf(v host.Value, most int) *operatorv1.StateEntry {
	return &operatorv1.StateEntry{
		Key:   v.Key,
		Value: v.Data[:min(len(v.Data), most)],
		Size:  int64(len(v.Data)),
		At:    timestamppb.New(v.At),
	}
}

func (a hosts) Test(ctx context.Context, req *operatorv1.TestWorkerRequest) (*operatorv1.TestWorkerResponse, error) {
	t, err := a.h.Test(ctx, req.GetId(), host.TestRequest{
		Topic: req.GetTopic(), Header: headersFrom(req.GetHeaders()), Data: req.GetData(), Digest: sha(req.GetDigest()),
		Code:      req.GetCode().GetContent(),
		URL:       req.GetCode().GetUrl(),
		Signature: req.GetCode().GetSignature(),
		HTTP:      req.GetHttp(),
	})
	if err != nil {
		return nil, codeErr(req.GetCode(), err)
	}
	answer := &operatorv1.TestWorkerResponse{
		Logs:     validTexts(t.Lines),
		Duration: durationpb.New(t.Took.Round(time.Microsecond)),
		Digest:   "sha256:" + t.Digest,
	}
	for _, o := range t.Outputs {
		answer.Outputs = append(answer.Outputs, &operatorv1.TestWorkerResponse_Output{
			Topic:   text.Valid(o.Topic),
			Headers: headersOf(o.Header),
			Data:    o.Data,
		})
	}
	for _, c := range t.Changes {
		answer.Changes = append(answer.Changes, &operatorv1.TestWorkerResponse_Change{
			Key:     c.Key,
			Value:   c.Data,
			Deleted: c.Deleted,
		})
	}
	for _, c := range t.Timers {
		change := &operatorv1.TestWorkerResponse_Timer{Name: c.Name, Data: c.Data, Cancelled: c.Cancelled}
		if !c.Cancelled {
			change.Due = diagnosis.Stamp(c.Due)
		}
		answer.Timers = append(answer.Timers, change)
	}
	if t.Err != nil {
		answer.Error, answer.Rejected = text.Valid(t.Err.Error()), t.Rejected()
	}
	return answer, nil
}
