package workflow

import (
	"context"
	"errors"
	"fmt"

	"github.com/pleme-io/lifecycle-go/trace"
)

// WriteOption modifies one write.
type WriteOption func(*writeOptions)

// writeOptions is what the options of a write ask for.
type writeOptions struct {
	match    *uint64
	dry      bool
	revision *uint64
	result   *Participant
	timers   []timerEdit
	key      string // the hash of its idempotency key, "" for none
	trace    trace.Context
	refused  error // of the options themselves
}

// IfMatch lets the write happen only when the record has this revision, which
// [Record] and [RevisionTo] return. Otherwise the error is a [*RevisionError], and
// the write does not try again. Revision 0 means that the key was never written.
func IfMatch(revision uint64) WriteOption { return func(w *writeOptions) { w.match = &revision } }

// DryRun makes a write check everything, on the server's record, and store nothing.
// result, if not nil, gets the participant as it would be stored.
func DryRun(result *Participant) WriteOption {
	return func(w *writeOptions) { w.dry, w.result = true, result }
}

// Trace stores a trace with the write, in place of the one of the caller's context: see package
// lifecycle-go/trace. The hooks that react to the write get it, [TransitionEvent].Trace and
// [Event].Trace tell it. A context that is not valid is none.
func Trace(c trace.Context) WriteOption {
	return func(w *writeOptions) { w.trace = trace.Parse(c.Parent, c.State) }
}

// RevisionTo stores the written revision in *revision.
func RevisionTo(revision *uint64) WriteOption {
	return func(w *writeOptions) { w.revision = revision }
}

func options(opts []WriteOption) writeOptions {
	var w writeOptions
	for i, opt := range opts {
		if opt == nil {
			w.refused = fmt.Errorf("option %d is nil", i+1)
			continue
		}
		opt(&w)
	}
	return w
}

// decision is a write that was decided on, and what it says about itself in its headers.
type decision struct {
	meta
	next  Participant // nil for a deletion, and for a change of phase that needs no decoding
	data  []byte      // nil for a deletion
	phase string      // the entity's after the write
}

// deletion reports whether the decision is to delete the entity.
func (d *decision) deletion() bool { return d.removal != "" }

// keepsPhase reports whether the decision stores a record in the phase that it has.
func (d *decision) keepsPhase() bool { return !d.deletion() && d.entered == "" }

// decider decides on an entity in a phase: it returns the phase to enter with its source
// and note, or the zero meta for a write that keeps the phase.
type decider func(phase string, cur *entry) (meta, error)

func keepPhase(string, *entry) (meta, error) { return meta{}, nil }

// mutate changes an entity that exists and is not deleted. decide decides, and mutator,
// which may be nil, changes the participant.
func (m *Manager) mutate(ctx context.Context, r *registration, id string, w writeOptions, decide decider, mutator func(Participant) error) error {
	return m.write(ctx, r, id, w, r.known, func(cur *entry) (decision, error) {
		if cur == nil || cur.deleted() {
			return decision{}, ErrEntityNotFound
		}
		if mutator == nil && w.result == nil && r.splices(cur) {
			change, err := decide(cur.phase, cur)
			if err != nil {
				return decision{}, err
			}
			if change.entered != "" {
				change.version = cur.version
				return decision{meta: change, data: r.rephase(cur.data, change.entered), phase: change.entered}, nil
			}
		}
		return r.mutated(id, cur, decide, mutator)
	})
}

// splices reports whether the phase of a record can be changed in its JSON, without decoding
// it: this process has decoded it before, without a migration, and nothing else changes with the
// phase. That saves a fifth of a transition's processor time.
func (r *registration) splices(cur *entry) bool {
	if !r.plain || cur.phase == "" {
		return false
	}
	version, err := versionOf(cur.version)
	return err == nil && version >= r.version
}

// mutated decides on an entity by its decoded participant, which mutator changes; nil changes nothing.
func (r *registration) mutated(id string, cur *entry, decide decider, mutator func(Participant) error) (decision, error) {
	p, base, err := r.open(cur)
	if err != nil {
		return decision{}, err
	}
	phase := p.Phase()
	d := decision{next: p}
	if d.meta, err = decide(phase, cur); err != nil {
		return decision{}, err
	}
	if d.keepsPhase() {
		d.since = cur.sinceTime().UnixNano()
	}
	version, _ := versionOf(cur.version) // open has read it
	d.version = number(max(version, r.version))
	before, err := r.encode(p)
	if err != nil {
		return decision{}, err
	}
	if mutator != nil {
		if err := mutator(p); err != nil {
			return decision{}, err
		}
	}
	if p.EntityID() != id {
		return decision{}, fmt.Errorf("%w: the mutator changed the id from %q to %q", ErrImmutableField, id, p.EntityID())
	}
	if p.Phase() != phase {
		return decision{}, fmt.Errorf("%w: the mutator changed the phase from %q to %q: use Transition", ErrImmutableField, phase, p.Phase())
	}
	if d.entered != "" {
		r.fields.phase.of(p).SetString(d.entered)
	}
	d.phase = p.Phase()
	d.data, err = r.revise(base, before, p)
	return d, err
}

// known returns the view's record of an entity, or what this process wrote last, and
// false when only the server can know it.
func (r *registration) known(key string) (*entry, bool) {
	if r.viewless {
		return r.bucket.recent.record(key)
	}
	return r.bucket.view.record(r, key)
}

// unwritten is the guess for a new entity: usually there is no record of its id.
func unwritten(string) (*entry, bool) { return nil, true }

func isNotFound(err error) bool { return errors.Is(err, ErrEntityNotFound) }
