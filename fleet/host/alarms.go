package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// ErrNoTimer is wrapped by the error of [Host.CancelTimer] for a timer that the worker
// does not have.
var ErrNoTimer = errors.New("no such timer")

// Timer is a timer that a worker has set.
type Timer struct {
	Seq    uint64 // the one that was set later has the greater one
	Name   string
	Key    string // of the messages with which it is in order
	Due    time.Time
	Data   []byte
	Failed int // attempts to handle it
}

// Timers returns up to limit timers of a worker, in the order in which they were set,
// from those behind sequence after on, and the sequence to go on from, 0 when there are
// no more. A page may be shorter than limit and yet have a next one. What a message set
// is here within a quarter of a second after the message was answered.
func (h *Host) Timers(ctx context.Context, id string, after uint64, limit int) (timers []Timer, next uint64, err error) {
	rec, err := h.get(ctx, id)
	if err != nil {
		return nil, 0, fmt.Errorf("timers: %w", err)
	}
	cancelled := make(map[string]bool)
	err = forward(ctx, h.states.stream, h.states.marksOf(rec.slot(), rec.ID, rec.UID)+">", 1, maxTimers*10, func(m jetstream.Msg, _ *jetstream.MsgMetadata) (bool, error) {
		cancelled[string(m.Data())] = true
		return true, nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("worker %s: read its timers: %w", id, err)
	}
	read, last := 0, after
	err = forward(ctx, h.states.stream, h.states.timersOf(rec.slot(), rec.ID, rec.UID)+">", after+1, limit+1, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		if read++; read > limit {
			next = last
			return false, nil
		}
		last = meta.Sequence.Stream
		if m.Headers().Get(headerOp) != "" {
			return true, nil
		}
		var t timer
		if err := json.Unmarshal(m.Data(), &t); err != nil {
			return false, err
		}
		if !cancelled[t.ID] {
			timers = append(timers, Timer{Seq: last, Name: t.Name, Key: string(t.Key), Due: t.Due, Data: t.Data, Failed: t.Tries.Failed})
		}
		return true, nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("worker %s: read its timers: %w", id, err)
	}
	return timers, next, nil
}

// CancelTimer removes a timer of a worker, also of one that is stopped, before it fires.
// A timer that the worker handles at this moment, or whose handler has set it again, is
// not affected. Until the timer would have been due, the worker's own list may have it.
// The error wraps [ErrNoTimer] when the key has no timer of that name.
func (h *Host) CancelTimer(ctx context.Context, id, key, name string) error {
	if err := engine.CheckTimerName(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	rec, err := h.get(ctx, id)
	if err != nil {
		return fmt.Errorf("cancel a timer: %w", err)
	}
	subject := timerKey([]byte(key), name)
	m, err := last(ctx, h.states.stream, h.states.timersOf(rec.slot(), rec.ID, rec.UID)+subject)
	if err != nil {
		return fmt.Errorf("worker %s: cancel a timer: %w", id, err)
	}
	mark := h.states.marksOf(rec.slot(), rec.ID, rec.UID) + subject
	var t timer
	if m != nil && m.Header.Get(headerOp) == "" {
		if err := json.Unmarshal(m.Data, &t); err != nil {
			return fmt.Errorf("worker %s: cancel a timer: %w", id, err)
		}
		was, err := last(ctx, h.states.stream, mark)
		if err != nil {
			return fmt.Errorf("worker %s: cancel a timer: %w", id, err)
		}
		if was != nil && string(was.Data) == t.ID {
			m = nil
		}
	}
	if m == nil || t.ID == "" {
		return fmt.Errorf("worker %s: %q of the key %.200q: %w", id, name, key, ErrNoTimer)
	}
	if _, err := h.js.Publish(ctx, mark, []byte(t.ID)); err != nil {
		return fmt.Errorf("worker %s: cancel a timer: %w", id, err)
	}
	return nil
}

// storedTimers has the timers that the server has, for a test of code.
type storedTimers struct{ states *states }

func (s storedTimers) ofKey(ctx context.Context, rec *Record, key string) (map[string]*alarm, int, error) {
	prefix := s.states.timersOf(rec.slot(), rec.ID, rec.UID) + token([]byte(key)) + "."
	subjects, err := s.states.subjects(ctx, prefix+"*", maxTimers)
	if err != nil {
		return nil, 0, err
	}
	read, err := s.states.readMany(ctx, subjects)
	if err != nil {
		return nil, 0, err
	}
	all := make(map[string]*alarm, len(read))
	for _, c := range read {
		a := new(alarm)
		if !c.missing && json.Unmarshal(c.data, &a.timer) == nil {
			all[a.Name] = a
		}
	}
	return all, len(all), nil
}

// TimerChange is a timer that a handler sets or cancels.
type TimerChange struct {
	Name      string
	Due       time.Time
	Data      []byte
	Cancelled bool
}

// timerTrial returns what a handler has done to timers.
func (h *handle) timerTrial() (all []TimerChange) {
	for _, name := range h.timing.order {
		switch edit := h.timing.edits[name]; {
		case edit != nil:
			all = append(all, TimerChange{Name: name, Due: edit.At, Data: edit.Data})
		case h.timing.known[name] != nil:
			all = append(all, TimerChange{Name: name, Cancelled: true})
		}
	}
	return all
}

// keyOfMessage returns the key of a message of a worker.
func (r *Record) keyOfMessage(m *engine.Message) string {
	name := HeaderKey
	if r.Key != "" && r.Group == "" {
		name = r.Key
	}
	if values := m.Header[name]; len(values) > 0 && values[0] != "" {
		return values[0]
	}
	return m.Topic
}
