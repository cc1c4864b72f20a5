// Package effects has what hosted code reads and changes while it handles one message: the state
// of its worker and the timers of the message's key. A host and "workers dev" store the changes
// of a message that succeeded, each in its way, and have one set of bounds.
//
// Begin at [Handle].
package effects

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// Bounds of what one message may write to state, in bytes and in keys: the server takes no
// larger batch. Bounds of timers.
const (
	MaxStateBytes  = 8 << 20
	MaxStateKeys   = 500
	MaxTimersOfKey = 100
	MaxTimers      = 10_000 // of a worker
)

// Source has what is stored.
type Source interface {
	// Value returns the stored value of a key, and whether there is one.
	Value(ctx context.Context, key string) ([]byte, bool, error)
	// Timers returns the timers of the message's key by name, without their data, and how many
	// its worker has. The map is a new one.
	Timers(ctx context.Context) (ofKey map[string]engine.Timer, all int, err error)
	// Now returns the time of the timers.
	Now(ctx context.Context) time.Time
}

// Handle is the [engine.State] and the [engine.Timers] of one message. It keeps what the handler
// changes. The message's handler alone uses it; it is not safe for concurrent use.
type Handle struct {
	Source    Source
	MaxTimers int    // of the worker
	Fired     string // the timer that caused the message, which is over; "" for none

	writes map[string][]byte // nil is a delete
	order  []string          // keys of writes, as they were first written
	size   int

	timers  map[string]engine.Timer // with what the message did; nil before the first look
	all     int                     // of the worker now
	touched []string                // timers that the message has set or cancelled
	stored  map[string]bool         // by the names in touched: whether it was set before the message
}

// Get reads a key. It returns the value that this message has written, if any, and the stored
// one otherwise.
func (h *Handle) Get(ctx context.Context, key string) ([]byte, bool, error) {
	if err := engine.CheckKey(key); err != nil {
		return nil, false, err
	}
	if v, ok := h.writes[key]; ok {
		return bytes.Clone(v), v != nil, nil
	}
	v, ok, err := h.Source.Value(ctx, key)
	return bytes.Clone(v), ok, err
}

// Put keeps the value of a key in the handle. It is written when the handler has succeeded.
func (h *Handle) Put(_ context.Context, key string, v []byte) error {
	if v == nil {
		v = []byte{}
	}
	return h.write(key, bytes.Clone(v))
}

// Delete notes in the handle that the key is removed when the handler has succeeded.
func (h *Handle) Delete(_ context.Context, key string) error { return h.write(key, nil) }

func (h *Handle) write(key string, v []byte) error {
	if err := engine.CheckKey(key); err != nil {
		return err
	}
	if h.writes == nil {
		h.writes = make(map[string][]byte)
	}
	_, known := h.writes[key]
	size := h.size + len(v) - len(h.writes[key])
	switch {
	case !known && len(h.writes) == MaxStateKeys:
		return &engine.LimitError{What: "state", Limit: fmt.Sprintf("%d keys", MaxStateKeys)}
	case size > MaxStateBytes:
		return &engine.LimitError{What: "state", Limit: fmt.Sprintf("%d bytes", MaxStateBytes)}
	}
	if !known {
		h.order = append(h.order, key)
	}
	h.size, h.writes[key] = size, v
	return nil
}

// Writes returns the keys that the handler wrote, as they were first written, with their values:
// nil for one that it removed.
func (h *Handle) Writes() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, key := range h.order {
			if !yield(key, h.writes[key]) {
				return
			}
		}
	}
}

func (h *Handle) readTimers(ctx context.Context) (err error) {
	if h.timers != nil {
		return nil
	}
	timers, all, err := h.Source.Timers(ctx)
	if err != nil {
		return err
	}
	if _, has := timers[h.Fired]; has {
		delete(timers, h.Fired)
		all--
	}
	h.timers, h.all, h.stored = timers, all, make(map[string]bool)
	return nil
}

// touch notes that the message sets or cancels a timer.
func (h *Handle) touch(name string) {
	if _, known := h.stored[name]; !known {
		h.touched = append(h.touched, name)
		_, h.stored[name] = h.timers[name]
	}
}

// SetTimer sets a timer when the message is committed. It returns an [engine.LimitError] when the
// key has MaxTimersOfKey timers already, or the worker has h.MaxTimers.
func (h *Handle) SetTimer(ctx context.Context, timer engine.Timer) (err error) {
	if err := h.readTimers(ctx); err != nil {
		return err
	}
	if timer.At, err = timer.DueAt(h.Source.Now(ctx)); err != nil {
		return err
	}
	timer.After, timer.Data = 0, slices.Clone(timer.Data)
	if _, has := h.timers[timer.Name]; !has {
		switch {
		case len(h.timers) >= MaxTimersOfKey:
			return &engine.LimitError{What: "timers", Limit: fmt.Sprintf("%d for a key", MaxTimersOfKey)}
		case h.all >= h.MaxTimers:
			return &engine.LimitError{What: "timers", Limit: fmt.Sprintf("%d for a worker", h.MaxTimers)}
		}
		h.all++
	}
	h.touch(timer.Name)
	h.timers[timer.Name] = timer
	return nil
}

// CancelTimer removes a timer of the key when the message is committed. It does nothing when there
// is no such timer.
func (h *Handle) CancelTimer(ctx context.Context, name string) error {
	if err := engine.CheckTimerName(name); err != nil {
		return err
	}
	if err := h.readTimers(ctx); err != nil {
		return err
	}
	if _, has := h.timers[name]; has {
		h.touch(name)
		delete(h.timers, name)
		h.all--
	}
	return nil
}

// ListTimers returns the timers of the key, with the changes of this message, without their data.
func (h *Handle) ListTimers(ctx context.Context) (list []engine.Timer, err error) {
	if err := h.readTimers(ctx); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(h.timers)) {
		list = append(list, engine.Timer{Name: name, At: h.timers[name].At})
	}
	return list, nil
}

// TimerChange is a timer that the handler set, or cancelled.
type TimerChange struct {
	engine.Timer      // when it is cancelled only the name
	Cancelled    bool // it was set before the message
}

// TimerChanges returns what the handler did to timers, in the order in which it did. Timers that
// are due at one time fire in this order.
func (h *Handle) TimerChanges() (all []TimerChange) {
	for _, name := range h.touched {
		timer, has := h.timers[name]
		switch {
		case has:
			all = append(all, TimerChange{Timer: timer})
		case h.stored[name]: // otherwise this message has set it
			all = append(all, TimerChange{Timer: engine.Timer{Name: name}, Cancelled: true})
		}
	}
	return all
}
