package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// ErrNoKey is wrapped by the error of [Host.Value] for a key that the worker has not
// stored.
var ErrNoKey = errors.New("no such key")

// Value is a value that a worker has stored.
type Value struct {
	Seq  uint64 // the one written later has the greater one
	Key  string
	Data []byte
	At   time.Time
}

// Values returns up to limit values that a worker has stored, in the order in which
// they were last written, from those behind sequence after on, and whether there are
// more. What a message wrote is here within a quarter of a second after the message
// was answered. A key that is written between two pages may be in both.
func (h *Host) Values(ctx context.Context, id string, after uint64, limit int) (values []Value, more bool, err error) {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return nil, false, fmt.Errorf("state: %w", err)
	}
	prefix := h.states.valuesOf(rec.workerUID())
	// Marks of deleted keys count: a page may be shorter, and yet there are more.
	read := 0
	take := func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		if read++; read > limit {
			more = true
			return false, nil
		}
		v := Value{
			Seq:  meta.Sequence.Stream,
			Key:  strings.TrimPrefix(m.Subject(), prefix),
			Data: m.Data(),
			At:   meta.Timestamp,
		}
		if m.Headers().Get(headerOp) != "" {
			v.Key = "" // a deleted key
		}
		values = append(values, v)
		return true, nil
	}
	if err := forward(ctx, h.states.stream, prefix+">", after+1, limit+1, take); err != nil {
		return nil, false, fmt.Errorf("worker %s: read its state: %w", id, err)
	}
	return values, more, nil
}

// Value returns the value of a key that a worker has stored.
func (h *Host) Value(ctx context.Context, id, key string) (*Value, error) {
	if err := engine.CheckKey(key); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	rec, err := h.Get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	m, err := last(ctx, h.states.stream, h.states.valuesOf(rec.workerUID())+key)
	if err != nil {
		return nil, fmt.Errorf("worker %s: read its state: %w", id, err)
	}
	if m == nil || m.Header.Get(headerOp) != "" {
		return nil, fmt.Errorf("worker %s: %s: %w", id, key, ErrNoKey)
	}
	return &Value{Seq: m.Sequence, Key: key, Data: m.Data, At: m.Time}, nil
}
