package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// FromHost makes a Server's Workers from a Host. The Host may run workers; a Host
// that was never started only answers requests. The counts of versions are those
// of this Host. RecoverWorkers recovers the workers that belong to it.
func FromHost(h *host.Host) Workers { return hosts{h} }

type hosts struct{ h *host.Host }

var workerErrors = []knownError{
	{host.ErrNoKey, connect.CodeNotFound, ReasonNotFound, "key"},
	{host.ErrNoTimer, connect.CodeNotFound, ReasonNotFound, "name"},
	{host.ErrNoLetter, connect.CodeNotFound, ReasonNotFound, "id"},
	{host.ErrRedriven, connect.CodeAborted, ReasonRedriven, "id"},
	{host.ErrNotFound, connect.CodeNotFound, ReasonNotFound, "id"},
	{host.ErrExists, connect.CodeAlreadyExists, ReasonExists, "id"},
	{host.ErrNoTopic, connect.CodeInvalidArgument, ReasonInvalid, "topics"},
	{engine.ErrNoEngine, connect.CodeInvalidArgument, ReasonInvalid, "mime_type"},
	{engine.ErrBadCode, connect.CodeInvalidArgument, ReasonBadCode, "code"},
	{host.ErrNoVersion, connect.CodeNotFound, ReasonNotFound, "digest"},
	{host.ErrNotGranted, connect.CodeInvalidArgument, ReasonNotGranted, ""},
	{host.ErrNotSigned, connect.CodeInvalidArgument, ReasonNotSigned, "code.signature"},
	{host.ErrInvalid, connect.CodeInvalidArgument, ReasonInvalid, ""},
}

func workerErr(err error) error { return translate(err, workerErrors) }

// codeErr is workerErr for a call that fetches code: the caller learns why the code
// cannot be fetched.
func codeErr(code *operatorv1.Code, err error) error {
	err = workerErr(err)
	var ours *Error
	if err == nil || errors.As(err, &ours) || code.GetUrl() == "" || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return translate(err, []knownError{{err, connect.CodeInvalidArgument, ReasonBadCode, "code.url"}})
}

// sha returns a digest in the Host's form: bare hexadecimal digits.
func sha(digest string) string { return strings.ToLower(strings.TrimPrefix(digest, "sha256:")) }

// workerOf turns a record into the contract's message.
func (a hosts) workerOf(rec *host.Record, waiting host.Waiting) *operatorv1.Worker {
	w := &operatorv1.Worker{
		Id:          rec.ID,
		MimeType:    rec.MIMEType,
		Topics:      []string{rec.Topic},
		Group:       rec.Group,
		State:       string(rec.State),
		Desired:     desired(rec.State),
		Digest:      "sha256:" + rec.Digest,
		Error:       rec.Reason,
		UpdatedAt:   timestamppb.New(rec.Changed.At),
		Changed:     changed(rec.Changed),
		Versions:    a.versions(rec),
		Backlog:     int64(waiting.Backlog),
		DeadLetters: int64(waiting.DeadLetters),
		OutputTopic: rec.OutputTopic,
		Limits:      limitsOf(rec.Limits),
		Spec:        specOf(rec.Newest()),
		Canary:      canaryOf(rec.Candidate),
	}
	if len(rec.History) > 0 {
		w.CreatedAt = timestamppb.New(rec.History[0].At)
	}
	if slices.Contains(a.h.Local(), rec.ID) {
		w.Host = "this host"
	}
	return w
}

// changed returns why a record changed, and who changed it.
func changed(c host.Change) string {
	if c.By == "" {
		return c.Note
	}
	return strings.TrimSpace(c.Note + " (by " + c.By + ")")
}

// limitsOf turns a worker's limits into the contract's message: nil when it has none.
func limitsOf(l engine.Limits) *operatorv1.Limits {
	if l == (engine.Limits{}) {
		return nil
	}
	m := &operatorv1.Limits{Memory: l.Memory, Output: l.Output, Outputs: int32(l.Outputs)}
	if l.Time != 0 {
		m.Time = durationpb.New(l.Time)
	}
	if l.Load != 0 {
		m.Load = durationpb.New(l.Load)
	}
	return m
}

