package operator

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/rogpeppe/go-internal/diff"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// workerService implements the contract's WorkerService.
type workerService struct{ s *Server }

// maxCode is the largest code in a request. Larger code has to be fetched.
const maxCode = 8 << 20

// code checks the form of code in a field. The host checks whether it loads.
func (v *violations) code(field string, c *operatorv1.Code) (detail string) {
	switch src := c.GetSource().(type) {
	case nil:
		v.add(field, "is missing: want content or url")
	case *operatorv1.Code_Content:
		detail = "inline code"
		if n := len(src.Content); n == 0 || n > maxCode {
			v.add(field+".content", "has %d bytes, want 1 to %d", n, maxCode)
		}
	case *operatorv1.Code_Url:
		detail = "code of " + src.Url
		switch u, err := url.Parse(src.Url); {
		case err != nil || u.Host == "", u.Scheme != "https" && u.Scheme != "http":
			v.add(field+".url", "is %q, want an https URL", clip(src.Url, 128))
		case u.User != nil:
			v.add(field+".url", "has a user name in it: credentials do not belong in a URL")
			detail = "code of " + u.Redacted()
		}
	}
	if c.GetDigest() != "" {
		v.digest(field+".digest", c.GetDigest())
	}
	if n := len(c.GetSignature()); n != 0 && n != ed25519.SignatureSize {
		v.add(field+".signature", "has %d bytes, want %d", n, ed25519.SignatureSize)
	}
	return detail
}

func (v *violations) digest(field, digest string) {
	raw, ok := strings.CutPrefix(digest, "sha256:")
	if b, err := hex.DecodeString(raw); !ok || err != nil || len(b) != 32 {
		v.add(field, "is %q, want sha256: and 64 hexadecimal digits", clip(digest, 80))
	}
}

func (w workerService) CreateWorker(ctx context.Context, req *operatorv1.CreateWorkerRequest) (*operatorv1.Worker, error) {
	c := requestOf(req)
	c.required("mime_type", req.GetMimeType())
	c.required("topics", strings.Join(req.GetTopics(), ""))
	c.detail = req.GetMimeType() + ", " + c.code("code", req.GetCode())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Create(ctx, req, c.who.Name)
	})
}

func (w workerService) ListWorkers(
	ctx context.Context, req *operatorv1.ListWorkersRequest,
) (*operatorv1.ListWorkersResponse, error) {
	c := requestOf(req)
	oneOf(&c.violations, "state", req.GetState(), host.States().Phases())
	page := c.paging(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListWorkersResponse, error) {
		all, err := w.s.cfg.Workers.List(ctx)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(slices.Clone(all), func(x *operatorv1.Worker) bool {
			otherState := req.GetState() != "" && !strings.EqualFold(x.GetState(), req.GetState())
			otherGroup := req.GetGroup() != "" && x.GetGroup() != req.GetGroup()
			return !c.who.sees(workerObject(x)) || otherState || otherGroup
		})
		slices.SortFunc(all, func(a, b *operatorv1.Worker) int { return strings.Compare(a.GetId(), b.GetId()) })
		answer := &operatorv1.ListWorkersResponse{}
		answer.Workers, answer.NextPageToken = pageOf(all, (*operatorv1.Worker).GetId, page)
		return answer, nil
	})
}

func (w workerService) GetWorker(ctx context.Context, req *operatorv1.GetWorkerRequest) (*operatorv1.Worker, error) {
	return call(ctx, w.s, requestOf(req), func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Get(ctx, req.GetId())
	})
}

func (w workerService) StartWorker(ctx context.Context, req *operatorv1.StartWorkerRequest) (*operatorv1.Worker, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Start(ctx, req.GetId(), c.who.Name)
	})
}

func (w workerService) StopWorker(ctx context.Context, req *operatorv1.StopWorkerRequest) (*operatorv1.Worker, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Stop(ctx, req.GetId(), c.who.Name)
	})
}

func (w workerService) LoadCode(ctx context.Context, req *operatorv1.LoadCodeRequest) (*operatorv1.Worker, error) {
	c := requestOf(req)
	c.detail = c.code("code", req.GetCode())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.LoadCode(ctx, req.GetId(), req.GetCode(), c.who.Name)
	})
}

