package operator

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Limits of code for a diff. Without the second one, a million of empty lines would make an
// answer of many megabytes.
const (
	maxCompared = 1 << 20 // bytes of a version
	maxLines    = 20_000  // line feeds of both versions together
)

func (w workerService) DiffWorkerCode(
	ctx context.Context, req *operatorv1.DiffWorkerCodeRequest,
) (*operatorv1.DiffWorkerCodeResponse, error) {
	c := w.request("DiffWorkerCode", req.GetId())
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
		c.note("%s to %s", pair.From, pair.To)
		answer := &operatorv1.DiffWorkerCodeResponse{
			From:          pair.From,
			To:            pair.To,
			FromBytes:     int64(len(pair.Before)),
			ToBytes:       int64(len(pair.After)),
			Changes:       pair.Changes,
			SettingsKnown: pair.Known,
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
			answer.Diff, answer.Added, answer.Removed = unifiedDiff(pair)
		}
		return answer, nil
	})
}

// unifiedDiff compares the code of two versions line by line. It returns the difference in
// the unified format, and how many lines were added and removed.
func unifiedDiff(p *CodePair) (text string, added, removed int32) {
	_, whole, _ := bytes.Cut(diff.Diff(p.From, p.Before, p.To, p.After), []byte("\n")) // without the line "diff FROM TO"
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
	c := w.request("GetWorkerActivity", req.GetId())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.WorkerActivity, error) {
		return w.s.cfg.Workers.Activity(ctx, req.GetId())
	})
}
