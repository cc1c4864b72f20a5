package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// timerSource has the timers of keys: those of a slot that this host holds, or of the server.
type timerSource interface {
	ofKey(ctx context.Context, rec *Record, key string) (timers map[string]*pendingTimer, all int, err error)
}

// handleTimers is the part of a [handle] that has the timers of the message's key.
type handleTimers struct {
	source timerSource
	now    func(context.Context) time.Time
	id     func() string // of the next setting
	slot   string
	key    string
	topic  string
	fired  string // the timer that caused the message, which is over

	read  bool
	known map[string]*pendingTimer // before the message
	all   int                      // of the worker, then
	edits map[string]*engine.Timer
	order []string
}

func (h *handle) readTimers(ctx context.Context) (*handleTimers, error) {
	t := &h.timers
	if t.source == nil {
		return nil, engine.ErrNoTimers
	}
	if t.read {
		return t, nil
	}
	var err error
	if t.known, t.all, err = t.source.ofKey(ctx, h.record, t.key); err != nil {
		return nil, fmt.Errorf("read the timers: %w", err)
	}
	if t.known[t.fired] != nil {
		delete(t.known, t.fired)
		t.all--
	}
	t.read, t.edits = true, make(map[string]*engine.Timer)
	return t, nil
}

// has reports whether the key has a timer of that name now.
func (t *handleTimers) has(name string) bool {
	if edit, is := t.edits[name]; is {
		return edit != nil
	}
	return t.known[name] != nil
}

// count returns how many timers the key has now.
func (t *handleTimers) count() int {
	n := len(t.known)
	for name, edit := range t.edits {
		switch was := t.known[name] != nil; {
		case edit != nil && !was:
			n++
		case edit == nil && was:
			n--
		}
	}
	return n
}

// SetTimer sets a timer when the message is committed.
func (h *handle) SetTimer(ctx context.Context, timer engine.Timer) error {
	t, err := h.readTimers(ctx)
	if err != nil {
		return err
	}
	if timer.At, err = timer.DueAt(t.now(ctx)); err != nil {
		return err
	}
	timer.After, timer.Data = 0, slices.Clone(timer.Data)
	if !t.has(timer.Name) {
		n := t.count()
		switch {
		case n >= maxTimersOfKey:
			return &engine.LimitError{What: "timers", Limit: fmt.Sprintf("%d for a key", maxTimersOfKey)}
		case t.all+n-len(t.known) >= maxTimers:
			return &engine.LimitError{What: "timers", Limit: fmt.Sprintf("%d for a worker", maxTimers)}
		}
	}
	t.edit(timer.Name, &timer)
	return nil
}

// CancelTimer removes one then.
func (h *handle) CancelTimer(ctx context.Context, name string) error {
	if err := engine.CheckTimerName(name); err != nil {
		return err
	}
	t, err := h.readTimers(ctx)
	if err == nil && t.has(name) {
		t.edit(name, nil)
	}
	return err
}

func (t *handleTimers) edit(name string, to *engine.Timer) {
	if _, again := t.edits[name]; !again {
		t.order = append(t.order, name)
	}
	t.edits[name] = to
}

// ListTimers returns the timers of the key as they are with what the message did.
func (h *handle) ListTimers(ctx context.Context) ([]engine.Timer, error) {
	t, err := h.readTimers(ctx)
	if err != nil {
		return nil, err
	}
	var list []engine.Timer
	for name, a := range t.known {
		if _, changed := t.edits[name]; !changed {
			list = append(list, engine.Timer{Name: name, At: a.Due})
		}
	}
	for name, edit := range t.edits {
		if edit != nil {
			list = append(list, engine.Timer{Name: name, At: edit.At})
		}
	}
	slices.SortFunc(list, func(a, b engine.Timer) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// timerChanges returns what the handler did to timers.
func (h *handle) timerChanges() []stateWrite {
	t := &h.timers
	all := make([]stateWrite, 0, len(t.order))
	for _, name := range t.order {
		edit, old := t.edits[name], t.known[name]
		switch {
		case edit != nil:
			set := &pendingTimer{
				storedTimer: storedTimer{ID: t.id(), Name: name, Key: []byte(t.key), Topic: t.topic, Due: edit.At},
				slot:        t.slot,
				worker:      h.record.workerUID(),
			}
			all = append(all, set.write(edit.Data))
		case old != nil: // otherwise this message has set it
			all = append(all, old.removal())
		}
	}
	return all
}
