package workflow

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// operation is one write of an entity, from the caller's verb to its end.
type operation struct {
	m      *Manager
	r      *registration
	key    string
	w      writing
	decide func(*entry) (decision, error)
	guess  func(key string) (*entry, bool) // the record, as far as this process knows it
	joins  bool                            // it may be one write with other updates of its key
	quick  bool                            // to decide twice on the same record has no effect that the caller sees
}

// attempt is a message that carries an operation out, if the record still is at the
// revision that the operation was decided on.
type attempt struct {
	d      decision
	msg    *nats.Msg
	before uint64
}

// operation returns a write of an entity, or the caller's mistake.
func (m *Manager) operation(r *registration, entityID string, w writing, decide func(*entry) (decision, error), guess func(string) (*entry, bool)) (*operation, error) {
	if w.refused != nil {
		return nil, w.refused
	}
	key, err := r.key(entityID)
	if err != nil {
		return nil, err
	}
	return &operation{m: m, r: r, key: key, w: w, decide: decide, guess: guess}, nil
}

// run carries the operation out, or returns why not.
func (o *operation) run(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var a *attempt
	var first *answer
	if o.quick {
		a = o.begin()
	}
	if a != nil {
		if first = o.r.bucket.publish(ctx, a.msg); first.err == nil {
			defer o.r.bucket.queue.leave(o.key)
			o.end(ctx, a, first.revision)
			return nil
		}
	}
	return o.persist(ctx, a, first)
}

// begin takes the key's turn and makes the message, without a wait and without a
// question to the server. It returns nil, and does not keep the turn, when that is not
// enough: persist finds out what there is to say.
func (o *operation) begin() (a *attempt) {
	b := o.r.bucket
	if o.w.dry || len(o.w.timers) > 0 && !o.m.clock.fresh(b) || o.r.blind && !b.traits.fresh() || b.nc.IsClosed() || !b.queue.try(o.key) {
		return nil
	}
	defer func() {
		if a == nil {
			b.queue.leave(o.key)
		}
	}()
	cur, ok := o.guess(o.key)
	if !ok || o.w.searches(cur) {
		return nil
	}
	d, err := o.decideOn(cur)
	if err != nil || guessed(cur, d) {
		return nil
	}
	if a, err = o.attempt(cur, d); err != nil {
		return nil
	}
	return a
}

// persist reads and decides, and writes if the record is still the one that it decided
// on. Otherwise it begins again, until ctx ends. With an attempt it has the key's turn,
// and begins with the answer to that attempt.
func (o *operation) persist(ctx context.Context, a *attempt, first *answer) error {
	b, m := o.r.bucket, o.m
	var crew []*crewman // others that are part of the attempt
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultPatience)
		defer cancel()
	}
	if a == nil {
		if o.r.blind {
			b.look(ctx)
		}
		if len(o.w.timers) > 0 {
			_ = m.clock.look(ctx, b) // the write itself waits for a server that is away
		}
		at, err := o.wait(ctx)
		switch {
		case errors.Is(err, ErrOutcomeUnknown), err != nil && errors.Is(ctx.Err(), context.Canceled):
			return err
		case err != nil:
			return fmt.Errorf("%w: waiting for other writers of this process: %w", ErrUpdateRetriesExhausted, err)
		case at.done:
			return nil
		}
		a, first, crew = at.a, at.first, at.crew
	}
	turn := true
	defer func() {
		if turn {
			b.queue.leave(o.key)
		}
	}()
	for n := 0; ; n++ {
		if a == nil {
			cur, d, err := o.consider(ctx, n > 0 || o.w.dry)
			if err == nil {
				a, err = o.attempt(cur, d)
			}
			if err != nil || o.w.dry {
				return o.keyed(cur, err)
			}
			crew = o.gather(ctx, cur, a)
		}
		revision, err := b.write(ctx, o.key, a.msg, a.before, first)
		switch {
		case err == nil:
			o.end(ctx, a, revision)
			tell(crew, ending{})
			return nil
		case errors.Is(err, errConflict):
			// It was not carried out. The next attempt has an id of its own.
			tell(crew, ending{again: true})
			a, first, crew = nil, nil, nil
			if err = collision.Sleep(ctx, n+1); err == nil {
				continue
			}
			if !errors.Is(ctx.Err(), context.Canceled) {
				err = fmt.Errorf("%w: %d attempts: %w", ErrUpdateRetriesExhausted, n+1, err)
			}
		case errors.Is(err, ErrOutcomeUnknown):
			turn = !handOver(crew, a)
		case len(crew) > 0:
			tell(crew, ending{again: true})
			if ctx.Err() == nil { // it may be the others' fault, such as a record that is too large
				a, first, crew, o.joins = nil, nil, nil, false
				continue
			}
		}
		return err
	}
}

