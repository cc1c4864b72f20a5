package workflow

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Create stores a new entity, in any phase of its table. It returns
// ErrEntityExists when there is an entity of that id. The id of a deleted entity
// may be used again.
func (m *Manager) Create(ctx context.Context, initial Participant, opts ...WriteOption) error {
	if v := reflect.ValueOf(initial); initial == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("create: %w: it is nil", ErrInvalidParticipant)
	}
	r, err := m.registration(initial.Workflow())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	id := initial.EntityID()
	if err = r.creatable(initial); err == nil {
		err = m.write(ctx, r, id, options(opts), unwritten, func(cur *entry) (decision, error) {
			if cur != nil && !cur.deleted() {
				return decision{}, ErrEntityExists
			}
			data, err := r.encode(initial)
			d := decision{next: initial, data: data, phase: initial.Phase()}
			d.entered, d.source, d.version = d.phase, TransitionSourceFramework, number(r.version)
			return d, err
		})
	}
	if err != nil {
		return fmt.Errorf("create %s %q: %w", r.workflow, id, err)
	}
	return nil
}

// creatable returns an error for a participant whose type is not the workflow's, or whose phase
// is not in the table.
func (r *registration) creatable(p Participant) error {
	if got, want := fmt.Sprintf("%T", p), fmt.Sprintf("%T", r.sample); got != want {
		return fmt.Errorf("%w: it is a %s, want a %s", ErrInvalidParticipant, got, want)
	}
	if !r.table.Has(p.Phase()) {
		return fmt.Errorf("%w: its phase is %q, want one of %s", ErrInvalidTransition, p.Phase(), strings.Join(r.table.Phases(), ", "))
	}
	return nil
}

// Update changes an entity: mutator gets it and changes it in place. The mutator
// runs again when another writer was faster, so it must have no other effect, and
// it must not call the Manager. When it returns an error, Update returns that error
// and writes nothing.
//
// Writers of this process take turns at an entity, in the order in which they come. When
// another process was faster, Update tries again after a random pause until ctx ends
// (DefaultPatience when it has no deadline), and then returns ErrUpdateRetriesExhausted.
// Other errors: ErrEntityNotFound; ErrImmutableField when the mutator changed the id or
// the phase; a [*DegradedError] for a record that cannot be decoded; ErrOutcomeUnknown
// when the server went away during the write and did not come back in time.
func (m *Manager) Update(
	ctx context.Context, workflow, entityID string, mutator func(Participant) error, opts ...WriteOption,
) (err error) {
	defer wrap(&err, "update %s %q", workflow, entityID)
	r, err := m.registration(workflow)
	switch {
	case err != nil:
		return err
	case mutator == nil:
		return errors.New("the mutator is nil, want a function that changes the entity")
	}
	return m.mutate(ctx, r, entityID, options(opts), keepPhase, mutator)
}

// MaxNote is how many bytes of a transition's note are stored. A longer note is cut there
// and ends with "…".
const MaxNote = 8 << 10

// Transition moves an entity to another phase when the table has that edge from
// the entity's phase at the moment of the write. source and note are stored in the
// same message; History returns them. A note has up to [MaxNote] bytes.
//
// It returns ErrTerminalPhase when the entity's phase is terminal,
// ErrInvalidTransition when the table does not have the edge or the phase, and the
// errors of Update.
func (m *Manager) Transition(
	ctx context.Context, workflow, entityID, newPhase string, source TransitionSource, note string, opts ...WriteOption,
) error {
	return m.TransitionWith(ctx, workflow, entityID, newPhase, source, note, nil, opts...)
}

// TransitionWith is Transition with a mutator. It runs after the edge was found
// allowed and before the phase changes. Both changes are one write, or none.
func (m *Manager) TransitionWith(
	ctx context.Context, workflow, entityID, newPhase string, source TransitionSource, note string,
	mutator func(Participant) error, opts ...WriteOption,
) error {
	r, err := m.registration(workflow)
	if err != nil {
		return fmt.Errorf("transition: %w", err)
	}
	t := transition{source: source, note: note, mutator: mutator, to: always(newPhase)}
	return m.transition(ctx, r, entityID, t, options(opts))
}

// transition is a change of phase.
type transition struct {
	source  TransitionSource
	note    string
	mutator func(Participant) error // nil for none
	// to returns the phase to enter from the entity's phase. It is called for each attempt.
	to func(from string, cur *entry) (string, error)
}

// always returns the target of a transition to one phase.
func always(phase string) func(string, *entry) (string, error) {
	return func(string, *entry) (string, error) { return phase, nil }
}

// transition carries a transition out.
func (m *Manager) transition(ctx context.Context, r *registration, id string, t transition, w writeOptions) error {
	if !t.source.valid() {
		return r.transitionError(id, fmt.Errorf("its source is %q, want rule, operator, component or framework", t.source))
	}
	err := m.mutate(ctx, r, id, w, func(from string, cur *entry) (meta, error) {
		to, err := t.to(from, cur)
		if err != nil {
			return meta{}, err
		}
		if !r.table.IsValidTransition(from, to) {
			return meta{}, r.refusal(id, from, to, cur)
		}
		if cur.paused() && t.source != TransitionSourceOperator {
			return meta{}, fmt.Errorf("%w: resume it, or move it as an operator", ErrPaused)
		}
		return meta{entered: to, from: from, source: t.source, note: text.Clip(t.note, MaxNote)}, nil
	}, t.mutator)
	return r.transitionError(id, err)
}