// limitsFrom is the inverse of limitsOf.
func limitsFrom(m *operatorv1.Limits) (engine.Limits, error) {
	for field, d := range map[string]*durationpb.Duration{"time": m.GetTime(), "load": m.GetLoad()} {
		if d != nil && (d.CheckValid() != nil || d.AsDuration() < 0) {
			return engine.Limits{}, invalid("limits."+field, "is not a positive duration")
		}
	}
	numbers := map[string]int64{"memory": m.GetMemory(), "output": m.GetOutput(), "outputs": int64(m.GetOutputs())}
	for field, n := range numbers {
		if n < 0 {
			return engine.Limits{}, invalid("limits."+field, "is negative")
		}
	}
	return engine.Limits{
		Time:    m.GetTime().AsDuration(),
		Load:    m.GetLoad().AsDuration(),
		Memory:  m.GetMemory(),
		Output:  m.GetOutput(),
		Outputs: int(m.GetOutputs()),
	}, nil
}

// desired returns the state in which a host should keep a worker.
func desired(s host.State) string {
	switch s {
	case host.StateStopped:
		return string(host.StateStopped)
	case host.StateDeleting, host.StateDeleted:
		return string(host.StateDeleted)
	}
	return string(host.StateRunning)
}

// versions returns the versions, newest first.
func (a hosts) versions(rec *host.Record) []*operatorv1.CodeVersion {
	var list []*operatorv1.CodeVersion
	for _, v := range slices.Backward(rec.History) {
		x := versionOf(v)
		x.Current = v.Generation == rec.Generation
		for _, row := range a.h.Tallies() {
			if row.Worker == rec.ID && row.Generation == v.Generation {
				x.Counted = true
				x.Succeeded, x.Failed = int64(row.Succeeded), int64(row.Failed)
				x.DeadLettered, x.Discarded = int64(row.DeadLetters), int64(row.Discarded)
			}
		}
		list = append(list, x)
	}
	return list
}

func versionOf(v host.Version) *operatorv1.CodeVersion {
	return &operatorv1.CodeVersion{
		Digest:  "sha256:" + v.Digest,
		Source:  v.Source,
		Who:     v.By,
		At:      timestamppb.New(v.At),
		Bytes:   int64(v.Size),
		Rollout: v.Rollout,
	}
}

func (a hosts) Create(ctx context.Context, req *operatorv1.CreateWorkerRequest, who string) (*operatorv1.Worker, error) {
	if len(req.GetTopics()) != 1 {
		return nil, invalid("topics", "has %d topics: a worker has one, which may have wildcards; "+
			"several workers may be in one group", len(req.GetTopics()))
	}
	spec, err := specFrom(&operatorv1.WorkerSpec{
		Id:          req.GetId(),
		MimeType:    req.GetMimeType(),
		Topic:       req.GetTopics()[0],
		Group:       req.GetGroup(),
		OutputTopic: req.GetOutputTopic(),
		Limits:      req.GetLimits(),
		Code:        req.GetCode(),
	}, who)
	if err != nil {
		return nil, err
	}
	id, err := a.h.Create(ctx, spec)
	if err != nil {
		return nil, codeErr(req.GetCode(), err)
	}
	return a.Get(ctx, id)
}

func (a hosts) List(ctx context.Context) ([]*operatorv1.Worker, error) {
	recs, err := a.h.List(ctx)
	if err != nil {
		return nil, workerErr(err)
	}
	waiting, err := a.h.Waiting(ctx, recs...)
	if err != nil {
		return nil, workerErr(err)
	}
	list := make([]*operatorv1.Worker, len(recs))
	for i, rec := range recs {
		list[i] = a.workerOf(rec, waiting[rec.ID])
	}
	return list, nil
}

func (a hosts) Get(ctx context.Context, id string) (*operatorv1.Worker, error) {
	rec, err := a.h.Get(ctx, id)
	if err != nil {
		return nil, workerErr(err)
	}
	waiting, err := a.h.Waiting(ctx, rec)
	if err != nil {
		return nil, workerErr(err)
	}
	w := a.workerOf(rec, waiting[rec.ID])
	for _, m := range a.h.Explain(rec.Newest()) {
		w.Means = append(w.Means, &operatorv1.WorkerMeans{What: m.What, Name: m.Name, Grant: m.By, Missing: m.Missing})
	}
	if w.GetDeadLetters() == 0 {
		return w, nil
	}
	return w, a.letters(ctx, rec.ID, w.GetVersions())
}

// letters counts the dead letters of versions whose results only the host that runs the
// worker knows.
func (a hosts) letters(ctx context.Context, id string, versions []*operatorv1.CodeVersion) error {
	if !slices.ContainsFunc(versions, func(v *operatorv1.CodeVersion) bool { return !v.GetCounted() }) {
		return nil
	}
	counts, err := a.h.LetterDigests(ctx, id)
	if err != nil {
		return workerErr(err)
	}
	for _, v := range versions {
		if !v.GetCounted() {
			v.DeadLettered = int64(counts[sha(v.GetDigest())])
		}
	}
	return nil
}

