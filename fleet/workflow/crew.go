package workflow

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Updates of one process that wait for one key become one write. The first has the turn.
// It asks those behind it, one after the other, to change the record as the one before
// left it; each does so on its own goroutine, as if it had read that record. Then the
// first writes the last one's record, with the ids of all operations, and tells the
// others.

const (
	// maxCrew is how many updates join another one's write.
	maxCrew = 255
	// joinTime, of a bucket, bounds how long a write waits for others to join it. A mutator that takes
	// longer, or waits for something, has a turn of its own.
	joinTime = 10 * time.Millisecond
)

// headerOps has the ids of the operations that joined a write, separated by commas.
const headerOps = "Lifecycle-Ops"

// crewman is an update that waits for its turn and may join another one's write.
type crewman struct {
	keyed bool         // it has an idempotency key
	ask   chan *entry  // room for one: the record to change
	said  chan *joined // room for one: its part, nil when it does not join
	told  chan *ending // room for one: how the write ended
	left  atomic.Bool  // it has left, or another one's write was handed to it
}

// joined is the part of an update in another one's write.
type joined struct {
	d   decision
	op  string
	key string // the hash of its idempotency key
}

// ending is how the write ended that an update joined.
type ending struct {
	again bool     // it was not carried out
	a     *attempt // set for the update that finds out what became of it
	crew  []*crewman
}

// place is what an update finds at the end of its wait.
type place struct {
	done  bool     // another one's write has carried it out
	a     *attempt // the write that it joined and that another one has left, to be found out
	first *answer
	crew  []*crewman
}

// wait waits for the key's turn, or until another update's write has carried this one
// out.
func (o *operation) wait(ctx context.Context) (place, error) {
	q := &o.r.bucket.queue
	for o.joins {
		c := &crewman{keyed: o.w.key != "", ask: make(chan *entry, 1), said: make(chan *joined, 1), told: make(chan *ending, 1)}
		w := q.line(o.key, c)
		if w == nil {
			return place{}, nil
		}
		select {
		case <-w.turn:
			return place{}, nil
		case cur := <-c.ask:
			if !o.join(c, cur) {
				o.joins = false // it needs a turn of its own to say why
				continue
			}
		case <-ctx.Done():
			if !q.quit(o.key, w) {
				select {
				case <-w.turn:
					q.leave(o.key)
				case <-c.ask:
					c.said <- nil
				}
			}
			return place{}, context.Cause(ctx)
		}
		e := c.ending(ctx)
		switch {
		case e == nil:
			return place{}, fmt.Errorf("%w: another update of this process writes it: %w", ErrOutcomeUnknown, context.Cause(ctx))
		case e.again:
			continue
		case e.a != nil:
			return place{a: e.a, first: &answer{err: nats.ErrTimeout}, crew: e.crew}, nil
		}
		return place{done: true}, nil
	}
	return place{}, q.enter(ctx, o.key)
}

// ending waits for the end of the write that it joined. It returns nil when ctx ends
// first.
func (c *crewman) ending(ctx context.Context) *ending {
	select {
	case e := <-c.told:
		return e
	case <-ctx.Done():
	}
	if c.left.Swap(true) { // the write was handed to it
		return <-c.told
	}
	select {
	case e := <-c.told: // both at once
		return e
	default:
		return nil
	}
}

// join changes the record for another one's write.
func (o *operation) join(c *crewman, cur *entry) bool {
	var part *joined
	defer func() { c.said <- part }() // also when the mutator panics
	d, err := o.decideOn(cur)
	if err != nil || o.w.searches(cur) {
		return false
	}
	if err := call.Do("participant", func() error { return askAll(d.next) }); err != nil {
		return false
	}
	part = &joined{d, o.m.nextOp(), o.w.key}
	return true
}

// gather lets others join an attempt that was decided on cur.
func (o *operation) gather(ctx context.Context, cur *entry, a *attempt) (crew []*crewman) {
	if !o.joins {
		return nil
	}
	timer := time.NewTimer(o.r.bucket.joinTime)
	defer timer.Stop()
	keyed := 0
	if o.w.key != "" {
		keyed = 1
	}
	var ops []string
	for len(crew) < maxCrew {
		c := o.r.bucket.queue.companion(o.key, func(c *crewman) bool { return !c.keyed || keyed < maxKeys })
		if c == nil {
			break
		}
		c.ask <- a.leaves(cur)
		var part *joined
		late := false
		select {
		case part = <-c.said:
		case <-timer.C:
			late = true
		case <-ctx.Done():
			late = true
		}
		if late {
			c.told <- &ending{again: true}
			break
		}
		if part == nil {
			continue
		}
		if part.key != "" {
			keyed++
			keys := strings.Split(a.d.change.keys, ",")
			if a.d.change.keys == "" {
				keys = nil
			}
			keys = append(keys, part.key)
			a.d.change.keys = strings.Join(keys[max(0, len(keys)-maxKeys):], ",")
		}
		a.d.next, a.d.data, a.d.version = part.d.next, part.d.data, part.d.version
		ops, crew = append(ops, part.op), append(crew, c)
	}
	if len(crew) > 0 {
		a.msg = o.r.message(o.key, a.d, a.before)
		a.msg.Header[headerOps] = []string{strings.Join(ops, ",")}
	}
	return crew
}

// leaves returns the record as an attempt leaves it.
func (a *attempt) leaves(cur *entry) *entry {
	return &entry{
		key: cur.key, revision: cur.revision, at: cur.at, data: a.d.data,
		known: &known{phase: a.d.phase, version: a.d.version, since: cur.since().UnixNano(), timers: a.d.change.timers, keys: a.d.change.keys},
	}
}

// tell tells those that joined a write how it ended.
func tell(crew []*crewman, e ending) {
	for _, c := range crew {
		c.told <- &e
	}
}

// handOver lets one of those that joined a write find out what became of it, when the
// one that wrote it has to leave. It returns false when none of them waits any more.
func handOver(crew []*crewman, a *attempt) bool {
	for i, c := range crew {
		if !c.left.Swap(true) {
			c.told <- &ending{a: a, crew: crew[i+1:]}
			return true
		}
	}
	return false
}
