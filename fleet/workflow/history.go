package workflow

import (
	"context"
)

// Trail is an entity's history, and whether it is complete.
type Trail struct {
	Events []TransitionEvent
	// Truncated says that events are missing, at the beginning or between others. The
	// bucket keeps the last 64 writes of an entity, updates included. A [Journal] keeps
	// every change of phase, within its own limits.
	Truncated bool
}

// History returns the changes of an entity's phase, oldest first, as far back as the
// bucket keeps them, or its [Journal] when the workflow has one, with its pauses. [Manager.Trail]
// also says whether they are complete. Other writes that
// kept the phase, and undecodable records of other programs, are left out. A deletion
// is the event whose To is [PhaseDeleted]. History returns ErrEntityNotFound for an
// entity that never existed.
func (m *Manager) History(ctx context.Context, workflow, entityID string) ([]TransitionEvent, error) {
	trail, err := m.Trail(ctx, workflow, entityID)
	return trail.Events, err
}

// Trail is History that also says whether it is complete.
func (m *Manager) Trail(ctx context.Context, workflow, entityID string) (t Trail, err error) {
	defer wrap(&err, "history of %s %q", workflow, entityID)
	r, key, err := m.locate(workflow, entityID)
	if err != nil {
		return t, err
	}
	phase, last, changed := "", uint64(0), uint64(0) // of the revision before
	err = r.revisions(ctx, key, func(e *entry) bool {
		isNext := e.on == 0 || e.on == last || e.change != 0 && e.change == changed // updates between them may be missing
		cut := e.chained && !isNext || last == 0 && e.erased()
		t.Truncated = t.Truncated || cut
		if event, ok := r.event(e, phase, cut); ok {
			t.Events = append(t.Events, event)
			phase = event.To
		} else if cut || last == 0 {
			phase = r.phaseOf(e)
		}
		last, changed = e.revision, e.lastChange()
		return true
	})
	if err == nil && last == 0 {
		err = ErrEntityNotFound
	}
	return t, err
}

// event makes an event from a revision that changed the phase. phase is the one
// before; it is not known at the beginning of a truncated history.
func (r *registration) event(e *entry, phase string, cut bool) (TransitionEvent, bool) {
	if phase == PhaseDeleted {
		phase = ""
	}
	event := TransitionEvent{
		From:      phase,
		At:        e.at,
		Revision:  e.revision,
		Triggered: e.source,
		Note:      e.note,
		Trace:     e.trace,
	}
	if e.from != "" {
		event.From = e.from
	}
	if e.deleted() {
		event.To = PhaseDeleted
		return event, true
	}
	if event.To = r.phaseOf(e); event.To == "" {
		return TransitionEvent{}, false // it does not decode, and names no phase
	}
	if e.pauses() {
		event.From, event.Pause = event.To, string(e.pause)
		return event, true
	}
	if !e.moved() && (cut || event.To == phase) {
		return TransitionEvent{}, false
	}
	return event, true
}

// phaseOf returns the phase of a revision, from its header or its record.
func (r *registration) phaseOf(e *entry) string {
	if e.moved() {
		return e.entered
	}
	if p, err := r.decode(e); err == nil {
		return p.Phase()
	}
	return ""
}