// after returns the worker when err, the result of a write, is nil.
func (a hosts) after(ctx context.Context, id string, err error) (*operatorv1.Worker, error) {
	if err != nil {
		return nil, workerErr(err)
	}
	return a.Get(ctx, id)
}

func (a hosts) Start(ctx context.Context, id, who string) (*operatorv1.Worker, error) {
	return a.after(ctx, id, a.h.StartWorker(ctx, id, host.By(who, "")))
}

func (a hosts) Stop(ctx context.Context, id, who string) (*operatorv1.Worker, error) {
	return a.after(ctx, id, a.h.StopWorker(ctx, id, host.By(who, "")))
}

func (a hosts) LoadCode(ctx context.Context, id string, code *operatorv1.Code, who string) (*operatorv1.Worker, error) {
	opts := []host.Option{host.By(who, ""), host.Signature(code.GetSignature())}
	if code.GetDigest() != "" {
		opts = append(opts, host.Digest(sha(code.GetDigest())))
	}
	var err error
	if code.GetUrl() != "" {
		err = a.h.LoadCodeFromURL(ctx, id, code.GetUrl(), opts...)
	} else {
		err = a.h.LoadCodeFromContent(ctx, id, code.GetContent(), opts...)
	}
	return a.after(ctx, id, codeErr(code, err))
}

func (a hosts) Rollback(ctx context.Context, id, digest, who string) (*operatorv1.Worker, error) {
	return a.after(ctx, id, a.h.Rollback(ctx, id, sha(digest), host.By(who, "")))
}

func (a hosts) Promote(ctx context.Context, id, who string) (*operatorv1.Worker, error) {
	return a.after(ctx, id, a.h.Promote(ctx, id, host.By(who, "")))
}

func (a hosts) Delete(ctx context.Context, id, who string) error {
	return workerErr(a.h.Delete(ctx, id, host.By(who, "")))
}

func (a hosts) History(ctx context.Context, id string) ([]*operatorv1.CodeVersion, error) {
	rec, err := a.h.Get(ctx, id)
	if err != nil {
		return nil, workerErr(err)
	}
	list := a.versions(rec)
	slices.Reverse(list)
	return list, a.letters(ctx, id, list)
}

func (a hosts) Recover(ctx context.Context, _ string) (*operatorv1.RecoverWorkersResponse, error) {
	answer := &operatorv1.RecoverWorkersResponse{}
	failed := a.h.Recover(ctx)
	if ctx.Err() != nil {
		return nil, failed
	}
	answer.Recovered = a.h.Local()
	var many interface{ Unwrap() []error }
	switch {
	case failed == nil:
	case errors.As(failed, &many):
		for _, err := range many.Unwrap() {
			answer.Failures = append(answer.Failures, failure(err))
		}
	default:
		answer.Failures = append(answer.Failures, failure(failed))
	}
	return answer, nil
}

// failure names the worker when the error's text begins with it.
func failure(err error) *operatorv1.RecoverWorkersResponse_Failure {
	f := &operatorv1.RecoverWorkersResponse_Failure{Error: text.Valid(err.Error())}
	if rest, ok := strings.CutPrefix(f.Error, "worker "); ok {
		f.Id, f.Error, _ = strings.Cut(rest, ": ")
	}
	return f
}

func (a hosts) Code(ctx context.Context, id, from, to string) (*host.Comparison, error) {
	c, err := a.h.Compare(ctx, id, sha(from), sha(to))
	return c, workerErr(err)
}

func (a hosts) Activity(ctx context.Context, id string) (*operatorv1.WorkerActivity, error) {
	rec, err := a.h.Get(ctx, id)
	if err != nil {
		return nil, workerErr(err)
	}
	m := &operatorv1.WorkerActivity{}
	if rec.State == host.StateStopped {
		return m, nil // no host has it: do not wait for an answer
	}
	found, err := a.h.Activity(ctx, id)
	if err != nil || found == nil {
		return m, workerErr(err)
	}
	m.Host, m.Window = clip(found.Host, maxName), durationpb.New(found.Window)
	m.Succeeded, m.Failed = int64(found.Succeeded), int64(found.Failed)
	if found.Longest > 0 {
		m.P50, m.P95, m.Longest = durationpb.New(found.P50), durationpb.New(found.P95), durationpb.New(found.Longest)
	}
	for _, v := range slices.Backward(rec.History) {
		for _, row := range found.Versions {
			if row.Generation == v.Generation {
				m.Versions = append(m.Versions, &operatorv1.VersionActivity{
					Digest:       "sha256:" + v.Digest,
					Succeeded:    int64(row.Succeeded),
					Failed:       int64(row.Failed),
					DeadLettered: int64(row.DeadLetters),
				})
			}
		}
	}
	return m, nil
}

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

