package workflow

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

// view is this process's copy of one bucket: the latest record of every entity, with
// indexes. It gets the entries of a follower, and this process's own writes as soon as the
// server acknowledges them.
type view struct {
	m      *Manager
	b      *bucket
	follow *follower
	end    func()        // ends the follower
	done   chan struct{} // closed when it has returned

	mu       sync.RWMutex    // guards the fields below
	regs     []*registration // sorted by name; its elements do not change
	indexes  map[string]*index
	entities map[string]*entity // by key
	own      map[string]uint64  // revisions of this process's writes and deletions that the follower has not seen yet
	seq      uint64             // the last message that the follower saw
	ready    bool               // the initial content has been read
	progress notifier           // of every change
}

func newView(m *Manager, b *bucket) *view {
	v := &view{
		m:        m,
		b:        b,
		end:      func() {},
		done:     make(chan struct{}),
		indexes:  make(map[string]*index),
		entities: make(map[string]*entity),
		own:      make(map[string]uint64),
	}
	close(v.done)
	v.follow = b.follower(m.log, v.take)
	v.follow.pauses = true
	v.follow.current = v.current
	v.follow.lost = v.progress.notify
	return v
}

// add follows the bucket for one more workflow. The view reads the whole bucket again, because
// it has skipped the records of this workflow so far. add is not called concurrently.
func (v *view) add(r *registration) {
	regs := append(slices.Clone(v.regs), r)
	slices.SortFunc(regs, func(a, b *registration) int { return strings.Compare(a.workflow, b.workflow) })
	if !r.viewless {
		v.end()
		<-v.done
	}
	v.mu.Lock()
	v.regs = regs
	if !r.viewless {
		v.indexes[r.workflow] = newIndex(r)
		v.clearLocked()
	}
	v.mu.Unlock()
	if r.viewless {
		return
	}
	v.follow.created = time.Time{}
	v.follow.forget()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	v.end, v.done = cancel, done
	go func() {
		defer close(done)
		v.follow.run(ctx)
	}()
}

func (v *view) clearLocked() {
	for name, x := range v.indexes {
		v.indexes[name] = newIndex(x.r)
	}
	clear(v.entities)
	clear(v.own)
	v.seq, v.ready = 0, false
}

