package workflow

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"
)

// ErrInvalidTimer is returned for a write that sets a timer that cannot work: it has
// no name or no time, an edge to a phase that the table does not have, a repeat of an
// edge, or the entity has too many timers or is in a terminal phase. Nothing was
// written.
var ErrInvalidTimer = errors.New("workflow: invalid timer")

// MaxTimers is how many timers an entity can have.
const MaxTimers = 16

// minEvery is the shortest time between two reminders of one timer.
const minEvery = time.Second

// Timer is a due time of an entity. It is stored with the entity, in the same message,
// so a transition and the timers that it sets are one write, or none.
//
//	err := missions.Transition(ctx, "m-17", "waiting", workflow.TransitionSourceRule, "no wind",
//		workflow.SetTimer(workflow.Timer{Name: "remind", After: time.Hour, Every: time.Hour}),
//		workflow.SetTimer(workflow.Timer{Name: "give up", After: 24 * time.Hour, To: "aborted"}))
//
// [Manager.Deadlines] fires timers. To fire is a write of the entity: a transition for
// a timer with a phase, and for a reminder a write that changes the timer only. A hook
// reacts to either, see [Hook].
type Timer struct {
	// Name identifies the timer in its entity. 1 to 64 bytes.
	Name string `json:"name"`
	// At is when it is due, by the server's clock, in milliseconds. It may be in the
	// past, and as late as the year 9999. It is zero for a timer that has fired.
	At time.Time `json:"at,omitzero"`
	// After sets At to this long after the write. Use either. A Record does not have it.
	After time.Duration `json:"-"`
	// To is the phase that it moves the entity to; "" for a reminder. If the table has
	// no edge to it from the entity's phase when the timer is due, it fires as a
	// reminder.
	To string `json:"to,omitempty"`
	// Every repeats a reminder, until it is cancelled. Times that have passed while no
	// process ran Deadlines are skipped.
	Every time.Duration `json:"every,omitempty"`
	// Keep lets the timer outlive a change of phase. Otherwise it ends when the entity
	// leaves the phase in which it was set, or enters it again. A terminal phase ends
	// every timer.
	Keep bool `json:"keep,omitempty"`
	// Fired is how often a timer of that name has fired since the entity has had one
	// without interruption. Set it again, with Keep, to count retries. SetTimer ignores
	// the value that it is given.
	Fired int `json:"fired,omitempty"`
}

// SetTimer sets a timer with a write, in place of the entity's timer of that name.
func SetTimer(t Timer) WriteOption {
	return func(w *writeOptions) { w.timers = append(w.timers, timerEdit{Timer: t}) }
}

// CancelTimer removes a timer with a write. Without such a timer the write happens too.
func CancelTimer(name string) WriteOption {
	return func(w *writeOptions) { w.timers = append(w.timers, timerEdit{Timer: Timer{Name: name}, cancel: true}) }
}

type timerEdit struct {
	Timer
	cancel bool
}

func readTimers(header string) []Timer {
	if header == "" {
		return nil
	}
	var timers []Timer
	if err := json.Unmarshal([]byte(header), &timers); err != nil {
		return nil // another program wrote it
	}
	return slices.DeleteFunc(timers, func(t Timer) bool { return t.Name == "" })
}

