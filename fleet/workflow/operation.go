package workflow

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/trace"
)

// operation is one write of an entity, from the caller's verb to its end.
type operation struct {
	m       *Manager
	r       *registration
	key     string
	options writeOptions
	guess   func(key string) (*entry, bool) // the record, as far as this process knows it
	decide  func(*entry) (decision, error)
}

// attempt is a message that carries an operation out, if the record still has the revision
// that the decision is based on.
type attempt struct {
	d   decision
	msg *nats.Msg
}

// write writes an entity as decide says, or returns why not.
func (m *Manager) write(
	ctx context.Context, r *registration, id string, w writeOptions,
	guess func(string) (*entry, bool), decide func(*entry) (decision, error),
) error {
	if w.refused != nil {
		return w.refused
	}
	key, err := r.key(id)
	if err != nil {
		return err
	}
	if w.trace.Parent == "" {
		w.trace = trace.Of(ctx)
	}
	if ctx.Err() != nil {
		return r.bucket.over(ctx)
	}
	o := &operation{m: m, r: r, key: key, options: w, guess: guess, decide: decide}
	if r.viewless {
		r.bucket.look(ctx)
	}
	if len(w.timers) > 0 {
		_ = m.clock.look(ctx, r.bucket) // the write waits for a server that is away
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	leave, err := r.bucket.turns.enter(ctx, key)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
		return fmt.Errorf("%w: waiting for other writers of this process: %w", ErrUpdateRetriesExhausted, err)
	}
	defer leave()
	return o.persist(ctx)
}

// patient bounds a call whose caller has no deadline.
func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, DefaultPatience)
}

// persist reads the record, decides, and writes if the record has not changed meanwhile.
// Otherwise it begins again, until ctx ends. The caller has the key's turn.
func (o *operation) persist(ctx context.Context) error {
	b := o.r.bucket
	for n := 0; ; n++ {
		cur, d, err := o.consider(ctx, n > 0 || o.options.dry)
		var a *attempt
		if err == nil {
			a, err = o.attempt(ctx, cur, d)
		}
		if err != nil || o.options.dry {
			return o.repeated(cur, err)
		}
		got := b.publish(ctx, a.msg)
		if got.err == nil {
			o.end(a, got.revision)
			return nil
		}
		revision, err := b.resolve(ctx, o.key, a, got)
		if err == nil {
			o.end(a, revision)
			return nil
		}
		if !errors.Is(err, errConflict) {
			return err
		}
		// The write was not carried out. The next attempt has a new id.
		if err := retryPause.Sleep(ctx, n+1); err != nil {
			if errors.Is(ctx.Err(), context.Canceled) {
				return err
			}
			return fmt.Errorf("%w: %d attempts: %w", ErrUpdateRetriesExhausted, n+1, err)
		}
	}
}

// end gives the caller the written revision, and makes the write visible in this process. The
// operation has the key's turn.
func (o *operation) end(a *attempt, revision uint64) {
	if o.options.revision != nil {
		*o.options.revision = revision
	}
	e := &entry{key: o.key, revision: revision, at: o.m.clock.Now(), data: a.d.data, meta: a.d.meta}
	if o.r.viewless {
		o.r.bucket.recent.wrote(e, a.d.phase)
		return
	}
	o.r.bucket.view.wrote(o.r, e, &a.d)
}

// consider reads the record and decides. Usually the record is a guess: what this process knows.
// It asks the server and decides again
//   - when the guess led to a refusal, and the server has another revision, or the guess had no
//     times of the server;
//   - when the decision keeps the phase, and the guess has no times of the server.
func (o *operation) consider(ctx context.Context, noGuess bool) (*entry, decision, error) {
	cur, guessed := o.guess(o.key)
	if guessed && !noGuess {
		d, err := o.decideOn(cur)
		if err == nil && !storesGuess(cur, &d) {
			return cur, d, nil
		}
		stored, readErr := o.r.bucket.read(ctx, o.key)
		if readErr != nil {
			return nil, decision{}, readErr
		}
		hasServerTimes := cur == nil || !cur.guessed
		if err != nil && hasServerTimes && revisionOf(stored) == revisionOf(cur) {
			return stored, decision{}, err
		}
		cur = stored
	} else {
		var err error
		if cur, err = o.r.bucket.read(ctx, o.key); err != nil {
			return nil, decision{}, err
		}
	}
	d, err := o.decideOn(cur)
	return cur, d, err
}

// storesGuess reports whether a write would store a time that this process has only guessed: a
// record that keeps its phase also keeps the time at which the phase began.
func storesGuess(cur *entry, d *decision) bool {
	return cur != nil && cur.guessed && d.keepsPhase()
}

// decideOn checks the record against what the caller expects, and decides.
func (o *operation) decideOn(cur *entry) (decision, error) {
	if revision, ok := cur.landed(o.options.key); ok {
		return decision{}, &landedError{revision} // not refused, even if the write would be refused now
	}
	if o.options.match != nil && revisionOf(cur) != *o.options.match {
		return decision{}, &RevisionError{Key: o.key, Want: *o.options.match, Is: revisionOf(cur)}
	}
	return o.decide(cur)
}

func (o *operation) attempt(ctx context.Context, cur *entry, d decision) (*attempt, error) {
	if d.next != nil {
		if err := askAll(d.next); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidParticipant, err)
		}
	}
	if o.options.result != nil {
		*o.options.result = d.next
	}
	var err error
	if d.timers, err = o.r.timersAfter(cur, &d, o.options.timers, o.m.clock.Now()); err != nil {
		return nil, err
	}
	d.op = o.m.ops + strconv.FormatUint(o.m.lastOp.Add(1), 36)
	d.workflow = o.r.workflow
	d.on, d.chained = revisionOf(cur), true
	d.change = cur.lastChange()
	if o.r.journaled && !o.options.dry {
		if d.pending, err = o.r.bucket.pendingAfter(ctx, cur); err != nil {
			return nil, err
		}
	}
	d.keys = addKey(cur, o.options.key)
	d.pause = pauseAfter(cur, &d)
	d.trace = o.options.trace
	return &attempt{d: d, msg: o.r.message(o.key, &d)}, nil
}

// askAll calls the methods that a view will call, and returns an error for one that
// panics.
func askAll(p Participant) error {
	return call.Do("participant", func() error {
		_, _, _ = p.EntityID(), p.Phase(), p.ParentEntityID()
		return nil
	})
}
