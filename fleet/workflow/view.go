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

	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

// view is this process's copy of one bucket: the latest record of every entity, with
// indexes. A follower feeds it, and so do this process's own writes as soon as the
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
	gone     map[string]uint64  // revisions of this process's deletions that the follower has not seen yet
	unseen   map[string]uint64  // revisions of this process's writes that the follower has not seen yet
	asked    map[string]uint64  // keys that the server is being asked about, with deletions that the follower saw meanwhile
	seq      uint64             // the last message that the follower saw
	ready    bool               // the initial content has been read
	progress alarm              // rings at every change

	agenda *agenda // what comes due
}

func newView(m *Manager, b *bucket) *view {
	v := &view{m: m, b: b, end: func() {}, done: make(chan struct{}), indexes: make(map[string]*index), entities: make(map[string]*entity), gone: make(map[string]uint64), asked: make(map[string]uint64), unseen: make(map[string]uint64)}
	close(v.done)
	v.agenda = newAgenda(m.alarm.ring)
	v.follow = b.follower(m.log, v.take)
	v.follow.hurry = make(chan struct{}, 1)
	v.follow.caught, v.follow.settle, v.follow.load = v.progress.ring, v.settle, v.loadSnapshot
	return v
}

// add follows the bucket for one more workflow. It reads again what it has read for
// another workflow, because it skipped this one's records then. It is not called
// concurrently.
func (v *view) add(r *registration) error {
	for _, other := range v.regs {
		if !other.blind && !r.blind && other.prefix != r.prefix {
			return fmt.Errorf("%w: the view of bucket %s has the prefix %q for %q and %q here, want the same", ErrInvalidParticipant, v.b.name, other.prefix, other.workflow, r.prefix)
		}
	}
	regs := append(slices.Clone(v.regs), r)
	slices.SortFunc(regs, func(a, b *registration) int { return strings.Compare(a.workflow, b.workflow) })
	if r.blind {
		v.mu.Lock()
		v.regs = regs
		v.mu.Unlock()
		return nil
	}
	v.end()
	<-v.done
	v.mu.Lock()
	v.regs = regs
	v.indexes[r.workflow] = newIndex(r)
	v.clearLocked()
	v.mu.Unlock()
	v.follow.filter = "$KV." + v.b.name + "." + r.prefix + ">"
	v.follow.created = time.Time{}
	v.follow.forget(0)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	v.end, v.done = cancel, done
	go func() {
		defer close(done)
		var keeper sync.WaitGroup
		if v.snapshotPath() != "" {
			keeper.Go(func() { v.keepSnapshots(ctx) })
		}
		v.follow.run(ctx)
		keeper.Wait()
		if v.m.alive.Err() != nil {
			v.saveSnapshot(context.Background())
		}
	}()
	return nil
}

func (v *view) clearLocked() {
	for name, x := range v.indexes {
		v.indexes[name] = newIndex(x.r)
	}
	clear(v.entities)
	clear(v.gone)
	clear(v.unseen)
	v.agenda.clear()
	v.seq, v.ready = 0, false
}

