package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Letters is where a [Server] finds dead letters. A hosted worker's have its id. Those of a
// workflow's hook have the id "TYPE/HOOK", which no worker can have: they are found when the
// [Workflows] are Letters too, as those of [FromManager] are. An id that has neither a worker or a
// hook nor dead letters is ReasonNotFound for every method.
type Letters interface {
	// DeadLetters returns at most limit dead letters whose numbers are above after, oldest
	// first. With a group, the name of one of LetterGroups, it returns only that group's.
	DeadLetters(ctx context.Context, id, group string, after uint64, limit int) ([]*operatorv1.DeadLetter, error)
	// LetterGroups returns the dead letters by reason, the largest group first.
	LetterGroups(ctx context.Context, id string) ([]host.LetterGroup, error)
	// DeadLetter returns one dead letter with its headers and its whole message;
	// ReasonNotFound when there is none.
	DeadLetter(ctx context.Context, id string, letter uint64) (*operatorv1.DeadLetter, error)
	// Redrive gives dead letters to the worker or the hook again, all of them when letters is
	// empty, and returns how many, also with an error.
	Redrive(ctx context.Context, id string, letters []uint64) (int, error)
	// RedriveEdited gives one dead letter to the worker with other data, and returns its
	// own data; ReasonRedriven when another call was first. A hook's have no data.
	RedriveEdited(ctx context.Context, id string, letter uint64, data []byte) (before []byte, err error)
	// Discard removes dead letters, all of them when letters is empty, and returns how many,
	// also with an error. With dryRun it only counts them.
	Discard(ctx context.Context, id string, letters []uint64, dryRun bool) (int, error)
}

// hookOf reads the id of a hook, "TYPE/HOOK". ok is false for the id of a worker.
func hookOf(id string) (typ, hook string, ok bool) {
	i := strings.LastIndex(id, "/")
	if i < 0 {
		return "", "", false
	}
	return id[:i], id[i+1:], true
}

func isHook(id string) bool { return strings.Contains(id, "/") }

// letters returns where the dead letters of a worker or of a hook are.
func (s *Server) letters(id string) (Letters, error) {
	if _, _, ok := hookOf(id); ok {
		if area, ok := s.cfg.Workflows.(Letters); ok {
			return area, nil
		}
		return nil, notServed("hooks of workflows")
	}
	if s.cfg.Workers == nil {
		return nil, notServed("hosted workers")
	}
	return s.cfg.Workers, nil
}

// hooks returns the hooks of a workflow for the rules.
func (a *manager) hooks(ctx context.Context, typ string) (list []diagnosis.Hook, err error) {
	statuses, err := a.m.HookStatuses(ctx, typ)
	for _, s := range statuses {
		list = append(list, diagnosis.Hook{
			Type:        s.Workflow,
			Name:        s.Hook,
			Failing:     s.Failing,
			Failures:    s.Failures,
			DeadLetters: s.DeadLetters,
		})
	}
	return list, workflowErr(err)
}

// hookLetters returns the dead letters of a hook, oldest write first.
func (a *manager) hookLetters(ctx context.Context, id string) ([]workflow.DeadLetter, error) {
	typ, hook, _ := hookOf(id)
	if def, err := a.m.GetWorkflowDefinition(typ); err != nil {
		return nil, workflowErr(err)
	} else if !slices.Contains(def.Hooks, hook) {
		return nil, Errorf(connect.CodeNotFound, ReasonNotFound, "worker_id", "the workflow %q has no hook %q here", clip(typ, maxName), clip(hook, 64))
	}
	list, err := a.m.DeadLetters(ctx, typ, hook)
	return list, workflowErr(err)
}

// reactionLetter turns a dead letter of a hook into the contract's message.
func reactionLetter(id string, d workflow.DeadLetter) *operatorv1.DeadLetter {
	return &operatorv1.DeadLetter{
		Id:       strconv.FormatUint(d.Revision, 10),
		WorkerId: id,
		Topic:    text.Valid(d.Key),
		Reason:   text.Valid(d.Error),
		At:       timestamppb.New(d.At),
		Attempts: int32(d.Attempts),
	}
}

func (a *manager) DeadLetters(
	ctx context.Context, id, group string, after uint64, limit int,
) (list []*operatorv1.DeadLetter, err error) {
	all, err := a.hookLetters(ctx, id)
	for _, d := range all {
		isChosen := group == "" || host.GroupOf(d.Error) == group
		if isChosen && d.Revision > after && len(list) < limit {
			list = append(list, reactionLetter(id, d))
		}
	}
	return list, err
}

func (a *manager) LetterGroups(ctx context.Context, id string) (groups []host.LetterGroup, err error) {
	all, err := a.hookLetters(ctx, id)
	for _, d := range all {
		name := host.GroupOf(d.Error)
		i := slices.IndexFunc(groups, func(g host.LetterGroup) bool { return g.Name == name })
		if i < 0 {
			i = len(groups)
			groups = append(groups, host.LetterGroup{Name: name, First: d.At})
		}
		g := &groups[i]
		g.Reason, g.Last, g.Seqs = d.Error, d.At, append(g.Seqs, d.Revision)
	}
	slices.SortStableFunc(groups, func(x, y host.LetterGroup) int { return cmp.Compare(len(y.Seqs), len(x.Seqs)) })
	return groups, err
}

func (a *manager) DeadLetter(ctx context.Context, id string, letter uint64) (*operatorv1.DeadLetter, error) {
	all, err := a.hookLetters(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		if d.Revision == letter {
			m := reactionLetter(id, d)
			m.Message, m.DataDigest = text.Valid(d.ID), digestOf(nil)
			return m, nil
		}
	}
	return nil, Errorf(connect.CodeNotFound, ReasonNotFound, "id", "%s has no dead letter %d", clip(id, maxName), letter)
}

// Redrive calls the hook in this process. A reaction that fails again stays a dead letter.
func (a *manager) Redrive(ctx context.Context, id string, letters []uint64) (int, error) {
	return a.eachLetter(ctx, id, letters, a.m.Redrive)
}

func (a *manager) RedriveEdited(context.Context, string, uint64, []byte) ([]byte, error) {
	return nil, invalid("worker_id", "a reaction of a hook has no message that can be edited: change the entity, or redrive it as it is")
}

func (a *manager) Discard(ctx context.Context, id string, letters []uint64, dryRun bool) (int, error) {
	if dryRun {
		return a.eachLetter(ctx, id, letters, func(context.Context, string, string, uint64) error { return nil })
	}
	return a.eachLetter(ctx, id, letters, a.m.Discard)
}

// eachLetter calls do for these dead letters of a hook, or all of them for none, and returns how
// many it was done with.
func (a *manager) eachLetter(
	ctx context.Context, id string, letters []uint64,
	do func(ctx context.Context, typ, hook string, revision uint64) error,
) (n int, err error) {
	all, err := a.hookLetters(ctx, id)
	if err != nil {
		return 0, err
	}
	typ, hook, _ := hookOf(id)
	for _, d := range all {
		if len(letters) > 0 && !slices.Contains(letters, d.Revision) {
			continue
		}
		switch err := do(ctx, typ, hook, d.Revision); {
		case err == nil:
			n++
		case ctx.Err() != nil:
			return n, workflowErr(err)
		case !errors.Is(err, workflow.ErrEntityNotFound): // otherwise another call has removed it
			e := Errorf(connect.CodeFailedPrecondition, ReasonRefused, "", "%s", text.Valid(fmt.Sprint(err)))
			e.Err = err
			return n, e
		}
	}
	return n, nil
}
