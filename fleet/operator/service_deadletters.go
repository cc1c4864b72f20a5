package operator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Limits of dead letters in requests and answers.
const (
	maxData    = 4 << 10 // bytes of a message in a list
	maxPart    = 4 << 20 // bytes of a message in one answer
	plainPart  = 1 << 20 // the same when the request does not say
	maxEdited  = 6 << 20 // bytes of an edited message
	maxReasons = 100     // groups in one answer
)

func (w workerService) ListDeadLetters(
	ctx context.Context, req *operatorv1.ListDeadLettersRequest,
) (*operatorv1.ListDeadLettersResponse, error) {
	c := requestOf(req)
	page := c.paging(req)
	after := page.number(&c.violations)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListDeadLettersResponse, error) {
		found, err := c.area.DeadLetters(ctx, req.GetWorkerId(), req.GetGroup(), after, page.size+1)
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ListDeadLettersResponse{}
		answer.DeadLetters, answer.NextPageToken = cut(found, (*operatorv1.DeadLetter).GetId, page)
		if !w.s.may(ctx, "WorkerService.ReadDeadLetter", req.GetWorkerId()) {
			for _, letter := range answer.DeadLetters {
				letter.Data = nil
			}
		}
		return answer, nil
	})
}

// letterIDs reads the ids of dead letters, which are numbers.
func (v *violations) letterIDs(field string, ids ...string) []uint64 {
	letters := make([]uint64, len(ids))
	for i, id := range ids {
		var err error
		if letters[i], err = strconv.ParseUint(id, 10, 64); err != nil {
			v.add(field, "has %q, which is not the id of a dead letter", clip(id, 32))
			break
		}
	}
	return letters
}

func (w workerService) ListDeadLetterGroups(
	ctx context.Context, req *operatorv1.ListDeadLetterGroupsRequest,
) (*operatorv1.ListDeadLetterGroupsResponse, error) {
	c := requestOf(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListDeadLetterGroupsResponse, error) {
		groups, err := c.area.LetterGroups(ctx, req.GetWorkerId())
		if err != nil {
			return nil, err
		}
		answer := &operatorv1.ListDeadLetterGroupsResponse{}
		for i, g := range groups {
			if i >= maxReasons {
				answer.Others += int64(len(g.Seqs))
				continue
			}
			answer.Groups = append(answer.Groups, &operatorv1.DeadLetterGroup{
				Name:    g.Name,
				Count:   int64(len(g.Seqs)),
				Reason:  text.Valid(g.Reason),
				FirstAt: timestamppb.New(g.First),
				LastAt:  timestamppb.New(g.Last),
				FirstId: strconv.FormatUint(g.Seqs[0], 10),
			})
		}
		return answer, nil
	})
}

func (w workerService) ReadDeadLetter(
	ctx context.Context, req *operatorv1.ReadDeadLetterRequest,
) (*operatorv1.DeadLetter, error) {
	c := requestOf(req)
	if req.GetOffset() < 0 {
		c.add("offset", "is negative")
	}
	limit := int64(req.GetLimit())
	switch {
	case limit < 0 || limit > maxPart:
		c.add("limit", "is %d, want 1 to %d, or 0 for %d", limit, maxPart, plainPart)
	case limit == 0:
		limit = plainPart
	}
	letter := c.letterIDs("id", req.GetId())
	c.detail = req.GetId()
	if req.GetOffset() != 0 {
		c.detail += fmt.Sprintf(" from byte %d on", req.GetOffset())
	}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.DeadLetter, error) {
		d, err := c.area.DeadLetter(ctx, req.GetWorkerId(), letter[0])
		if err != nil {
			return nil, err
		}
		from := min(req.GetOffset(), int64(len(d.GetData())))
		d.Data = d.GetData()[from:min(from+limit, int64(len(d.GetData())))]
		return d, nil
	})
}

// choice says which dead letters a request is about.
type choice struct {
	ids     []string
	all     bool
	group   string
	letters []uint64 // of ids
}