func (a hosts) State(ctx context.Context, id string, after uint64, limit int) (list []*operatorv1.StateEntry, next uint64, err error) {
	values, more, err := a.h.Values(ctx, id, after, limit)
	if err != nil {
		return nil, 0, workerErr(err)
	}
	for _, v := range values {
		if v.Key != "" {
			list = append(list, entryOf(v, maxPreview))
		}
	}
	if more {
		next = values[len(values)-1].Seq
	}
	return list, next, nil
}

func (a hosts) Timers(ctx context.Context, id string, after uint64, limit int) (list []*operatorv1.WorkerTimer, next uint64, err error) {
	timers, next, err := a.h.Timers(ctx, id, after, limit)
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
	return list, next, workerErr(err)
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

// letterOf turns a dead letter into the contract's message as a list has it, with these
// bytes of its data. A broker takes any bytes in subjects and headers; the contract's
// texts are UTF-8.
func letterOf(d *host.DeadLetter, data []byte) *operatorv1.DeadLetter {
	return &operatorv1.DeadLetter{
		Id:       fmt.Sprint(d.Seq),
		WorkerId: text.Valid(d.Worker),
		Topic:    text.Valid(d.Topic),
		Reason:   text.Valid(d.Reason),
		At:       timestamppb.New(d.At),
		Attempts: int32(d.Attempts),
		Digest:   "sha256:" + text.Valid(d.Digest),
		Data:     data,
		Size:     int64(len(d.Data)),
		Output:   text.Valid(d.Output),
	}
}

// beginOf returns what a list has of a message. It is a copy: a page of a thousand letters
// must not keep their whole messages in memory.
func beginOf(data []byte) []byte { return bytes.Clone(data[:min(len(data), maxData)]) }

func (a hosts) DeadLetters(
	ctx context.Context, id, group string, after uint64, limit int,
) (list []*operatorv1.DeadLetter, err error) {
	if group != "" {
		return a.lettersOfGroup(ctx, id, group, after, limit)
	}
	err = a.h.EachDeadLetter(ctx, id, after+1, func(d *host.DeadLetter) (bool, error) {
		list = append(list, letterOf(d, beginOf(d.Data)))
		return len(list) < limit, nil
	})
	return list, workerErr(err)
}

// lettersOfGroup reads only the letters of a group: between them there may be many others.
func (a hosts) lettersOfGroup(ctx context.Context, id, group string, last uint64, limit int) (list []*operatorv1.DeadLetter, err error) {
	groups, err := a.h.LetterGroups(ctx, id)
	if err != nil {
		return nil, workerErr(err)
	}
	for _, g := range groups {
		for _, seq := range g.Seqs {
			if g.Name != group || seq <= last || len(list) == limit {
				continue
			}
			d, err := a.h.DeadLetter(ctx, id, seq)
			switch {
			case err == nil:
				list = append(list, letterOf(d, beginOf(d.Data)))
			case !errors.Is(err, host.ErrNoLetter): // otherwise it has just gone
				return nil, workerErr(err)
			}
		}
	}
	return list, nil
}

func (a hosts) LetterGroups(ctx context.Context, id string) ([]host.LetterGroup, error) {
	groups, err := a.h.LetterGroups(ctx, id)
	return groups, workerErr(err)
}

func (a hosts) DeadLetter(ctx context.Context, id string, letter uint64) (*operatorv1.DeadLetter, error) {
	d, err := a.h.DeadLetter(ctx, id, letter)
	if err != nil {
		return nil, workerErr(err)
	}
	m := letterOf(d, d.Data)
	m.Headers, m.Message, m.DataDigest = headersOf(d.Header), text.Valid(d.Message), digestOf(d.Data)
	return m, nil
}

func (a hosts) Redrive(ctx context.Context, id string, letters []uint64) (int, error) {
	n, err := a.h.Redrive(ctx, id, letters...)
	return n, workerErr(err)
}

func (a hosts) RedriveEdited(ctx context.Context, id string, letter uint64, data []byte) ([]byte, error) {
	d, err := a.h.RedriveEdited(ctx, id, letter, data)
	if err != nil {
		return nil, workerErr(err)
	}
	return d.Data, nil
}

func (a hosts) Discard(ctx context.Context, id string, letters []uint64, dryRun bool) (int, error) {
	n, err := a.h.Discard(ctx, id, dryRun, letters...)
	return n, workerErr(err)
}
