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

// decision is what to write. Without a participant it is a deletion.
type decision struct {
	next   Participant
	change change
}

// loader reads the record that a write is decided on. Unless fresh is true it may
// return the view's record, or a guess. Then stale is true, and the write confirms a
// refusal with a fresh record.
type loader func(ctx context.Context, b *bucket, key string, fresh bool) (e *entry, stale bool, err error)

func (m *Manager) load(r *registration) loader {
	return func(ctx context.Context, b *bucket, key string, fresh bool) (*entry, bool, error) {
		if !fresh {
			if e, ok := b.view.record(r, key); ok {
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

// mutate does what change does, for an entity that exists and is not deleted. finish runs after
// mutate has checked that id and phase were not changed.
func (m *Manager) mutate(ctx context.Context, r *registration, entityID string, w writing, fn func(Participant, *entry) (change, error), finish ...func(Participant) error) error {
	return m.change(ctx, r, entityID, w, func(cur *entry) (decision, error) {
		if cur == nil || cur.deleted() {
			return decision{}, ErrEntityNotFound
		}
		p, err := r.decode(cur)
		if err != nil {
			return decision{}, err
		}
		phase := p.Phase()
		c, err := fn(p, cur)
		if err != nil {
			return decision{}, err
		}
		if p.EntityID() != entityID {
			return decision{}, fmt.Errorf("%w: the mutator changed the id from %q to %q", ErrImmutableField, entityID, p.EntityID())
		}
		if p.Phase() != phase {
			return decision{}, fmt.Errorf("%w: the mutator changed the phase from %q to %q: use Transition", ErrImmutableField, phase, p.Phase())
		}
		for _, f := range finish {
			if err := f(p); err != nil {
				return decision{}, err
			}
		}
		c.since = cur.since()
		return decision{p, c}, nil
	}, m.load(r))
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
		d.change.op, d.change.keys = op, keysAfter(cur, w.key)
		if d.change.timers, err = r.timersAfter(cur, d, w.timers, m.clock.now()); err != nil {
			return err
		}
		msg, err := r.message(key, d.next, revisionOf(cur), d.change)
		if err != nil || w.dry {
			return err
		}
		revision, err := b.write(ctx, key, msg, revisionOf(cur))
		if err == nil {
			if w.revision != nil {
				*w.revision = revision
			}
			if d.next == nil {
				b.view.deletedOwn(key, revision, op)
			} else {
				b.view.wrote(r, &entry{key: key, revision: revision, at: m.clock.now(), header: msg.Header, data: msg.Data}, d.next, func() bool {
					last, err := b.last(ctx, key)
					return err == nil && last.revision == revision
				})
			}
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
	if cur != nil && cur.guessed && d.next != nil && !d.change.moved {
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