// choice checks the fields that choose dead letters.
func (v *violations) choice(ids []string, all bool, group string) choice {
	switch n := len(ids); {
	case n == 0 && !all && group == "":
		v.add("ids", "is missing: name dead letters, or set all or group")
	case n > 0 && all:
		v.add("all", "is set and ids are given: want one of the two")
	case group != "" && (all || n > 0):
		v.add("group", "is set together with ids or all: want one of the three")
	}
	return choice{ids, all, group, v.letterIDs("ids", ids...)}
}

func (c choice) String() string {
	switch {
	case c.all:
		return "all"
	case c.group != "":
		return "group " + c.group
	}
	return strings.Join(c.ids, ", ")
}

// resolve returns the dead letters, none for all of them, and false when the group is empty.
func (c choice) resolve(ctx context.Context, area Letters, id string) (letters []uint64, some bool, err error) {
	if c.group == "" {
		return c.letters, true, nil
	}
	groups, err := area.LetterGroups(ctx, id)
	i := slices.IndexFunc(groups, func(g host.LetterGroup) bool { return g.Name == c.group })
	if i < 0 || len(groups[i].Seqs) == 0 { // none would be all
		return nil, false, err
	}
	return groups[i].Seqs, true, err
}

func (w workerService) Redrive(ctx context.Context, req *operatorv1.RedriveRequest) (*operatorv1.RedriveResponse, error) {
	c := requestOf(req)
	chosen := c.choice(req.GetIds(), req.GetAll(), req.GetGroup())
	c.detail = chosen.String()
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.RedriveResponse, error) {
		letters, some, err := chosen.resolve(ctx, c.area, req.GetWorkerId())
		if err != nil || !some {
			return &operatorv1.RedriveResponse{}, err
		}
		n, err := c.area.Redrive(ctx, req.GetWorkerId(), letters)
		c.note("dead letters: %d", n) // also of a call that failed in the middle
		return &operatorv1.RedriveResponse{Redriven: int64(n)}, afterSome(err, n, "redriven")
	})
}

func (w workerService) RedriveEdited(
	ctx context.Context, req *operatorv1.RedriveEditedRequest,
) (*operatorv1.RedriveEditedResponse, error) {
	c := requestOf(req)
	if n := len(req.GetData()); n > maxEdited {
		c.add("data", "has %d bytes, at most %d are allowed", n, maxEdited)
	}
	letter, after := c.letterIDs("id", req.GetId()), digestOf(req.GetData())
	c.detail = req.GetId() + " edited to " + after
	if req.GetNote() != "" {
		c.detail += ": " + req.GetNote()
	}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.RedriveEditedResponse, error) {
		data, err := c.area.RedriveEdited(ctx, req.GetWorkerId(), letter[0], req.GetData())
		if err != nil {
			return nil, err
		}
		before := digestOf(data)
		c.note("it was %s", before)
		return &operatorv1.RedriveEditedResponse{Before: before, After: after}, nil
	})
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (w workerService) DiscardDeadLetters(
	ctx context.Context, req *operatorv1.DiscardDeadLettersRequest,
) (*operatorv1.DiscardDeadLettersResponse, error) {
	c := requestOf(req)
	if !req.GetDryRun() {
		c.required("note", req.GetNote())
	}
	chosen := c.choice(req.GetIds(), req.GetAll(), req.GetGroup())
	c.dryRun = req.GetDryRun()
	c.detail = chosen.String()
	if req.GetNote() != "" {
		c.detail = clip(req.GetNote(), 400) + "; " + c.detail // the ids may be long
	}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.DiscardDeadLettersResponse, error) {
		letters, some, err := chosen.resolve(ctx, c.area, req.GetWorkerId())
		if err != nil || !some {
			return &operatorv1.DiscardDeadLettersResponse{}, err
		}
		n, err := c.area.Discard(ctx, req.GetWorkerId(), letters, req.GetDryRun())
		c.note("dead letters: %d", n) // also of a call that failed in the middle
		return &operatorv1.DiscardDeadLettersResponse{Discarded: int64(n)}, afterSome(err, n, "discarded")
	})
}
