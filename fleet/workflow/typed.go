package workflow

import (
	"context"
	"fmt"
)

// Typed is a workflow of a Manager whose entities have one type, so that callers need
// no type assertions. It is a value without state.
type Typed[P Participant] struct {
	m        *Manager
	workflow string
}

// For returns the typed view of a workflow:
//
//	missions := workflow.For[*Mission](mgr, "drone-survey")
//
// It may be called before Register. A call that meets an entity of another type than
// P returns an error.
func For[P Participant](m *Manager, workflow string) Typed[P] { return Typed[P]{m, workflow} }

func (t Typed[P]) as(p Participant) (P, error) {
	typed, ok := p.(P)
	if !ok {
		return typed, fmt.Errorf("workflow %q: %w: its entities are of type %T, not %T", t.workflow, ErrInvalidParticipant, p, typed)
	}
	return typed, nil
}

func (t Typed[P]) mutator(fn func(P) error) func(Participant) error {
	if fn == nil {
		return nil
	}
	return func(p Participant) error {
		typed, err := t.as(p)
		if err != nil {
			return err
		}
		return fn(typed)
	}
}

// Create is [Manager.Create].
func (t Typed[P]) Create(ctx context.Context, initial P, opts ...WriteOption) error {
	return t.m.Create(ctx, initial, opts...)
}

// Get is [Manager.Get].
func (t Typed[P]) Get(ctx context.Context, entityID string, opts ...ReadOption) (P, error) {
	p, err := t.m.Get(ctx, t.workflow, entityID, opts...)
	if err != nil {
		var none P
		return none, err
	}
	return t.as(p)
}

// List is [Manager.List].
func (t Typed[P]) List(ctx context.Context, opts ListOptions) ([]P, error) {
	list, err := t.m.List(ctx, t.workflow, opts)
	if err != nil {
		return nil, err
	}
	typed := make([]P, len(list))
	for i, p := range list {
		if typed[i], err = t.as(p); err != nil {
			return nil, err
		}
	}
	return typed, nil
}

// Update is [Manager.Update].
func (t Typed[P]) Update(ctx context.Context, entityID string, mutator func(P) error, opts ...WriteOption) error {
	return t.m.Update(ctx, t.workflow, entityID, t.mutator(mutator), opts...)
}

// Transition is [Manager.Transition].
func (t Typed[P]) Transition(
	ctx context.Context, entityID, newPhase string, source TransitionSource, note string, opts ...WriteOption,
) error {
	return t.m.Transition(ctx, t.workflow, entityID, newPhase, source, note, opts...)
}

// TransitionWith is [Manager.TransitionWith].
func (t Typed[P]) TransitionWith(
	ctx context.Context, entityID, newPhase string, source TransitionSource, note string,
	mutator func(P) error, opts ...WriteOption,
) error {
	return t.m.TransitionWith(ctx, t.workflow, entityID, newPhase, source, note, t.mutator(mutator), opts...)
}

// TransitionMany is [Manager.TransitionMany].
func (t Typed[P]) TransitionMany(ctx context.Context, moves []Move) []Moved {
	return t.m.TransitionMany(ctx, t.workflow, moves)
}

// Complete is [Manager.Complete].
func (t Typed[P]) Complete(ctx context.Context, entityID string, opts ...WriteOption) error {
	return t.m.Complete(ctx, t.workflow, entityID, opts...)
}

// Fail is [Manager.Fail].
func (t Typed[P]) Fail(ctx context.Context, entityID, reason string, opts ...WriteOption) error {
	return t.m.Fail(ctx, t.workflow, entityID, reason, opts...)
}

// Pause is [Manager.Pause].
func (t Typed[P]) Pause(ctx context.Context, entityID, reason string, opts ...WriteOption) error {
	return t.m.Pause(ctx, t.workflow, entityID, reason, opts...)
}

// Resume is [Manager.Resume].
func (t Typed[P]) Resume(ctx context.Context, entityID, note string, opts ...WriteOption) error {
	return t.m.Resume(ctx, t.workflow, entityID, note, opts...)
}

// Delete is [Manager.Delete].
func (t Typed[P]) Delete(ctx context.Context, entityID string, opts ...WriteOption) error {
	return t.m.Delete(ctx, t.workflow, entityID, opts...)
}

// History is [Manager.History].
func (t Typed[P]) History(ctx context.Context, entityID string) ([]TransitionEvent, error) {
	return t.m.History(ctx, t.workflow, entityID)
}

// Watch is [Manager.Watch]. It returns an error when the workflow's entities have
// another type.
func (t Typed[P]) Watch(ctx context.Context) (<-chan P, error) {
	r, err := t.m.registration(t.workflow)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	if _, err := t.as(r.sample); err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return watch(ctx, t.m, r, func(e Event) (P, bool) {
		typed, ok := e.Record.Participant.(P)
		return typed, ok && e.Kind == EventPut
	}), nil
}
