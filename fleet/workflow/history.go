package workflow

import (
	"context"
	"errors"
	"fmt"
	"net/url"
)

// Trail is an entity's history with what else is known of it.
type Trail struct {
	Events []TransitionEvent
	// Truncated says that there were more before: the bucket keeps only so many
	// writes of a key, and each update is one.
	Truncated bool
}

// History returns the phases that an entity went through, oldest first, as far
// back as the bucket keeps them; see [Manager.Trail] for whether that is to the
// beginning. Writes that left the phase alone, and records of others that
// do not decode, are left out. A deletion is the
// event whose To is [PhaseDeleted]. It returns ErrEntityNotFound for an entity
// that never was.
func (m *Manager) History(ctx context.Context, workflow, entityID string) ([]TransitionEvent, error) {
	trail, err := m.Trail(ctx, workflow, entityID)
	return trail.Events, err
}

// Trail is History that says whether it is whole.
func (m *Manager) Trail(ctx context.Context, workflow, entityID string) (Trail, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return Trail{}, fmt.Errorf("history: %w", err)
	}
	key, err := r.key(entityID)
	if err != nil {
		return Trail{}, fmt.Errorf("history of %s: %w", workflow, err)
	}
	var t Trail
	phase, from := "", uint64(1)
	for first := true; ; first = false {
		e, err := r.bucket.next(ctx, key, from)
		if errors.Is(err, ErrEntityNotFound) {
			if first {
				return Trail{}, fmt.Errorf("history of %s %q: %w", workflow, entityID, ErrEntityNotFound)
			}
			return t, nil
		}
		if err != nil {
			return Trail{}, fmt.Errorf("history of %s %q: %w", workflow, entityID, err)
		}
		from = e.revision + 1
		if before, known := e.predecessor(); first && known && before != 0 {
			t.Truncated = true
		}
		if event, ok := r.event(e, phase, first && t.Truncated); ok {
			t.Events = append(t.Events, event)
			phase = event.To
		} else if first {
			phase = r.phaseOf(e)
		}
	}
}

// event makes an event of a revision that changed the phase. Before it the
// entity was in phase; at the beginning of a history that is cut off it is not
// known.
func (r *registration) event(e *entry, phase string, cut bool) (TransitionEvent, bool) {
	if phase == PhaseDeleted {
		phase = ""
	}
	event := TransitionEvent{From: phase, At: e.at, Triggered: e.source(), Note: e.note()}
	if from, err := url.PathUnescape(e.header.Get(headerFrom)); err == nil && from != "" {
		event.From = from
	}
	if e.deleted() {
		event.To = PhaseDeleted
		return event, true
	}
	if event.To = r.phaseOf(e); event.To == "" {
		return TransitionEvent{}, false // it does not decode, and names no phase
	}
	moved := e.header.Get(headerPhase) != ""
	if !moved && (cut || event.To == phase) {
		return TransitionEvent{}, false
	}
	return event, true
}

// phaseOf returns the phase of a revision: its header's, or its record's.
func (r *registration) phaseOf(e *entry) string {
	if phase, err := url.PathUnescape(e.header.Get(headerPhase)); err == nil && phase != "" {
		return phase
	}
	if p, err := r.decode(e); err == nil {
		return p.Phase()
	}
	return ""
}
