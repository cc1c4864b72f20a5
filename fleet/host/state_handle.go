package host

import (
	"context"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/effects"
)

// handle is the [engine.State] of one message, with what is stored for it. The message's handler
// alone uses it; it is not safe for concurrent use.
type handle struct {
	effects.Handle
	cache  *stateCache
	record *Record
	web    *web // nil for none
	timers handleTimers

	fetched int // requests
}

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

	stored map[string]*pendingTimer // before the message; nil before the first look
}

// newHandle returns the handle of a message, which the timer fired has caused, "" for none.
// The worker may have so many timers.
func newHandle(cache *stateCache, rec *Record, web *web, timers handleTimers, maxTimers int, fired string) *handle {
	h := &handle{cache: cache, record: rec, web: web, timers: timers}
	h.Handle = effects.Handle{Source: h, MaxTimers: maxTimers, Fired: fired}
	return h
}

// Value returns the stored value of a key.
func (h *handle) Value(ctx context.Context, key string) ([]byte, bool, error) {
	v, ok, err := h.cache.get(ctx, h.cache.states.valuesOf(h.record.workerUID())+key)
	if err != nil {
		return nil, false, fmt.Errorf("read state %s: %w", key, err)
	}
	return v, ok, nil
}

// Timers returns the stored timers of the message's key.
func (h *handle) Timers(ctx context.Context) (ofKey map[string]engine.Timer, all int, err error) {
	if h.timers.stored, all, err = h.timers.source.ofKey(ctx, h.record, h.timers.key); err != nil {
		return nil, 0, fmt.Errorf("read the timers: %w", err)
	}
	ofKey = make(map[string]engine.Timer, len(h.timers.stored))
	for name, timer := range h.timers.stored {
		ofKey[name] = engine.Timer{Name: name, At: timer.Due}
	}
	return ofKey, all, nil
}

// Now returns the time of the timers.
func (h *handle) Now(ctx context.Context) time.Time { return h.timers.clock(ctx) }

// changes returns what the handler wrote.
func (h *handle) changes() (all []stateWrite) {
	for key, v := range h.Writes() {
		all = append(all, stateWrite{Worker: h.record.ID, UID: h.record.UID, Key: key, Data: v, Deleted: v == nil})
	}
	return all
}

// timerChanges returns what the handler did to timers.
func (h *handle) timerChanges() (all []stateWrite) {
	t := &h.timers
	for _, c := range h.TimerChanges() {
		if c.Cancelled {
			all = append(all, t.stored[c.Name].removal())
			continue
		}
		set := &pendingTimer{
			storedTimer: storedTimer{ID: t.id(), Name: c.Name, Key: []byte(t.key), Topic: t.topic, Due: c.At},
			slot:        t.slot,
			worker:      h.record.workerUID(),
		}
		all = append(all, set.write(c.Data))
	}
	return all
}

// trialTimers returns what a handler has done to timers.
func (h *handle) trialTimers() (all []TimerChange) {
	for _, c := range h.TimerChanges() {
		all = append(all, TimerChange{Name: c.Name, Due: c.At, Data: c.Data, Cancelled: c.Cancelled})
	}
	return all
}