// timersAfter returns the header of an entity's timers after a write. cur is the record
// that the write replaces.
func (r *registration) timersAfter(cur *entry, d *decision, edits []timerEdit, now time.Time) (string, error) {
	var timers []Timer
	if cur != nil && !cur.deleted() {
		timers = readTimers(cur.timers)
	}
	if len(timers) == 0 && len(edits) == 0 || d.deletion() {
		return "", nil
	}
	if d.fired != "" {
		fire(timers, d.fired, now)
	}
	phase := d.phase
	if d.entered != "" {
		timers = slices.DeleteFunc(timers, func(t Timer) bool { return !t.Keep })
	}
	if r.table.Has(phase) && r.table.IsTerminal(phase) {
		timers = nil
	}
	had := len(timers)
	for _, edit := range edits {
		i := slices.IndexFunc(timers, func(t Timer) bool { return t.Name == edit.Name })
		if edit.cancel {
			if i >= 0 {
				timers = slices.Delete(timers, i, i+1)
			}
			continue
		}
		t, err := r.timer(edit.Timer, phase, now)
		if err != nil {
			return "", fmt.Errorf("%w: %q: %w", ErrInvalidTimer, edit.Name, err)
		}
		if i >= 0 {
			t.Fired = timers[i].Fired
			timers[i] = t
		} else {
			timers = append(timers, t)
		}
	}
	if len(timers) > max(MaxTimers, had) { // another program may have set more
		return "", fmt.Errorf("%w: the entity has %d, want %d at most", ErrInvalidTimer, len(timers), MaxTimers)
	}
	if len(timers) == 0 {
		return "", nil
	}
	header, err := json.Marshal(timers)
	return string(header), err
}

// timer returns a timer as it is stored.
func (r *registration) timer(t Timer, phase string, now time.Time) (Timer, error) {
	switch {
	case t.Name == "" || len(t.Name) > 64 || !utf8.ValidString(t.Name):
		return t, fmt.Errorf("its name has %d bytes, want 1 to 64 of UTF-8", len(t.Name))
	case t.At.IsZero() == (t.After == 0):
		return t, errors.New("want either At or After")
	case t.After < 0 || t.Every < 0:
		return t, fmt.Errorf("it is after %v and every %v, want times above zero", t.After, t.Every)
	case t.To != "" && !r.table.Has(t.To):
		return t, fmt.Errorf("the table has no phase %q", t.To)
	case t.To != "" && t.Every != 0:
		return t, errors.New("it has both To and Every: only a reminder repeats")
	case t.Every != 0 && t.Every < minEvery:
		return t, fmt.Errorf("it repeats every %v, want a second at least", t.Every)
	case r.table.Has(phase) && r.table.IsTerminal(phase):
		return t, fmt.Errorf("the entity is in %q, which is terminal", phase)
	}
	if t.After != 0 {
		t.At = now.Add(t.After)
	}
	t.After, t.Fired = 0, 0
	t.At = t.At.UTC().Truncate(time.Millisecond)
	if t.At.Year() < 0 || t.At.Year() > 9999 {
		return t, fmt.Errorf("it is due in the year %d, want 0 to 9999", t.At.Year())
	}
	return t, nil
}

// fire marks a timer as fired, and sets the next time of one that repeats.
func fire(timers []Timer, name string, now time.Time) {
	for i := range timers {
		t := &timers[i]
		if t.Name != name {
			continue
		}
		t.Fired++
		if t.Every <= 0 {
			t.At = time.Time{}
			continue
		}
		every := max(t.Every, minEvery) // another program may have written less
		switch missed := now.Sub(t.At); {
		case missed == math.MaxInt64: // Sub saturates
			t.At = now.UTC().Truncate(time.Millisecond)
		case missed >= 0:
			t.At = t.At.Add(missed - missed%every)
		}
		t.At = t.At.Add(every)
		if t.At.Year() > 9999 {
			t.At = time.Time{}
		}
	}
}

// first returns the timer that is due first, false when none is.
func first(timers []Timer) (t Timer, ok bool) {
	for _, other := range timers {
		if !other.At.IsZero() && (!ok || other.At.Before(t.At)) {
			t, ok = other, true
		}
	}
	return t, ok
}

// dueAt returns when an entity comes due, by its deadline or by a timer, and 0 for never.
func (r *registration) dueAt(phase string, since int64, timers string, paused bool) (due int64) {
	if paused {
		return 0
	}
	if d, ok := r.deadline(phase); ok {
		due = plus(since, d.After)
	}
	if t, ok := first(readTimers(timers)); ok {
		if at := instant(t.At); due == 0 || at < due {
			due = at
		}
		if due == 0 { // 0 means never
			due = 1
		}
	}
	return due
}
