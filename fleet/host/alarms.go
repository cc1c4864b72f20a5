package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ErrNoTimer is wrapped by the error of [Host.CancelTimer] for a timer that the worker
// does not have.
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

// Timers returns up to limit timers of a worker, in the order in which they were stored,
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
	for from, more := after+1, true; more && next == 0; {
		read, page := 0, min(max(limit, 50), 499)+1
		err = forward(ctx, h.states.stream, h.states.timersOf(rec.slot(), rec.ID, rec.UID)+">", from, page, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
			read, from = read+1, meta.Sequence.Stream+1
			var t timer
			if m.Headers().Get(headerOp) != "" {
				return true, nil
			}
			if err := json.Unmarshal(m.Data(), &t); err != nil {
				return false, err
			}
			if cancelled[t.ID] {
				return true, nil
			}
			if len(timers) == limit {
				next = after
				return false, nil
			}
			after = meta.Sequence.Stream
			timers = append(timers, Timer{Seq: after, Name: t.Name, Key: string(t.Key), Due: t.Due, Data: t.Data, Failed: t.Tries.Failed})
			return true, nil
		})
		if err != nil {
			return nil, 0, fmt.Errorf("worker %s: read its timers: %w", id, err)
		}
		more = read == page
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
	fail := func(err error) error { return fmt.Errorf("worker %s: cancel a timer: %w", id, err) }
	again := worker.Backoff{Min: 5 * time.Millisecond, Max: 100 * time.Millisecond}
	for looks := 1; ; looks++ {
		t, place, err := h.states.timerOf(ctx, rec, []byte(key), name)
		if err != nil {
			return fail(err)
		}
		mark := h.states.marksOf(rec.slot(), rec.ID, rec.UID) + place
		var seq uint64
		if t != nil {
			was, err := last(ctx, h.states.stream, mark)
			if err != nil {
				return fail(err)
			}
			if was != nil {
				seq = was.Sequence
			}
			if was != nil && string(was.Data) == t.ID {
				t = nil
			}
		}
		if t == nil {
			return fmt.Errorf("worker %s: %q of the key %.200q: %w", id, name, key, ErrNoTimer)
		}
		_, err = h.js.Publish(ctx, mark, []byte(t.ID), jetstream.WithExpectLastSequencePerSubject(seq))
		if natserr.Conflict(err) && again.Sleep(ctx, looks) == nil && looks < 10 {
			continue // another timer has this place by now, and is cancelled too
		}
		if err != nil {
			return fail(err)
		}
		return nil
	}
}

// placesOf returns the places of those timers of a worker that the server has and whose
// hashOf begins with of. It looks again while the replica that it reads lags behind the
// leader: a flush ends with a message on the subject of the tokens.
func (s *states) placesOf(ctx context.Context, rec *Record, of string) (places []string, err error) {
	prefix, fence := s.timersOf(rec.slot(), rec.ID, rec.UID), s.fenceSubject(rec.slot())
	newest, err := last(ctx, s.stream, fence)
	if err != nil {
		return nil, err
	}
	by := jetstream.ConsumerConfig{FilterSubjects: []string{prefix + ">", fence}, HeadersOnly: true}
	again := worker.Backoff{Min: 5 * time.Millisecond, Max: 100 * time.Millisecond}
	for looks := 1; ; looks++ {
		places = nil
		current := newest == nil
		err := replay.Each(ctx, s.stream, by, math.MaxInt, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
			place, is := strings.CutPrefix(m.Subject(), prefix)
			current = current || meta.Sequence.Stream >= newest.Sequence
			if is && m.Headers().Get(headerOp) == "" && (strings.HasPrefix(m.Headers().Get(headerOf), of) || strings.HasPrefix(place, of)) {
				places = append(places, place)
			}
			return true, nil
		})
		if err != nil || current {
			return places, err
		}
		if err := again.Sleep(ctx, looks); err != nil {
			return nil, fmt.Errorf("the replica lags behind its leader: %w", err)
		}
	}
}

// timerOf returns a timer that the server has, and its place; nil when there is none.
func (s *states) timerOf(ctx context.Context, rec *Record, key []byte, name string) (*timer, string, error) {
	places, err := s.placesOf(ctx, rec, hashOf(key, name))
	for _, place := range places {
		m, err := last(ctx, s.stream, s.timersOf(rec.slot(), rec.ID, rec.UID)+place)
		if err != nil {
			return nil, "", err
		}
		t := new(timer)
		if m == nil || m.Header.Get(headerOp) != "" {
			continue
		}
		if err := json.Unmarshal(m.Data, t); err != nil {
			return nil, "", err
		}
		if t.Name == name && bytes.Equal(t.Key, key) {
			return t, place, nil
		}
	}
	return nil, "", err
}

// storedTimers has the timers that the server has, for a test of code.
type storedTimers struct{ states *states }

func (s storedTimers) ofKey(ctx context.Context, rec *Record, key string) (map[string]*alarm, int, error) {
	places, err := s.states.placesOf(ctx, rec, token([]byte(key))+".")
	if err != nil {
		return nil, 0, err
	}
	for i := range places {
		places[i] = s.states.timersOf(rec.slot(), rec.ID, rec.UID) + places[i]
	}
	read, err := s.states.readMany(ctx, places)
	if err != nil {
		return nil, 0, err
	}
	all := make(map[string]*alarm, len(read))
	for _, c := range read {
		a := new(alarm)
		if !c.missing && json.Unmarshal(c.data, &a.timer) == nil && string(a.Key) == key {
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
