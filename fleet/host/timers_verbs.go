package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// ErrNoTimer is wrapped by the error of [Host.CancelTimer] for a timer that the worker does
// not have.
var ErrNoTimer = errors.New("no such timer")

// Timer is a timer that a worker has set.
type Timer struct {
	Seq    uint64 // the one that was stored later has the greater one
	Name   string
	Key    string // of the messages with which it is in order
	Due    time.Time
	Data   []byte
	Failed int // attempts to handle it
}

// Timers returns up to limit timers of a worker, in the order in which they were stored, from
// those behind sequence after on, and the sequence to go on from, 0 when there are no more. A
// page may be shorter than limit and yet have a next one. What a message set is here within a
// quarter of a second after the message was answered.
func (h *Host) Timers(ctx context.Context, id string, after uint64, limit int) (timers []Timer, next uint64, err error) {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return nil, 0, fmt.Errorf("timers: %w", err)
	}
	fail := func(err error) ([]Timer, uint64, error) {
		return nil, 0, fmt.Errorf("worker %s: read its timers: %w", id, err)
	}
	prefix := h.states.cancelledOf(rec.slot(), rec.workerUID())
	info, err := h.states.stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return fail(err)
	}
	read, page := 0, max(limit, 50)+1
	last, more := after, false
	take := func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		var t storedTimer
		read++
		if more = len(timers) == limit; more {
			return false, nil
		}
		last = meta.Sequence.Stream
		if m.Headers().Get(headerOp) != "" {
			return true, nil
		}
		if err := json.Unmarshal(m.Data(), &t); err != nil {
			return false, err
		}
		if _, cancelled := info.State.Subjects[prefix+t.ID]; cancelled {
			return true, nil
		}
		timers = append(timers, Timer{
			Seq:    last,
			Name:   t.Name,
			Key:    string(t.Key),
			Due:    t.Due,
			Data:   t.Data,
			Failed: t.Tries.Failed,
		})
		return true, nil
	}
	subject := h.states.timersOf(rec.slot(), rec.workerUID()) + ">"
	if err := forward(ctx, h.states.stream, subject, after+1, page, take); err != nil {
		return fail(err)
	}
	if more || read == page {
		next = last
	}
	return timers, next, nil
}

// CancelTimer removes a timer of a worker, also of one that is stopped, before it fires. A
// timer that the worker handles at this moment, or whose handler has set it again, is not
// affected. Until the timer would have been due, the worker's own list may have it. The error
// wraps [ErrNoTimer] when the key has no timer of that name.
func (h *Host) CancelTimer(ctx context.Context, id, key, name string) error {
	if err := engine.CheckTimerName(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	rec, err := h.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("cancel a timer: %w", err)
	}
	fail := func(err error) error { return fmt.Errorf("worker %s: cancel a timer: %w", id, err) }
	timers, _, err := (storedTimers{h.states}).ofKey(ctx, rec, key)
	if err != nil {
		return fail(err)
	}
	t := timers[name]
	if t == nil {
		return fmt.Errorf("worker %s: %q of the key %.200q: %w", id, name, key, ErrNoTimer)
	}
	if _, err := h.js.Publish(ctx, h.states.cancelledOf(rec.slot(), rec.workerUID())+t.ID, nil); err != nil {
		return fail(err)
	}
	return nil
}

// storedTimers has the timers that the server has and that no operator has cancelled.
type storedTimers struct{ states *states }

func (s storedTimers) ofKey(ctx context.Context, rec *Record, key string) (map[string]*pendingTimer, int, error) {
	of, slot := rec.workerUID(), rec.slot()
	messages, err := s.states.readAll(ctx, s.states.timersOf(slot, of), withoutData)
	if err != nil {
		return nil, 0, err
	}
	cancelled := s.states.cancelledOf(slot, of)
	timers := make(map[string]*pendingTimer)
	for _, m := range messages {
		t := &pendingTimer{slot: slot, worker: of, place: strings.TrimPrefix(m.Subject, s.states.timersOf(slot, of))}
		if json.Unmarshal(m.Data, &t.storedTimer) != nil || string(t.Key) != key {
			continue
		}
		mark, err := last(ctx, s.states.stream, cancelled+t.ID)
		if err != nil {
			return nil, 0, err
		}
		if mark == nil {
			timers[t.Name] = t
		}
	}
	return timers, len(messages), nil
}

// TimerChange is a timer that a handler sets or cancels.
type TimerChange struct {
	Name      string
	Due       time.Time
	Data      []byte
	Cancelled bool
}

// keyHeader returns the name of the header with the key of a worker's messages. A group
// handles one message at a time.
func (r *Record) keyHeader() string {
	if r.Group != "" {
		return HeaderKey
	}
	return cmp.Or(r.Key, HeaderKey)
}

// keyOfMessage returns the key of a message of a worker.
func (r *Record) keyOfMessage(m *engine.Message) string {
	if values := m.Header[r.keyHeader()]; len(values) > 0 && values[0] != "" {
		return values[0]
	}
	return m.Topic
}
