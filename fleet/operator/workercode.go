package operator

import (
	"bytes"
	"context"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/linediff"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Limits of code for a diff. Without the second one, a million of empty lines would make an
// answer of many megabytes.
const (
	maxCompared = 1 << 20 // bytes of a version
	maxLines    = 20_000  // line feeds of both versions together
)

func (w workerService) DiffWorkerCode(ctx context.Context, req *operatorv1.DiffWorkerCodeRequest) (*operatorv1.DiffWorkerCodeResponse, error) {
	v := workerID(req.GetId())
	for field, digest := range map[string]string{"from": req.GetFrom(), "to": req.GetTo()} {
		if digest != "" {
			v.digest(field, digest)
		}
	}
	return onWorker(ctx, w, "DiffWorkerCode", req.GetId(), "", v, func(ctx context.Context, area Workers, _ string) (*operatorv1.DiffWorkerCodeResponse, error) {
		c, err := area.Code(ctx, req.GetId(), req.GetFrom(), req.GetTo())
		if err != nil {
			return nil, err
		}
		note(ctx, "%s to %s", c.From, c.To)
		answer := &operatorv1.DiffWorkerCodeResponse{
			From: c.From, To: c.To, FromBytes: int64(len(c.Before)), ToBytes: int64(len(c.After)), Changes: c.Changes, SettingsKnown: c.Known,
		}
		switch {
		case bytes.Equal(c.Before, c.After):
		case isBinary(c.Before) || isBinary(c.After):
			answer.NotCompared = "the code is not text"
		case max(len(c.Before), len(c.After)) > maxCompared:
			answer.NotCompared = fmt.Sprintf("the code has more than %d bytes", maxCompared)
		case lineFeeds(c.Before)+lineFeeds(c.After) > maxLines:
			answer.NotCompared = fmt.Sprintf("the two versions have more than %d lines", maxLines)
		default:
			r := linediff.Texts(c.From, c.To, string(c.Before), string(c.After))
			answer.Diff, answer.Added, answer.Removed = r.Unified, int32(r.Added), int32(r.Removed)
		}
		return answer, nil
	})
}

func lineFeeds(code []byte) int { return bytes.Count(code, []byte("\n")) }

// isBinary reports whether code is not text.
func isBinary(code []byte) bool { return !utf8.Valid(code) || bytes.IndexByte(code, 0) >= 0 }

func (a hosts) Code(ctx context.Context, id, from, to string) (*CodePair, error) {
	c, err := a.h.Compare(ctx, id, sha(from), sha(to))
	if err != nil {
		return nil, workerErr(err)
	}
	pair := &CodePair{From: "sha256:" + c.From.Digest, To: "sha256:" + c.To.Digest, Before: c.Before, After: c.After, Known: c.Known}
	for _, d := range c.Settings {
		pair.Changes = append(pair.Changes, &operatorv1.DiffWorkerCodeResponse_Change{Field: d.Field, From: d.From, To: d.To})
	}
	return pair, nil
}

func (w workerService) GetWorkerActivity(ctx context.Context, req *operatorv1.GetWorkerActivityRequest) (*operatorv1.WorkerActivity, error) {
	return onWorker(ctx, w, "GetWorkerActivity", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Workers, _ string) (*operatorv1.WorkerActivity, error) {
		return area.Activity(ctx, req.GetId())
	})
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
	m.Host, m.Window, m.Succeeded, m.Failed = clip(found.Host, maxName), durationpb.New(found.Window), int64(found.Succeeded), int64(found.Failed)
	if found.Longest > 0 {
		m.P50, m.P95, m.Longest = durationpb.New(found.P50), durationpb.New(found.P95), durationpb.New(found.Longest)
	}
	for i := len(rec.History) - 1; i >= 0; i-- {
		for _, row := range found.Versions {
			if v := rec.History[i]; row.Generation == v.Generation {
				m.Versions = append(m.Versions, &operatorv1.VersionActivity{Digest: "sha256:" + v.Digest, Succeeded: int64(row.Succeeded), Failed: int64(row.Failed), DeadLettered: int64(row.DeadLetters)})
			}
		}
	}
	return m, nil
}