func (w workerService) Rollback(ctx context.Context, req *operatorv1.RollbackRequest) (*operatorv1.Worker, error) {
	c := requestOf(req)
	c.digest("digest", req.GetDigest())
	c.detail = "to " + req.GetDigest()
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Rollback(ctx, req.GetId(), req.GetDigest(), c.who.Name)
	})
}

func (w workerService) PromoteWorker(ctx context.Context, req *operatorv1.PromoteWorkerRequest) (*operatorv1.Worker, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Promote(ctx, req.GetId(), c.who.Name)
	})
}

func (w workerService) DeleteWorker(
	ctx context.Context, req *operatorv1.DeleteWorkerRequest,
) (*operatorv1.DeleteWorkerResponse, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.DeleteWorkerResponse, error) {
		return &operatorv1.DeleteWorkerResponse{}, w.s.cfg.Workers.Delete(ctx, req.GetId(), c.who.Name)
	})
}

func (w workerService) GetWorkerHistory(
	ctx context.Context, req *operatorv1.GetWorkerHistoryRequest,
) (*operatorv1.GetWorkerHistoryResponse, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.GetWorkerHistoryResponse, error) {
		list, err := w.s.cfg.Workers.History(ctx, req.GetId())
		return &operatorv1.GetWorkerHistoryResponse{Versions: list}, err
	})
}

func (w workerService) RecoverWorkers(
	ctx context.Context, req *operatorv1.RecoverWorkersRequest,
) (*operatorv1.RecoverWorkersResponse, error) {
	c := requestOf(req)
	c.scope, c.target = scopeFleet, "worker/*"
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.RecoverWorkersResponse, error) {
		return w.s.cfg.Workers.Recover(ctx, c.who.Name)
	})
}

// Limits of code for a diff. Without the second one, a million of empty lines would make an
// answer of many megabytes.
const (
	maxCompared = 1 << 20 // bytes of a version
	maxLines    = 20_000  // line feeds of both versions together
)

func (w workerService) DiffWorkerCode(
	ctx context.Context, req *operatorv1.DiffWorkerCodeRequest,
) (*operatorv1.DiffWorkerCodeResponse, error) {
	c := requestOf(req)
	for field, digest := range map[string]string{"from": req.GetFrom(), "to": req.GetTo()} {
		if digest != "" {
			c.digest(field, digest)
		}
	}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.DiffWorkerCodeResponse, error) {
		pair, err := w.s.cfg.Workers.Code(ctx, req.GetId(), req.GetFrom(), req.GetTo())
		if err != nil {
			return nil, err
		}
		from, to := "sha256:"+pair.From.Digest, "sha256:"+pair.To.Digest
		c.note("%s to %s", from, to)
		answer := &operatorv1.DiffWorkerCodeResponse{
			From:          from,
			To:            to,
			FromBytes:     int64(len(pair.Before)),
			ToBytes:       int64(len(pair.After)),
			SettingsKnown: pair.Known,
		}
		for _, d := range pair.Settings {
			change := &operatorv1.DiffWorkerCodeResponse_Change{Field: d.Field, From: d.From, To: d.To}
			answer.Changes = append(answer.Changes, change)
		}
		switch {
		case bytes.Equal(pair.Before, pair.After):
		case isBinary(pair.Before) || isBinary(pair.After):
			answer.NotCompared = "the code is not text"
		case max(len(pair.Before), len(pair.After)) > maxCompared:
			answer.NotCompared = fmt.Sprintf("the code has more than %d bytes", maxCompared)
		case lineFeeds(pair.Before)+lineFeeds(pair.After) > maxLines:
			answer.NotCompared = fmt.Sprintf("the two versions have more than %d lines", maxLines)
		default:
			answer.Diff, answer.Added, answer.Removed = unifiedDiff(from, to, pair.Before, pair.After)
		}
		return answer, nil
	})
}

