package host

import (
	"bytes"
	"context"
	"fmt"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// handle is the [engine.State] of one message. The message's handler alone uses it; it is not
// safe for concurrent use.
type handle struct {
	cache  *stateCache
	record *Record
	web    *web              // nil for none
	writes map[string][]byte // nil is a delete
	order  []string          // keys of writes, as they were first written
	size   int
	timers handleTimers

	fetched int // requests
}

// Bounds of what one message may write to state, in bytes and in keys: the server takes no
// larger batch.
const (
	maxStateBytes = 8 << 20
	maxStateKeys  = 500
)

// Get reads a key. It returns the value that this message has written, if any, and the stored
// one otherwise.
func (h *handle) Get(ctx context.Context, key string) ([]byte, bool, error) {
	if err := engine.CheckKey(key); err != nil {
		return nil, false, err
	}
	if v, ok := h.writes[key]; ok {
		return bytes.Clone(v), v != nil, nil
	}
	v, ok, err := h.cache.get(ctx, h.cache.states.valuesOf(h.record.workerUID())+key)
	if err != nil {
		return nil, false, fmt.Errorf("read state %s: %w", key, err)
	}
	return bytes.Clone(v), ok, nil
}

// Put keeps the value of a key in the handle. It is written when the handler has succeeded.
func (h *handle) Put(_ context.Context, key string, v []byte) error {
	if v == nil {
		v = []byte{}
	}
	return h.write(key, bytes.Clone(v))
}

// Delete notes in the handle that the key is removed when the handler has succeeded.
func (h *handle) Delete(_ context.Context, key string) error { return h.write(key, nil) }

func (h *handle) write(key string, v []byte) error {
	if err := engine.CheckKey(key); err != nil {
		return err
	}
	if h.writes == nil {
		h.writes = make(map[string][]byte)
	}
	_, known := h.writes[key]
	size := h.size + len(v) - len(h.writes[key])
	switch {
	case !known && len(h.writes) == maxStateKeys:
		return &engine.LimitError{What: "state", Limit: fmt.Sprintf("%d keys", maxStateKeys)}
	case size > maxStateBytes:
		return &engine.LimitError{What: "state", Limit: fmt.Sprintf("%d bytes", maxStateBytes)}
	}
	if !known {
		h.order = append(h.order, key)
	}
	h.size, h.writes[key] = size, v
	return nil
}

// changes returns what the handler wrote.
func (h *handle) changes() []stateWrite {
	all := make([]stateWrite, 0, len(h.order))
	for _, key := range h.order {
		v := h.writes[key]
		all = append(all, stateWrite{Worker: h.record.ID, UID: h.record.UID, Key: key, Data: v, Deleted: v == nil})
	}
	return all
}
