package host

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// timerSource has the timers of keys: from a slot that this host holds, or from the server.
type timerSource interface {
	ofKey(ctx context.Context, rec *Record, key string) (timers map[string]*pendingTimer, all int, err error)
}

// handleTimers is the part of a [handle] that has the timers of the message's key.
type handleTimers struct {
	source timerSource
	clock  func(context.Context) time.Time
	id     func() string // of the next setting
	slot   string
	key    string
	topic  string
	most   int    // of the worker
	fired  string // the timer that caused the message, which is over

	before  map[string]*pendingTimer // the message
	now     map[string]engine.Timer  // with what the message did; nil before the first look
	all     int                      // of the worker now
	touched map[string]bool          // timers that the message has set or cancelled
	order   []string                 // of touched
}

func (h *handle) readTimers(ctx context.Context) (*handleTimers, error) {
	t := &h.timers
	if t.source == nil {
		return nil, engine.ErrNoTimers
	}
	if t.now != nil {
		return t, nil
	}
	var err error
	if t.before, t.all, err = t.source.ofKey(ctx, h.record, t.key); err != nil {
		return nil, fmt.Errorf("read the timers: %w", err)
	}
	if t.before[t.fired] != nil {
		delete(t.before, t.fired)
		t.all--
	}
	t.now, t.touched = make(map[string]engine.Timer), make(map[string]bool)
	for name, timer := range t.before {
		t.now[name] = engine.Timer{Name: name, At: timer.Due}
	}
	return t, nil
}

// touch notes that the message has set or cancelled a timer.
func (t *handleTimers) touch(name string) {
	if !t.touched[name] {
		t.touched[name] = true
		t.order = append(t.order, name)
	}
}

// SetTimer sets a timer when the message is committed.
func (h *handle) SetTimer(ctx context.Context, timer engine.Timer) error {
	t, err := h.readTimers(ctx)
	if err != nil {
		return err
	}
	if timer.At, err = timer.DueAt(t.clock(ctx)); err != nil {
		return err
	}
	timer.After, timer.Data = 0, slices.Clone(timer.Data)
	if _, has := t.now[timer.Name]; !has {
		switch {
		case len(t.now) >= maxTimersOfKey:
			return &engine.LimitError{What: "timers", Limit: fmt.Sprintf("%d for a key", maxTimersOfKey)}
		case t.all >= t.most:
			return &engine.LimitError{What: "timers", Limit: fmt.Sprintf("%d for a worker", t.most)}
		}
		t.all++
	}
	t.now[timer.Name] = timer
	t.touch(timer.Name)
	return nil
}

// CancelTimer removes one then.
func (h *handle) CancelTimer(ctx context.Context, name string) error {
	if err := engine.CheckTimerName(name); err != nil {
		return err
	}
	t, err := h.readTimers(ctx)
	if err != nil {
		return err
	}
	if _, has := t.now[name]; has {
		delete(t.now, name)
		t.all--
		t.touch(name)
	}
	return nil
}

// ListTimers returns the timers of the key as they are with what the message did.
func (h *handle) ListTimers(ctx context.Context) ([]engine.Timer, error) {
	t, err := h.readTimers(ctx)
	if err != nil {
		return nil, err
	}
	var list []engine.Timer
	for _, name := range slices.Sorted(maps.Keys(t.now)) {
		list = append(list, engine.Timer{Name: name, At: t.now[name].At})
	}
	return list, nil
}

// timerChanges returns what the handler did to timers.
func (h *handle) timerChanges() []stateWrite {
	t := &h.timers
	all := make([]stateWrite, 0, len(t.order))
	for _, name := range t.order {
		timer, has := t.now[name]
		old := t.before[name]
		switch {
		case has:
			set := &pendingTimer{
				storedTimer: storedTimer{ID: t.id(), Name: name, Key: []byte(t.key), Topic: t.topic, Due: timer.At},
				slot:        t.slot,
				worker:      h.record.workerUID(),
			}
			all = append(all, set.write(timer.Data))
		case old != nil: // otherwise this message has set it
			all = append(all, old.removal())
		}
	}
	return all
}