// take is the view's [reader].
func (v *view) take(it stream.Item[*entry]) {
	if it.Kind == stream.Put {
		v.entry(it.Value)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.progress.ring()
	switch it.Kind {
	case stream.Gap:
		v.clearLocked()
		v.m.log.Warn("the bucket is gone, was recreated or restored: reading all of it again", "bucket", v.b.name)
	case stream.Synced:
		v.ready = true
	}
}

func (v *view) entry(e *entry) {
	v.mu.Lock()
	known, gone, regs := v.entities[e.key], v.gone[e.key], v.regs
	if at, own := v.unseen[e.key]; own && at <= e.revision {
		delete(v.unseen, e.key)
	}
	if known != nil && known.revision == e.revision && !e.deleted() { // this process's own write, usually
		defer v.mu.Unlock()
		defer v.progress.ring()
		v.seq = e.revision
		if known.own {
			v.retimeLocked(known, e)
		}
		return
	}
	newer := gone < e.revision && (known == nil || known.revision < e.revision)
	v.mu.Unlock()

	// Decode outside of the lock. Only the follower's goroutine does it.
	var r *registration
	var made *entity
	if newer && !e.deleted() {
		if r = owner(regs, e); r != nil && !r.blind {
			p, err := r.decode(e)
			if made = v.make(r, e, p, err); made.decoded && !r.shows(made.phase.name) {
				made = nil
			} else {
				made.data = bytes.Clone(e.data) // the message's buffer also has its headers
			}
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.progress.ring()
	v.seq = e.revision
	if _, ok := v.asked[e.key]; ok && e.deleted() {
		v.asked[e.key] = e.revision
	}
	if at, ok := v.gone[e.key]; ok {
		if e.revision < at {
			return
		}
		delete(v.gone, e.key)
	}
	now := v.entities[e.key]
	switch {
	case now != nil && now.revision > e.revision:
	case now != nil && now.revision == e.revision && made == nil && !e.deleted():
		if now.own {
			v.retimeLocked(now, e)
		}
	case made != nil:
		v.putLocked(r, made)
	case now != nil: // deleted, or now another workflow's, or in a phase that the view does not have
		v.dropLocked(now)
	}
}

// retimeLocked corrects the times of a record that this process wrote.
func (v *view) retimeLocked(now *entity, e *entry) {
	now.own, now.at, now.since = false, e.at.UnixNano(), e.since().UnixNano()
	if now.due != 0 {
		now.due = now.index.r.dueAt(now.phaseName(), now.since, now.timers)
		v.agenda.set(now.index.r, now.key, now.id, now.due)
	}
}

// owner returns the workflow that a record belongs to, of those that share the bucket,
// nil for none. A record without a workflow, written by another program, belongs to the
// only workflow of the bucket, or to the one whose keys have this form. regs is sorted
// by name.
func owner(regs []*registration, e *entry) *registration {
	if e.key == canary.Key {
		return nil
	}
	name := e.get(headerWorkflow)
	for _, r := range regs {
		if name == "" && len(regs) == 1 || r.workflow == name {
			return r
		}
	}
	if name != "" || len(regs) == 0 {
		return nil
	}
	for _, r := range regs {
		if p, err := r.decode(e); err == nil && p.EntityID() != "" {
			return r
		}
	}
	return regs[0] // one workflow has to report it
}

// wrote adds this process's own write to the view, so that every read that begins
// after the write returned sees it. still reports whether it is the key's last
// revision at the server; wrote calls it when the view cannot know.
func (v *view) wrote(r *registration, e *entry, p Participant, still func() bool) {
	en := v.make(r, e, p, nil)
	en.own = true
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seq >= e.revision {
		// The follower has seen it, or the sequence went back unnoticed.
		if now := v.entities[e.key]; now == nil || now.revision != e.revision {
			v.follow.look()
		}
		if v.entities[e.key] == nil {
			// Another process may have deleted it by now. The follower would not report
			// a deletion again that it has already seen.
			v.asked[e.key] = 0
			v.mu.Unlock()
			is := still()
			v.mu.Lock()
			deleted := v.asked[e.key]
			delete(v.asked, e.key)
			if !is || deleted >= e.revision {
				return
			}
		}
	}
	now := v.entities[e.key]
	switch {
	case now != nil && now.revision >= e.revision:
		return
	case r.shows(p.Phase()) && strings.HasPrefix(e.key, r.prefix):
		v.putLocked(r, en)
	case now != nil:
		v.dropLocked(now)
	}
	v.unseen[e.key] = e.revision
	v.progress.ring()
}

// settle drops this process's own writes that were removed from the bucket before the
// follower read them. It has everything up to revision whole.
func (v *view) settle(ctx context.Context, whole uint64) {
	var keys []string
	v.mu.RLock()
	for key, revision := range v.unseen {
		if revision <= whole && len(keys) < maxChecks {
			keys = append(keys, key)
		}
	}
	v.mu.RUnlock()
	gone, n := v.follow.confirm(ctx, keys)
	v.mu.Lock()
	defer v.mu.Unlock()
	defer v.progress.ring()
	for _, key := range gone {
		if now := v.entities[key]; now != nil && now.revision <= whole {
			v.dropLocked(now)
		}
	}
	for _, key := range keys[:n] {
		if v.unseen[key] <= whole {
			delete(v.unseen, key)
		}
	}
}

// rephased does what wrote does for a change of phase alone, when the view has the
// record that was changed. Otherwise it returns false.
func (v *view) rephased(e *entry, phase string, before uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.entities[e.key]
	if now == nil || now.revision != before || now.degraded != nil {
		return false
	}
	if !now.index.r.shows(phase) {
		v.dropLocked(now)
		v.progress.ring()
		return true
	}
	en := *now
	en.revision, en.at, en.since, en.data, en.own = e.revision, e.at.UnixNano(), e.at.UnixNano(), e.data, true
	en.timers, en.keys = e.get(headerTimers), e.keyHeader()
	en.phase, en.due = &named{name: phase}, now.index.r.dueAt(phase, en.since, en.timers)
	v.swapLocked(now, &en)
	v.unseen[e.key] = e.revision
	v.progress.ring()
	return true
}

// deletedOwn removes an entity that this process has deleted from the view.
func (v *view) deletedOwn(key string, revision uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seq < revision {
		v.gone[key] = revision
	}
	delete(v.unseen, key)
	if now := v.entities[key]; now != nil && now.revision < revision {
		v.dropLocked(now)
	}
	v.progress.ring()
}

// record returns the view's record of a key, and false when only the server can know
// it.
func (v *view) record(r *registration, key string) (*entry, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.ready {
		return nil, false
	}
	en := v.entities[key]
	if en == nil || en.degraded != nil || en.index.r != r {
		return nil, false
	}
	return en.entry(), true
}

// has returns the view's entry of an entity, degraded or not.
func (v *view) has(r *registration, key string) (*entry, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	en := v.entities[key]
	if en == nil || en.index.r != r {
		return nil, false
	}
	return en.entry(), true
}

// entry returns the entity's revision, with what the view knows of it.
func (en *entity) entry() *entry {
	return &entry{
		key: en.key, revision: en.revision, guessed: en.own && en.since == en.at, at: time.Unix(0, en.at), data: en.data,
		known: &known{phase: en.phaseName(), version: en.version, since: en.since, timers: en.timers, keys: en.keys},
	}
}

// wait waits until the view has read the bucket. After the Manager's Close it returns
// ErrClosed.
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
		select {
		case <-progress:
		case <-v.m.alive.Done():
		case <-ctx.Done():
			return v.late(context.Cause(ctx))
		}
	}
}

// late says that the view is not up to date, and why.
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

// asOf returns a time, by this process's clock, at which the bucket was as the view
// has it, apart from later writes. It is zero for a view that has not read the bucket.
func (v *view) asOf() time.Time {
	if at := v.follow.asOf.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// age returns how old the view is, by the clock that says more: the wall clock may be set
// back, and the monotonic clock stands still while the machine is suspended. It is as
// long as a duration can be for a view that has not read the bucket.
func (v *view) age() time.Duration {
	at, now := v.asOf(), time.Now()
	if at.IsZero() {
		return math.MaxInt64
	}
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

// catchUp waits until the view has everything that the bucket had at a time, and
// nothing else but later writes.
func (v *view) catchUp(ctx context.Context, at time.Time) error {
	return v.wait(ctx, func() bool {
		if v.asOf().Before(at) {
			v.follow.look()
			return false
		}
		return true
	})
}