// transitionError adds the workflow and the entity to the error of a transition.
func (r *registration) transitionError(id string, err error) error {
	if err == nil {
		return nil
	}
	if _, names := errors.AsType[*fsm.TransitionError](err); names { // its text names the entity
		return err
	}
	return fmt.Errorf("transition of %s %q: %w", r.workflow, id, err)
}

// refusal returns why the table does not allow an edge.
func (r *registration) refusal(id, from, to string, cur *entry) error {
	refused := &fsm.TransitionError{
		Kind:    r.workflow,
		Name:    id,
		From:    from,
		To:      to,
		Allowed: slices.Sorted(slices.Values(r.table[from])),
	}
	switch {
	case !r.table.Has(to):
		return fmt.Errorf("%w: the table has no phase %q, it has %s", refused, to, strings.Join(r.table.Phases(), ", "))
	case !r.table.Has(from):
		return errors.Join(r.unknownPhase(cur, from), refused)
	case r.table.IsTerminal(from):
		return fmt.Errorf("%w: %q, which is terminal", ErrTerminalPhase, from)
	}
	return refused
}

// Complete moves an entity to the phase of [WithCompletion]. Without that option it
// moves the entity to the one terminal phase that the table can lead to from the entity's
// phase; the phase "failed" does not count, because [Manager.Fail] enters it. It decides
// on the record that the write replaces, so no other write can come in between.
//
// It returns ErrTerminalPhase when the entity's phase is terminal. It returns
// ErrInvalidTransition, and writes nothing, when the table has no edge to the phase, and
// when more than one terminal phase can be reached and the option names none: the error
// lists them.
func (m *Manager) Complete(ctx context.Context, workflow, entityID string, opts ...WriteOption) error {
	r, err := m.registration(workflow)
	if err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	return m.transition(ctx, r, entityID, transition{source: TransitionSourceFramework, to: r.completion}, options(opts))
}

// completion is the target of Complete.
func (r *registration) completion(from string, cur *entry) (string, error) {
	if err := r.unknownPhase(cur, from); err != nil {
		return "", errors.Join(err, fmt.Errorf("%w: from %q", ErrInvalidTransition, from))
	}
	if r.table.IsTerminal(from) {
		return "", fmt.Errorf("%w: %q", ErrTerminalPhase, from)
	}
	if r.completes != nil {
		return *r.completes, nil // transition refuses it where the table has no edge
	}
	switch ends := r.reachableEnds(from); len(ends) {
	case 0:
		return "", fmt.Errorf("%w: no terminal phase can be reached from %q but failed, which Fail enters", ErrInvalidTransition, from)
	case 1:
		return ends[0], nil
	default:
		return "", fmt.Errorf("%w: more than one terminal phase can be reached from %q: %s; name one with WithCompletion, or use Transition",
			ErrInvalidTransition, from, quoted(ends))
	}
}

// reachableEnds returns the terminal phases that the table can lead to from a phase, in
// any number of steps, sorted. It leaves out "failed".
func (r *registration) reachableEnds(from string) (ends []string) {
	seen := map[string]bool{from: true}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		for _, to := range r.table[next[0]] {
			if seen[to] {
				continue
			}
			seen[to] = true
			next = append(next, to)
			if r.table.IsTerminal(to) && to != "failed" {
				ends = append(ends, to)
			}
		}
	}
	slices.Sort(ends)
	return ends
}

func quoted(phases []string) string {
	return `"` + strings.Join(phases, `", "`) + `"`
}

// Fail moves an entity to the phase "failed" with the reason as its note, up to
// [MaxNote] bytes of it. It returns ErrInvalidTransition when the table has no such phase, and an error when
// the reason is empty.
func (m *Manager) Fail(ctx context.Context, workflow, entityID, reason string, opts ...WriteOption) error {
	r, err := m.registration(workflow)
	if err != nil {
		return fmt.Errorf("fail: %w", err)
	}
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("fail %s %q: the reason is empty: the history needs one", workflow, entityID)
	}
	if !r.table.Has("failed") || !r.table.IsTerminal("failed") {
		err := fmt.Errorf("%w: the table of %q has no terminal phase \"failed\": use Transition", ErrInvalidTransition, workflow)
		return r.transitionError(entityID, err)
	}
	t := transition{source: TransitionSourceFramework, note: reason, to: always("failed")}
	return m.transition(ctx, r, entityID, t, options(opts))
}

// Delete removes an entity in any phase, also one whose record is degraded, but
// not an entity of another workflow. Its history stays, as far as the bucket
// keeps it, with the deletion as the last event. Delete returns ErrEntityNotFound
// when the entity does not exist.
func (m *Manager) Delete(ctx context.Context, workflow, entityID string, opts ...WriteOption) (err error) {
	defer wrap(&err, "delete %s %q", workflow, entityID)
	r, err := m.registration(workflow)
	if err != nil {
		return err
	}
	return m.remove(ctx, r, entityID, options(opts), meta{removal: "DEL"})
}

// remove deletes an entity. how has the note, and "DEL", or "PURGE" to remove its earlier
// writes from the bucket.
func (m *Manager) remove(ctx context.Context, r *registration, id string, w writeOptions, how meta) error {
	return m.write(ctx, r, id, w, r.known, func(cur *entry) (decision, error) {
		if cur == nil || cur.deleted() {
			return decision{}, ErrEntityNotFound
		}
		if err := r.foreign(cur); err != nil {
			return decision{}, err
		}
		d := decision{meta: how}
		d.source = TransitionSourceFramework
		if p, err := r.decode(cur); err == nil {
			d.from = p.Phase()
		}
		return d, nil
	})
}
