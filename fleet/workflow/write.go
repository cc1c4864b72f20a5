package workflow

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// WriteOption modifies one write.
type WriteOption func(*writing)

type writing struct {
	match    *uint64
	dry      bool
	revision *uint64
	result   *Participant
	timers   []timerEdit
	key      string // the hash of its idempotency key, "" for none
	searched uint64 // the key is not in the history up to this revision; 0 when that is not known
	refused  error  // of the options themselves
}

// IfMatch lets the write happen only when the record has this revision, which
// [Record] and [WithRevision] return. Otherwise the error is a [*RevisionError], and
// the write does not try again. Revision 0 is that of a key that was never written.
func IfMatch(revision uint64) WriteOption { return func(w *writing) { w.match = &revision } }

// DryRun makes a write check everything, on the server's record, and store nothing.
// result, if not nil, gets the participant as it would be stored.
func DryRun(result *Participant) WriteOption {
	return func(w *writing) { w.dry, w.result = true, result }
}

// WithRevision stores the written revision in *revision.
func WithRevision(revision *uint64) WriteOption { return func(w *writing) { w.revision = revision } }

func options(opts []WriteOption) writing {
	var w writing
	for i, opt := range opts {
		if opt == nil {
			w.refused = fmt.Errorf("option %d is nil", i+1)
			continue
		}
		opt(&w)
	}
	return w
}

// joins reports whether an update may be one write with others of its key: it names no
// revision and changes nothing but the record.
func (w *writing) joins() bool {
	return w.match == nil && w.revision == nil && !w.dry && len(w.timers) == 0
}

// decision is what to write. Without data it is a deletion.
type decision struct {
	next    Participant // nil for a deletion, and for a change of phase that needed no decoding
	data    []byte
	phase   string
	version string
	change  change
}

func isNotFound(err error) bool { return errors.Is(err, ErrEntityNotFound) }

// known returns the view's record of an entity, or what this process wrote last, and
// false when only the server can know it.
func (r *registration) known(key string) (*entry, bool) {
	if r.blind {
		return r.bucket.recent.record(r, key)
	}
	return r.bucket.view.record(r, key)
}

// unknown is the guess of a write of a new entity: usually there is none of its id.
func (r *registration) unknown(string) (*entry, bool) { return nil, true }

// mutate changes an entity that exists and is not deleted. prepare decides, and mutator,
// which may be nil, changes the participant.
func (m *Manager) mutate(ctx context.Context, r *registration, entityID string, w writing, prepare func(phase string, cur *entry) (change, error), mutator func(Participant) error) error {
	o, err := m.mutation(r, entityID, w, prepare, mutator)
	if err != nil {
		return err
	}
	return o.run(ctx)
}

// mutation returns the operation of mutate.
func (m *Manager) mutation(r *registration, entityID string, w writing, prepare func(phase string, cur *entry) (change, error), mutator func(Participant) error) (*operation, error) {
	o, err := m.operation(r, entityID, w, func(cur *entry) (decision, error) {
		if cur == nil || cur.deleted() {
			return decision{}, ErrEntityNotFound
		}
		if mutator == nil && w.result == nil && r.current(cur) {
			c, err := prepare(cur.known.phase, cur)
			if err == nil && c.moved {
				return decision{data: r.rephase(cur.data, c.to), phase: c.to, version: cur.known.version, change: c}, nil
			}
			if err != nil {
				return decision{}, err
			}
		}
		return r.mutated(entityID, cur, prepare, mutator)
	}, r.known)
	if o != nil {
		o.quick = mutator == nil
	}
	return o, err
}

// current reports whether the view has decoded the record, without a migration, and a
// change of its phase needs nothing else.
func (r *registration) current(cur *entry) bool {
	if !r.plain || cur.known == nil {
		return false
	}
	version, err := versionOf(cur.known.version)
	return err == nil && version >= r.version
}

// mutated decodes the record, and decides and changes it.
func (r *registration) mutated(entityID string, cur *entry, prepare func(string, *entry) (change, error), mutator func(Participant) error) (decision, error) {
	p, base, err := r.open(cur)
	if err != nil {
		return decision{}, err
	}
	phase := p.Phase()
	c, err := prepare(phase, cur)
	if err != nil {
		return decision{}, err
	}
	c.since = cur.since()
	version, _ := versionOf(cur.version()) // open has read it
	d := decision{next: p, data: base, version: strconv.Itoa(max(version, r.version)), change: c}
	before, err := r.encode(p)
	if err != nil {
		return decision{}, err
	}
	if mutator != nil {
		if err := mutator(p); err != nil {
			return decision{}, err
		}
	}
	if p.EntityID() != entityID {
		return decision{}, fmt.Errorf("%w: the mutator changed the id from %q to %q", ErrImmutableField, entityID, p.EntityID())
	}
	if p.Phase() != phase {
		return decision{}, fmt.Errorf("%w: the mutator changed the phase from %q to %q: use Transition", ErrImmutableField, phase, p.Phase())
	}
	if c.moved {
		r.fields.phase.of(p).SetString(c.to)
	}
	d.phase = p.Phase()
	d.data, err = r.revise(base, before, p)
	return d, err
}

// show adds a write of this process to the view. It was decided on revision before.
func (b *bucket) show(ctx context.Context, r *registration, e *entry, d decision, before uint64) {
	if r.blind {
		b.recent.wrote(r, e, d)
		return
	}
	b.view.follow.wrote(e.revision, d.change.op)
	if d.data == nil {
		b.view.deletedOwn(e.key, e.revision)
		return
	}
	if d.next == nil {
		if b.view.rephased(e, d.phase, before) {
			return
		}
		p, err := r.decode(e)
		if err != nil {
			return // the follower reports it
		}
		d.next = p
	}
	b.view.wrote(r, e, d.next, func() bool {
		last, err := b.last(ctx, e.key)
		return err == nil && last.revision == e.revision
	})
}

// nextOp returns a unique id of an operation.
func (m *Manager) nextOp() string { return m.ops + strconv.FormatUint(m.lastOp.Add(1), 36) }

func revisionOf(e *entry) uint64 {
	if e == nil {
		return 0
	}
	return e.revision
}
