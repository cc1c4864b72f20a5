package workflow

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/pleme-io/lifecycle-go/internal/call"
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
	searched bool   // the key is not in the history
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

// decision is what to write. Without data it is a deletion.
type decision struct {
	next    Participant // nil for a deletion, and for a change of phase that needed no decoding
	data    []byte
	phase   string
	version string
	change  change
}

// loader reads the record that a write is decided on. Unless fresh is true it may
// return the view's record, or a guess. Then stale is true, and the write confirms a
// refusal with a fresh record.
type loader func(ctx context.Context, b *bucket, key string, fresh bool) (e *entry, stale bool, err error)

func (m *Manager) load(r *registration) loader {
	return func(ctx context.Context, b *bucket, key string, fresh bool) (*entry, bool, error) {
		if !fresh {
			read := b.view.record
			if r.blind {
				read = b.recent.record
			}
			if e, ok := read(r, key); ok {
				return e, true, nil
			}
		}
		for n := 0; ; n++ {
			e, err := b.last(ctx, key)
			if isNotFound(err) {
				return nil, false, nil
			}
			// Like the write that follows, the read waits for a server that is away.
			if err == nil || !isAway(err) || collision.Sleep(ctx, n+1) != nil {
				return e, false, err
			}
		}
	}
}

func isNotFound(err error) bool { return errors.Is(err, ErrEntityNotFound) }

// mutate does what change does, for an entity that exists and is not deleted. prepare
// decides, and mutator, which may be nil, changes the participant.
func (m *Manager) mutate(ctx context.Context, r *registration, entityID string, w writing, prepare func(phase string, cur *entry) (change, error), mutator func(Participant) error) error {
	return m.change(ctx, r, entityID, w, func(cur *entry) (decision, error) {
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
	}, m.load(r))
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

// change does every write: it reads and decides, and writes if the record is still
// the one that it decided on. Otherwise it begins again.
func (m *Manager) change(ctx context.Context, r *registration, entityID string, w writing, decide func(*entry) (decision, error), load loader) error {
	if w.refused != nil {
		return w.refused
	}
	key, err := r.key(entityID)
	if err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultPatience)
		defer cancel()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b := r.bucket
	if len(w.timers) > 0 {
		_ = m.clock.look(ctx, b) // the write itself waits for a server that is away
	}
	leave, err := b.queue.enter(ctx, key)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
		return fmt.Errorf("%w: waiting for other writers of this process: %w", ErrUpdateRetriesExhausted, err)
	}
	defer leave()
	op := m.nextOp()
	for n := 0; ; n++ {
		cur, d, err := m.decideOn(ctx, b, key, w, decide, load, n > 0 || w.dry)
		if err == nil {
			err = w.older(ctx, r, key, cur)
		}
		if err != nil {
			return w.keyed(err)
		}
		if d.next != nil {
			if err := call.Do("participant", func() error { return askAll(d.next) }); err != nil {
				return fmt.Errorf("%w: %w", ErrInvalidParticipant, err)
			}
		}
		if w.result != nil {
			*w.result = d.next
		}
		if d.change.timers, err = r.timersAfter(cur, d, w.timers, m.clock.now()); err != nil || w.dry {
			return err
		}
		d.change.op, d.change.keys = op, keysAfter(cur, w.key)
		msg := r.message(key, d, revisionOf(cur))
		revision, err := b.write(ctx, key, msg, revisionOf(cur))
		if err == nil {
			if w.revision != nil {
				*w.revision = revision
			}
			b.show(ctx, r, &entry{key: key, revision: revision, at: m.clock.now(), header: msg.Header, data: msg.Data}, d, revisionOf(cur))
			return nil
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		op = m.nextOp() // the earlier operation was not carried out; this is a new one
		if err := collision.Sleep(ctx, n+1); err != nil {
			if errors.Is(ctx.Err(), context.Canceled) {
				return err
			}
			return fmt.Errorf("%w: %d attempts: %w", ErrUpdateRetriesExhausted, n+1, err)
		}
	}
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

// decideOn loads the record and decides. It loads a fresh record and decides again when
// a stale one led to a refusal, and when the decision keeps the phase of a guessed one.
func (m *Manager) decideOn(ctx context.Context, b *bucket, key string, w writing, decide func(*entry) (decision, error), load loader, fresh bool) (*entry, decision, error) {
	cur, stale, err := load(ctx, b, key, fresh)
	if err != nil {
		return nil, decision{}, err
	}
	d, err := m.decide(cur, key, w, decide)
	if err != nil && stale {
		again, _, failed := load(ctx, b, key, true)
		if failed != nil {
			return nil, decision{}, failed
		}
		if revisionOf(again) == revisionOf(cur) {
			return nil, decision{}, err
		}
		cur = again
		d, err = m.decide(cur, key, w, decide)
	}
	if err != nil {
		return nil, decision{}, err
	}
	if cur != nil && cur.guessed && d.data != nil && !d.change.moved {
		// The record stores when its phase began, by the server's clock.
		if cur, _, err = load(ctx, b, key, true); err != nil {
			return nil, decision{}, err
		}
		if d, err = m.decide(cur, key, w, decide); err != nil {
			return nil, decision{}, err
		}
	}
	return cur, d, nil
}

// nextOp returns a unique id of an operation.
func (m *Manager) nextOp() string { return m.ops + strconv.FormatUint(m.lastOp.Add(1), 36) }

// decide checks the record against what the caller expects, and decides.
func (m *Manager) decide(cur *entry, key string, w writing, decide func(*entry) (decision, error)) (decision, error) {
	if err := w.already(cur); err != nil {
		return decision{}, err
	}
	if w.match != nil && revisionOf(cur) != *w.match {
		return decision{}, &RevisionError{Key: key, Want: *w.match, Is: revisionOf(cur)}
	}
	return decide(cur)
}

func revisionOf(e *entry) uint64 {
	if e == nil {
		return 0
	}
	return e.revision
}
