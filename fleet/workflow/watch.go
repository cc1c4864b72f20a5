package workflow

import (
	"context"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

// EventKind says what a watcher is told.
type EventKind = stream.Kind

const (
	// EventPut is a write of an entity, the first or a later one.
	EventPut = stream.Put
	// EventDeleted is an entity's deletion.
	EventDeleted = stream.Deleted
	// EventSynced says that what was there when the watch began has been told.
	// It comes once, and again after each EventGap.
	EventSynced = stream.Synced
	// EventGap says that the bucket was made anew, or restored from a backup:
	// forget what you know. The watch tells what exists now, then EventSynced.
	EventGap = stream.Gap
)

// Event is what a watcher is told.
type Event struct {
	Kind EventKind
	// Record is the entity, of an EventPut. It is degraded when it cannot be
	// decoded. Of an EventDeleted it has the key and the revision, and the id
	// when this watch has seen the entity.
	Record Record
	// Revision is that of the write. Those of one watch rise, but across a gap.
	Revision uint64
	// At is when the server stored it.
	At time.Time
	// From is the phase that was left by a write that changed it; Source and
	// Note are that change's.
	From   string
	Source TransitionSource
	Note   string
	// Moved reports whether the write entered a phase.
	Moved bool
}

// Watch tells every write of a workflow's entities: first those that there are,
// in their latest state, then each as it happens. A deletion is not told, and
// neither is a record that cannot be decoded: see [Manager.WatchEvents]. Each
// participant is the caller's own.
//
// The channel closes when ctx ends or the Manager is closed; until then a
// connection that is lost is resumed, and nothing is told twice. Cancel ctx when
// you stop reading: until then a goroutine and a subscription wait for you.
func (m *Manager) Watch(ctx context.Context, workflow string) (<-chan Participant, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	out := make(chan Participant)
	m.watch(ctx, r, func(ctx context.Context, e Event) {
		if e.Kind != EventPut || e.Record.Participant == nil {
			return
		}
		select {
		case out <- e.Record.Participant:
		case <-ctx.Done():
		}
	}, func() { close(out) })
	return out, nil
}

// WatchEvents is Watch that tells all: deletions, degraded records, revisions,
// what caused a change, when the beginning has been told, and when all before is
// void. A reader that is slow is waited for and holds nobody up; of writes to one
// entity that it has not read yet, the bucket keeps as many as its history is
// deep.
func (m *Manager) WatchEvents(ctx context.Context, workflow string) (<-chan Event, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	out := make(chan Event)
	m.watch(ctx, r, func(ctx context.Context, e Event) {
		select {
		case out <- e:
		case <-ctx.Done():
		}
	}, func() { close(out) })
	return out, nil
}

// watch follows the bucket for one reader, which has its own place in it.
func (m *Manager) watch(ctx context.Context, r *registration, tell func(context.Context, Event), done func()) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		done()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	m.watches.Go(func() {
		defer done()
		defer cancel()
		stop := context.AfterFunc(m.alive, cancel)
		defer stop()
		w := &watcher{r: r, tell: func(e Event) { tell(ctx, e) }, ids: make(map[string]string)}
		r.bucket.follower(m.log, w.take).run(ctx)
	})
}

// watcher makes events of what a follower reads.
type watcher struct {
	r    *registration
	tell func(Event)
	ids  map[string]string // by key, where the id is not the key or the bucket is shared
}

// take is the watcher's [reader].
func (w *watcher) take(it stream.Item[*entry]) {
	switch it.Kind {
	case stream.Put:
		w.entry(it.Value)
	case stream.Gap:
		clear(w.ids)
		w.tell(Event{Kind: it.Kind})
	default:
		w.tell(Event{Kind: it.Kind})
	}
}

func (w *watcher) entry(e *entry) {
	mine, shared := w.mine(e)
	if !mine {
		return
	}
	event := Event{Kind: EventPut, Revision: e.revision, At: e.at, Moved: e.header.Get(headerPhase) != ""}
	if change, ok := w.r.event(e, "", true); ok {
		event.From, event.Source, event.Note = change.From, change.Triggered, change.Note
	}
	if e.deleted() {
		event.Kind = EventDeleted
		event.Record = Record{Workflow: w.r.workflow, Key: e.key, Revision: e.revision, UpdatedAt: e.at, EntityID: w.ids[e.key]}
		if event.Record.EntityID == "" && w.r.sample.KVKey(e.key) == e.key {
			event.Record.EntityID = e.key
		}
		delete(w.ids, e.key)
	} else {
		event.Record = w.r.record(e)
		if id := event.Record.EntityID; shared || id != "" && id != e.key {
			w.ids[e.key] = id
		}
	}
	w.tell(event)
}

// mine reports whether a revision is one of this watch's workflow, and whether
// the bucket has others. A deletion by others does not say whose it is: it is
// this workflow's when the key was.
func (w *watcher) mine(e *entry) (mine, shared bool) {
	v := w.r.bucket.view
	v.mu.RLock()
	defer v.mu.RUnlock()
	shared = len(v.indexes) > 1
	if shared && e.deleted() && e.header.Get(headerWorkflow) == "" {
		_, told := w.ids[e.key]
		return told, shared
	}
	return v.ownerLocked(e) == w.r, shared
}
