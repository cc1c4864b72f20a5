package workflow

import (
	"context"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/trace"
)

// EventKind is the kind of an [Event], a string: "put", "deleted", "synced" or "gap".
type EventKind = stream.Kind

const (
	// EventPut is a write of an entity, the first or a later one.
	EventPut = stream.Put
	// EventDeleted is an entity's deletion.
	EventDeleted = stream.Deleted
	// EventSynced says that all entities that existed when the watch began have been
	// sent. It comes once, and again after each EventGap.
	EventSynced = stream.Synced
	// EventGap says that the bucket was recreated, or restored from a backup. Earlier
	// events no longer hold. The current entities come next, and then EventSynced.
	EventGap = stream.Gap
)

// Event is one event of a watch.
type Event struct {
	Kind EventKind
	// Record is the entity, for an EventPut. It is degraded when it cannot be decoded.
	// For an EventDeleted it has the key, the revision, and the id when this watch has
	// seen the entity.
	Record Record
	// Revision is the revision of the write. Revisions of a watch rise, except across
	// a gap.
	Revision uint64
	// At is when the server stored it.
	At time.Time
	// From is the phase before, for a write that changed the phase; Source and Note
	// belong to the change, or to a pause.
	From   string
	Source TransitionSource
	Note   string
	// Trace is the trace that the write belongs to: see [Trace].
	Trace trace.Context
	// Moved reports whether the write entered a phase.
	Moved bool
}

// Watch sends every write of a workflow's entities: first the latest state of those
// that exist, then each write as it happens. It sends no deletions and no records
// that cannot be decoded: see [Manager.WatchEvents]. The caller owns each
// participant.
//
// The channel closes when ctx ends or the Manager is closed. Until then the watch
// resumes a lost connection, and sends nothing twice. Cancel ctx when you stop
// reading: until then a goroutine and a subscription wait for the reader.
func (m *Manager) Watch(ctx context.Context, workflow string) (<-chan Participant, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return watch(ctx, m, r, func(e Event) (Participant, bool) {
		return e.Record.Participant, e.Kind == EventPut && e.Record.Participant != nil
	}), nil
}

// WatchEvents is Watch with all events: also deletions, degraded records,
// revisions, the causes of changes, EventSynced and EventGap. A slow reader
// delays no other reader. The bucket keeps the writes that the reader has not
// read yet. For one entity, it keeps as many writes as its history allows.
func (m *Manager) WatchEvents(ctx context.Context, workflow string) (<-chan Event, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return watch(ctx, m, r, func(e Event) (Event, bool) { return e, true }), nil
}

// watch follows the bucket for one reader, which has its own place in it, and sends what
// pick makes of each event. The channel is closed when ctx ends or the Manager is closed.
func watch[T any](ctx context.Context, m *Manager, r *registration, pick func(Event) (T, bool)) <-chan T {
	out := make(chan T)
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		close(out)
		return out
	}
	ctx, cancel := context.WithCancel(ctx)
	m.watches.Go(func() {
		defer close(out)
		defer cancel()
		stop := context.AfterFunc(m.alive, cancel)
		defer stop()
		w := &watcher{r: r, ids: make(map[string]string), send: func(e Event) {
			value, ok := pick(e)
			if !ok {
				return
			}
			select {
			case out <- value:
			case <-ctx.Done():
			}
		}}
		r.bucket.follower(m.log, w.take).run(ctx)
	})
	return out
}

// watcher makes events from what a follower reads.
type watcher struct {
	r    *registration
	send func(Event)
	ids  map[string]string // of the entities that were sent, by key
}

func (w *watcher) take(it stream.Item[*entry]) {
	switch it.Kind {
	case stream.Put:
		w.entry(it.Value)
	case stream.Gap:
		clear(w.ids)
		w.send(Event{Kind: it.Kind})
	default:
		w.send(Event{Kind: it.Kind})
	}
}

func (w *watcher) entry(e *entry) {
	v := w.r.bucket.view
	v.mu.RLock()
	regs := v.regs
	v.mu.RUnlock()
	id, isSent := w.ids[e.key]
	isOurs := isSent // a deletion by another program does not name the workflow
	if !e.deleted() || e.workflow != "" {
		isOurs = owner(regs, e) == w.r
	}
	if !isOurs {
		return
	}
	event := Event{Kind: EventPut, Revision: e.revision, At: e.at, Trace: e.trace, Moved: e.moved()}
	if change, ok := w.r.event(e, "", true); ok {
		event.From, event.Source, event.Note = change.From, change.Triggered, change.Note
	}
	if e.deleted() {
		event.Kind = EventDeleted
		event.Record = Record{
			Workflow:  w.r.workflow,
			Key:       e.key,
			Revision:  e.revision,
			UpdatedAt: e.at,
			EntityID:  id,
		}
		delete(w.ids, e.key)
	} else {
		event.Record = w.r.record(e)
		w.ids[e.key] = event.Record.EntityID
	}
	w.send(event)
}