// unifiedDiff compares the code of two versions line by line. It returns the difference in
// the unified format, and how many lines were added and removed.
func unifiedDiff(from, to string, before, after []byte) (text string, added, removed int32) {
	_, whole, _ := bytes.Cut(diff.Diff(from, before, to, after), []byte("\n")) // without the line "diff FROM TO"
	text = string(whole)
	for i, line := range strings.SplitAfter(text, "\n") {
		switch {
		case i < 2: // the names
		case strings.HasPrefix(line, "+"):
			added++
		case strings.HasPrefix(line, "-"):
			removed++
		}
	}
	return text, added, removed
}

func lineFeeds(code []byte) int { return bytes.Count(code, []byte("\n")) }

// isBinary reports whether code is not text.
func isBinary(code []byte) bool { return !utf8.Valid(code) || bytes.IndexByte(code, 0) >= 0 }

func (w workerService) GetWorkerActivity(
	ctx context.Context, req *operatorv1.GetWorkerActivityRequest,
) (*operatorv1.WorkerActivity, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.WorkerActivity, error) {
		return w.s.cfg.Workers.Activity(ctx, req.GetId())
	})
}

// spec checks the form of a spec. The host checks the rest.
func (v *violations) spec(s *operatorv1.WorkerSpec) (detail string) {
	if s == nil {
		v.add("spec", "is missing")
		return ""
	}
	v.required("spec.id", s.GetId())
	v.required("spec.mime_type", s.GetMimeType())
	v.required("spec.topic", s.GetTopic())
	if d := s.GetRollout().GetFor(); d != nil && (d.CheckValid() != nil || d.AsDuration() < 0) {
		v.add("spec.rollout.for", "is not a positive duration")
	}
	return v.code("spec.code", s.GetCode())
}

func (w workerService) ApplyWorker(
	ctx context.Context, req *operatorv1.ApplyWorkerRequest,
) (*operatorv1.ApplyWorkerResponse, error) {
	spec := req.GetSpec()
	c := requestOf(req)
	c.target, c.dryRun = "worker/"+spec.GetId(), req.GetDryRun()
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
	c := requestOf(req)
	c.detail = req.GetKey()
	page := c.paging(req)
	after := page.number(&c.violations)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ReadWorkerStateResponse, error) {
		if req.GetKey() != "" {
			e, err := w.s.cfg.Workers.Value(ctx, req.GetId(), req.GetKey())
			return &operatorv1.ReadWorkerStateResponse{Entries: []*operatorv1.StateEntry{e}}, err
		}
		entries, next, err := w.s.cfg.Workers.State(ctx, req.GetId(), after, page.size)
		return &operatorv1.ReadWorkerStateResponse{Entries: entries, NextPageToken: page.nextNumber(next)}, err
	})
}

func (w workerService) ListWorkerTimers(
	ctx context.Context, req *operatorv1.ListWorkerTimersRequest,
) (*operatorv1.ListWorkerTimersResponse, error) {
	c := requestOf(req)
	page := c.paging(req)
	after := page.number(&c.violations)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListWorkerTimersResponse, error) {
		timers, next, err := w.s.cfg.Workers.Timers(ctx, req.GetId(), after, page.size)
		return &operatorv1.ListWorkerTimersResponse{Timers: timers, NextPageToken: page.nextNumber(next)}, err
	})
}

func (w workerService) CancelWorkerTimer(
	ctx context.Context, req *operatorv1.CancelWorkerTimerRequest,
) (*operatorv1.CancelWorkerTimerResponse, error) {
	c := requestOf(req)
	c.required("key", req.GetKey())
	c.required("name", req.GetName())
	c.detail = req.GetName() + " of " + req.GetKey()
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.CancelWorkerTimerResponse, error) {
		err := w.s.cfg.Workers.CancelTimer(ctx, req.GetId(), req.GetKey(), req.GetName(), c.who.Name)
		return &operatorv1.CancelWorkerTimerResponse{}, err
	})
}