func (v *view) take(it stream.Item[*entry]) {
	if it.Kind == stream.Put {
		v.entry(it.Value)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.progress.notify()
	switch it.Kind {
	case stream.Gap:
		v.clearLocked()
		v.m.log.Warn("the bucket is gone, was recreated or restored: reading all of it again", "bucket", v.b.name)
	case stream.Synced:
		v.ready = true
	}
}

// entry takes a revision from the follower.
func (v *view) entry(e *entry) {
	v.mu.RLock()
	seen, regs := v.own[e.key] >= e.revision, v.regs
	v.mu.RUnlock()

	var r *registration
	var made *entity
	if !seen && !e.deleted() { // decode outside of the lock: the type's methods may be slow
		if r = owner(regs, e); r != nil && !r.viewless {
			p, err := r.decode(e)
			made = newEntity(r, e, p, err)
			made.data = bytes.Clone(e.data) // the message's buffer also has its headers
		}
	}

	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.progress.notify()
	v.seq = e.revision
	own, now := v.own[e.key], v.entities[e.key]
	switch {
	case own > e.revision: // the view has a later write of this process
	case own == e.revision:
		delete(v.own, e.key)
		if now != nil {
			v.retimeLocked(now, e)
		}
	case made != nil:
		delete(v.own, e.key)
		v.putLocked(r, made)
	default: // deleted, or the key belongs to another workflow now
		delete(v.own, e.key)
		if now != nil {
			v.dropLocked(now)
		}
	}
}

// retimeLocked corrects the times of a record that this process wrote.
func (v *view) retimeLocked(now *entity, e *entry) {
	now.own, now.at, now.since = false, e.at.UnixNano(), e.sinceTime().UnixNano()
	if now.due != 0 {
		now.index.due.Delete(now)
		now.due = now.index.r.dueAt(now.phaseName(), now.since, now.timers, now.paused)
		v.scheduleLocked(now)
	}
}

// wrote adds this process's own write to the view, so that every read that begins after
// the write returned sees it.
func (v *view) wrote(r *registration, e *entry, d *decision) {
	var made *entity
	if d.next != nil {
		made = newEntity(r, e, d.next, nil)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.entities[e.key]
	if v.seq >= e.revision {
		// The follower was quicker, so the view should have this write or a later one. When it
		// has neither, the bucket may have been recreated, and this revision given again.
		if now == nil || now.revision < e.revision {
			v.follow.look()
		}
		return
	}
	switch {
	case d.deletion():
		if now != nil {
			v.dropLocked(now)
		}
	case made != nil:
		made.own = true
		v.putLocked(r, made)
	case now != nil && now.revision == d.on: // it was decided on this record, and needed no decoding
		made = now.inPhase(e, d.phase)
		made.own = true
		v.putLocked(r, made)
	default: // the view was cleared meanwhile, and reads the bucket again
		return
	}
	v.own[e.key] = e.revision
	v.follow.own.Store(&ownWrite{e.revision, e.op})
	v.progress.notify()
}

// current is called when the follower has everything up to a revision. Writes of this process up
// to there that the follower has not seen were removed before it could read them.
func (v *view) current(upTo uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.progress.notify()
	for key, revision := range v.own {
		if revision > upTo {
			continue
		}
		delete(v.own, key)
		if now := v.entities[key]; now != nil {
			v.dropLocked(now)
		}
	}
}

// owner returns the workflow that a record belongs to, nil for none. regs has the workflows of
// the bucket, sorted by name. A record without a workflow, which another program has written,
// belongs to the only workflow of the bucket, or to the first one that can decode it.
func owner(regs []*registration, e *entry) *registration {
	if e.key == canary.Key {
		return nil
	}
	for _, r := range regs {
		if e.workflow == "" && len(regs) == 1 || r.workflow == e.workflow {
			return r
		}
	}
	if e.workflow != "" || len(regs) == 0 {
		return nil
	}
	for _, r := range regs {
		if p, err := r.decode(e); err == nil && p.EntityID() != "" {
			return r
		}
	}
	return regs[0] // one workflow has to report it
}

// record returns the view's record of a key, and false when only the server can know
// it.
func (v *view) record(r *registration, key string) (*entry, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	en := v.entities[key]
	if !v.ready || en == nil || en.degraded != nil || en.index.r != r {
		return nil, false
	}
	return en.entry(), true
}

// entryOf returns the view's entry of an entity, degraded or not, nil for none.
func (v *view) entryOf(r *registration, key string) *entry {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if en := v.entities[key]; en != nil && en.index.r == r {
		return en.entry()
	}
	return nil
}

// wait waits until the view has read the bucket and until, which may be nil, returns true. It
// calls until under the view's lock for reading. It returns jetstream.ErrBucketNotFound when
// the bucket has been missing for a while, and ErrClosed after the Manager's Close.
func (v *view) wait(ctx context.Context, until func() bool) error {
	for {
		if v.m.alive.Err() != nil {
			return ErrClosed
		}
		progress := v.progress.next()
		v.mu.RLock()
		ok := v.ready && (until == nil || until())
		v.mu.RUnlock()
		if ok {
			return nil
		}
		if v.follow.gone.Load() {
			return v.late(jetstream.ErrBucketNotFound)
		}
		select {
		case <-progress:
		case <-v.m.alive.Done():
		case <-ctx.Done():
			return v.late(context.Cause(ctx))
		}
	}
}

// late returns an error that says that the view is not up to date, and why.
func (v *view) late(err error) error {
	why := ""
	if trouble := v.follow.trouble(); trouble != "" {
		why = ": " + trouble
	}
	if !v.asOf().IsZero() {
		return fmt.Errorf("the view of bucket %s is as of %v ago: %w%s", v.b.name, v.age().Round(time.Millisecond), err, why)
	}
	return fmt.Errorf("the view of bucket %s has not read it: %w%s", v.b.name, err, why)
}

// asOf returns a time, by this process's clock: the view has everything that was in the bucket
// then, and perhaps later writes. It is zero before the view has read the bucket.
func (v *view) asOf() time.Time {
	if at := v.follow.asOf.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// age returns how old the view is: the longer of the times by the wall clock, which may be set
// back, and by the monotonic clock, which stands still while the machine is suspended. It is
// the longest duration for a view that has not read the bucket.
func (v *view) age() time.Duration {
	at, now := v.asOf(), time.Now()
	if at.IsZero() {
		return math.MaxInt64
	}
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

// catchUp waits until the view has everything that was in the bucket at a time. It may have
// later writes too.
func (v *view) catchUp(ctx context.Context, at time.Time) error {
	return v.wait(ctx, func() bool {
		if v.asOf().Before(at) {
			v.follow.look()
			return false
		}
		return true
	})
}