// end shows what was written to the caller and to this process. The operation has the
// key's turn.
func (o *operation) end(ctx context.Context, a *attempt, revision uint64) {
	b := o.r.bucket
	if o.w.revision != nil {
		*o.w.revision = revision
	}
	b.show(ctx, o.r, o.written(a, revision), a.d, a.before)
}

// written returns the entry that an attempt has written.
func (o *operation) written(a *attempt, revision uint64) *entry {
	return &entry{key: o.key, revision: revision, at: o.m.clock.now(), header: a.msg.Header, data: a.msg.Data}
}

// consider reads the record and decides. It reads it from the server and decides again
// when a guess led to a refusal, and when the decision keeps the phase of a record whose
// times are guessed.
func (o *operation) consider(ctx context.Context, fresh bool) (*entry, decision, error) {
	cur, stale := o.guess(o.key)
	if fresh || !stale {
		var err error
		if cur, err = o.r.bucket.read(ctx, o.key); err != nil {
			return nil, decision{}, err
		}
		stale = false
	}
	// What has happened is not refused, even if it could not happen now.
	if err := o.w.older(ctx, o.r, o.key, cur); err != nil {
		return cur, decision{}, err
	}
	d, err := o.decideOn(cur)
	if !stale || err == nil && !guessed(cur, d) {
		return cur, d, err
	}
	again, failed := o.r.bucket.read(ctx, o.key)
	if failed != nil {
		return nil, decision{}, failed
	}
	if err != nil && revisionOf(again) == revisionOf(cur) {
		return again, decision{}, err
	}
	if err := o.w.older(ctx, o.r, o.key, again); err != nil {
		return again, decision{}, err
	}
	d, err = o.decideOn(again)
	return again, d, err
}

// guessed reports whether a write would store a time that this process has only
// guessed: a record that keeps its phase has the time at which that began.
func guessed(cur *entry, d decision) bool {
	return cur != nil && cur.guessed && d.data != nil && !d.change.moved
}

// decideOn checks the record against what the caller expects, and decides.
func (o *operation) decideOn(cur *entry) (decision, error) {
	if err := o.w.already(cur); err != nil {
		return decision{}, err
	}
	if o.w.match != nil && revisionOf(cur) != *o.w.match {
		return decision{}, &RevisionError{Key: o.key, Want: *o.w.match, Is: revisionOf(cur)}
	}
	return o.decide(cur)
}

// attempt makes the message of a decision.
func (o *operation) attempt(cur *entry, d decision) (*attempt, error) {
	if d.next != nil {
		if err := call.Do("participant", func() error { return askAll(d.next) }); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalidParticipant, err)
		}
	}
	if o.w.result != nil {
		*o.w.result = d.next
	}
	var err error
	if d.change.timers, err = o.r.timersAfter(cur, d, o.w.timers, o.m.clock.now()); err != nil {
		return nil, err
	}
	d.change.op, d.change.keys = o.m.nextOp(), keysAfter(cur, o.w.key)
	before := revisionOf(cur)
	return &attempt{d, o.r.message(o.key, d, before), before}, nil
}
