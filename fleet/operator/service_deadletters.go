package operator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
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
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListDeadLettersResponse, error) {
		found, err := c.area.DeadLetters(ctx, req.GetWorkerId(), req.GetGroup(), page.after, page.size+1)
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

// groupIDs returns the ids of a group of dead letters, none when there is no such group.
func groupIDs(ctx context.Context, area Letters, id, group string) ([]string, error) {
	groups, err := area.LetterGroups(ctx, id)
	for _, g := range groups {
		if g.GetName() == group {
			return g.IDs, err
		}
	}
	return nil, err
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
				answer.Others += g.GetCount()
				continue
			}
			answer.Groups = append(answer.Groups, g.DeadLetterGroup)
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
	c.detail = req.GetId()
	if req.GetOffset() != 0 {
		c.detail += fmt.Sprintf(" from byte %d on", req.GetOffset())
	}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.DeadLetter, error) {
		d, err := c.area.DeadLetter(ctx, req.GetWorkerId(), req.GetId())
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
	ids   []string
	all   bool
	group string
}

// choice checks the fields that choose dead letters.
func (v *violations) choice(c choice) {
	switch n := len(c.ids); {
	case n == 0 && !c.all && c.group == "":
		v.add("ids", "is missing: name dead letters, or set all or group")
	case n > 0 && c.all:
		v.add("all", "is set and ids are given: want one of the two")
	case c.group != "" && (c.all || n > 0):
		v.add("group", "is set together with ids or all: want one of the three")
	}
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

// resolve returns the ids of the dead letters, none for all of them, and false when the
// group is empty.
func (c choice) resolve(ctx context.Context, area Letters, id string) (ids []string, some bool, err error) {
	if c.group == "" {
		return c.ids, true, nil
	}
	ids, err = groupIDs(ctx, area, id, c.group)
	return ids, len(ids) > 0, err
}

func (w workerService) Redrive(ctx context.Context, req *operatorv1.RedriveRequest) (*operatorv1.RedriveResponse, error) {
	c := requestOf(req)
	chosen := choice{req.GetIds(), req.GetAll(), req.GetGroup()}
	c.choice(chosen)
	c.detail = chosen.String()
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.RedriveResponse, error) {
		ids, some, err := chosen.resolve(ctx, c.area, req.GetWorkerId())
		if err != nil || !some {
			return &operatorv1.RedriveResponse{}, err
		}
		n, err := c.area.Redrive(ctx, req.GetWorkerId(), ids, c.who.Name)
		c.note("dead letters: %d", n) // also of a call that failed in the middle
		return &operatorv1.RedriveResponse{Redriven: n}, afterSome(err, n, "redriven")
	})
}

func (w workerService) RedriveEdited(
	ctx context.Context, req *operatorv1.RedriveEditedRequest,
) (*operatorv1.RedriveEditedResponse, error) {
	c := requestOf(req)
	if n := len(req.GetData()); n > maxEdited {
		c.add("data", "has %d bytes, at most %d are allowed", n, maxEdited)
	}
	after := digestOf(req.GetData())
	c.detail = req.GetId() + " edited to " + after
	if req.GetNote() != "" {
		c.detail += ": " + req.GetNote()
	}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.RedriveEditedResponse, error) {
		data, err := c.area.RedriveEdited(ctx, req.GetWorkerId(), req.GetId(), req.GetData(), c.who.Name)
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
	chosen := choice{req.GetIds(), req.GetAll(), req.GetGroup()}
	c.choice(chosen)
	c.dryRun = req.GetDryRun()
	c.detail = chosen.String()
	if req.GetNote() != "" {
		c.detail = clip(req.GetNote(), 400) + "; " + c.detail // the ids may be long
	}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.DiscardDeadLettersResponse, error) {
		ids, some, err := chosen.resolve(ctx, c.area, req.GetWorkerId())
		if err != nil || !some {
			return &operatorv1.DiscardDeadLettersResponse{}, err
		}
		n, err := c.area.Discard(ctx, req.GetWorkerId(), ids, req.GetDryRun(), c.who.Name)
		c.note("dead letters: %d", n) // also of a call that failed in the middle
		return &operatorv1.DiscardDeadLettersResponse{Discarded: n}, afterSome(err, n, "discarded")
	})
}