func (w workerService) TestWorker(
	ctx context.Context, req *operatorv1.TestWorkerRequest,
) (*operatorv1.TestWorkerResponse, error) {
	c := requestOf(req)
	if req.GetDigest() != "" {
		c.digest("digest", req.GetDigest())
	}
	if req.GetCode() != nil {
		c.code("code", req.GetCode())
		if req.GetDigest() != "" {
			c.add("code", "and digest are given: want one of the two")
		}
	}
	var names []string
	for _, h := range req.GetHeaders() {
		names = append(names, h.GetName())
	}
	if slices.Contains(names, "") {
		c.add("headers", "has a header without a name")
	}
	c.list("headers", names)
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

func (w workerService) ReadWorkerLogs(
	ctx context.Context, req *operatorv1.ReadWorkerLogsRequest,
) (*operatorv1.ReadWorkerLogsResponse, error) {
	c := requestOf(req)
	page := c.paging(req)
	before := page.number(&c.violations)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ReadWorkerLogsResponse, error) {
		lines, err := w.s.cfg.Workers.Logs(ctx, req.GetId(), int64(before), page.size+1)
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ReadWorkerLogsResponse{Lines: lines}
		if len(lines) > page.size {
			answer.Lines = lines[1:]
			answer.NextPageToken = page.nextNumber(uint64(answer.GetLines()[0].GetNumber()))
		}
		return answer, nil
	})
}

func (w workerService) FollowWorkerLogs(
	ctx context.Context, req *operatorv1.FollowWorkerLogsRequest, stream *connect.ServerStream[operatorv1.FollowWorkerLogsResponse],
) error {
	return w.follow(ctx, req, stream.Send)
}

// maxTail is how many lines a log begins with at most.
const maxTail = 1000

// follow serves FollowWorkerLogs; send sends one message. The audit has the begin: what ends
// a stream later is not an attempt that failed.
func (w workerService) follow(
	ctx context.Context, req *operatorv1.FollowWorkerLogsRequest, send func(*operatorv1.FollowWorkerLogsResponse) error,
) error {
	c := requestOf(req)
	tail := int(req.GetTail())
	switch {
	case tail < -1 || tail > maxTail:
		c.add("tail", "is %d, want 1 to %d, -1 for none, or 0 for 10", tail, maxTail)
	case tail == 0:
		tail = 10
	}
	var lines []*operatorv1.WorkerLogLine
	err := w.s.begin(ctx, c)
	if err == nil {
		lines, err = w.s.cfg.Workers.Logs(ctx, req.GetId(), 0, max(tail, 1))
	}
	err = w.s.failure(ctx, c.action, err)
	w.s.audit.record(ctx, c.entry(ctx, err))
	if err != nil {
		return err
	}
	after := int64(0)
	if len(lines) > 0 {
		after = lines[len(lines)-1].GetNumber()
	}
	if tail < 0 {
		lines = nil
	}
	return w.s.failure(ctx, c.action, w.sendLines(ctx, c, lines, after, send))
}

// sendLines sends lines, and then each one behind after.
func (w workerService) sendLines(ctx context.Context, c *request, lines []*operatorv1.WorkerLogLine, after int64,
	send func(*operatorv1.FollowWorkerLogsResponse) error,
) error {
	message := func(kind operatorv1.WatchResponse_Kind, l *operatorv1.WorkerLogLine) *operatorv1.FollowWorkerLogsResponse {
		return &operatorv1.FollowWorkerLogsResponse{Kind: kind, Line: l}
	}
	beat := message(operatorv1.WatchResponse_KIND_HEARTBEAT, nil)
	return serveStream(ctx, w.s, c.who, beat, send, func(
		ctx context.Context, put func(*operatorv1.FollowWorkerLogsResponse) error,
	) error {
		line := func(l *operatorv1.WorkerLogLine) error { return put(message(operatorv1.WatchResponse_KIND_PUT, l)) }
		for _, l := range lines {
			if err := line(l); err != nil {
				return err
			}
		}
		if err := put(message(operatorv1.WatchResponse_KIND_SYNCED, nil)); err != nil {
			return err
		}
		// One call follows the log to its end: it is of the worker that the caller may see, and not
		// of one that is made later under the same id.
		if err := w.s.cfg.Workers.FollowLogs(ctx, c.object, after, line); err != nil {
			return err
		}
		return errWatchOver()
	})
}
