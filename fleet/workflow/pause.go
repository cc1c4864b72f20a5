package workflow

import (
	"context"
	"errors"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// ErrPaused is returned for a change of phase of an entity that is paused, unless its source is
// [TransitionSourceOperator]. Nothing was written.
var ErrPaused = errors.New("workflow: entity is paused")

// pausing is what an entry says about a pause of its entity. It is stored in headerPause.
type pausing string

const (
	pauseBegins pausing = "pause"  // the write paused the entity
	pauseHolds  pausing = "paused" // the entity was paused before the write
	pauseEnds   pausing = "resume" // the write resumed the entity
)

// Pause makes an entity rest until [Manager.Resume]. While it is paused,
//
//   - only an operator changes its phase: a transition with another source, Complete and Fail
//     return [ErrPaused];
//   - its timers and its deadline do not fire;
//   - its hooks are not called, also for earlier writes. A call that has begun goes on.
//
// Updates, deletion and reads work as always. Resume lets go on what waited: timers and the
// deadline that came due meanwhile fire at once, in the order of their times, and the hooks get
// the reactions in the order of the writes. A reminder that came due more than once fires once.
//
// The pause is a write of the entity, and every later write of it carries the mark, so every
// process sees it: [Record].Paused, [TransitionEvent].Pause, [ListOptions].Paused. The reason is
// stored as the note of the write; it has up to [MaxNote] bytes. An entity that is paused already
// is not written again: Pause returns nil. It returns the errors of Update.
func (m *Manager) Pause(ctx context.Context, workflow, entityID, reason string, opts ...WriteOption) error {
	return m.setPause(ctx, workflow, entityID, pauseBegins, reason, opts)
}

// Resume ends the pause of an entity, in any phase: see [Manager.Pause]. An entity that is not
// paused is not written: Resume returns nil.
func (m *Manager) Resume(ctx context.Context, workflow, entityID, note string, opts ...WriteOption) error {
	return m.setPause(ctx, workflow, entityID, pauseEnds, note, opts)
}

func (m *Manager) setPause(
	ctx context.Context, workflow, id string, to pausing, note string, opts []WriteOption,
) (err error) {
	defer wrap(&err, "%s %s %q", to, workflow, id)
	r, err := m.registration(workflow)
	if err != nil {
		return err
	}
	return m.mutate(ctx, r, id, options(opts), func(_ string, cur *entry) (meta, error) {
		if cur.paused() == (to == pauseBegins) {
			return meta{}, &landedError{cur.revision}
		}
		return meta{pause: to, source: TransitionSourceOperator, note: text.Clip(note, MaxNote)}, nil
	}, nil)
}

// paused reports whether the entity was paused after the write.
func (e *entry) paused() bool { return e.pause == pauseBegins || e.pause == pauseHolds }

// pauses reports whether the write paused or resumed the entity.
func (e *entry) pauses() bool { return e.pause == pauseBegins || e.pause == pauseEnds }

// pauseAfter returns what a write says about the pause of the entity. cur is the record that the
// write replaces.
func pauseAfter(cur *entry, d *decision) pausing {
	switch {
	case d.pause != "":
		return d.pause
	case cur != nil && cur.paused() && !cur.deleted() && !d.deletion():
		return pauseHolds
	}
	return ""
}
