package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// Everything that workers remember is in one stream with one message a subject:
//
//	host.state.SLOT.fence       the newest fencing token is this message's sequence
//	host.state.SLOT.done.KEY    that message's state was written; expires
//	host.state.SLOT.tries.KEY   what came of that message's deliveries; expires
//	host.state.WORKER.kv.KEY    what the worker stored
//
// A write of state is one atomic batch: the done message, which must be the
// first on its subject, and the values, each under the condition that the fence's
// last sequence is the token. The server does both checks (Nats-Expected-Last-
// Subject-Sequence, and -Subject to look at another subject of the stream; ADR-50
// of NATS for batches), so that nothing depends on a clock here.
type states struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	prefix string // "host.state."
	ttl    time.Duration
}

// Headers of the protocol that the client has no names for.
const (
	headerExpectedSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
	headerBatchID         = "Nats-Batch-Id"
	headerBatchSeq        = "Nats-Batch-Sequence"
	headerBatchCommit     = "Nats-Batch-Commit"
	headerTTL             = "Nats-TTL"
	headerOp              = "KV-Operation" // a value that was deleted, as a key-value bucket marks it
)

func (s *states) fenceSubject(slot string) string { return s.prefix + slot + ".fence" }
func (s *states) doneSubject(slot string, m string) string {
	return s.prefix + slot + ".done." + m
}
func (s *states) triesSubject(slot string, m string) string {
	return s.prefix + slot + ".tries." + m
}

// valueSubject belongs to one life of a worker's id.
func (s *states) valueSubject(r *Record, key string) string {
	return s.prefix + "w-" + r.ID + ".kv." + r.UID + "." + key
}

// claim takes the fence of a slot for this host and returns the token: every
// token that was given out before is void from then on.
func (s *states) claim(ctx context.Context, slot, host string) (uint64, error) {
	ack, err := s.js.Publish(ctx, s.fenceSubject(slot), []byte(host))
	if err != nil {
		return 0, fmt.Errorf("claim the fence of %s: %w", slot, err)
	}
	return ack.Sequence, nil
}

func (s *states) last(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := s.stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return m, err
}

// done reports whether a message's state was written.
func (s *states) done(ctx context.Context, slot, m string) (bool, error) {
	found, err := s.last(ctx, s.doneSubject(slot, m))
	return found != nil, err
}

// tries is what came of a message's deliveries so far.
type tries struct {
	Begun  int `json:"begun"`  // how often a handler was called, or may have been
	Failed int `json:"failed"` // how often it is known to have failed
}

// tries returns what came of a message. The first delivery is not noted before
// it failed: nearly all succeed.
func (s *states) tries(ctx context.Context, slot, m string) (tries, error) {
	found, err := s.last(ctx, s.triesSubject(slot, m))
	if err != nil || found == nil {
		return tries{Begun: 1}, err
	}
	var t tries
	if err := json.Unmarshal(found.Data, &t); err != nil {
		return tries{Begun: 1}, nil //nolint:nilerr // only this host writes here; the worst is one more attempt
	}
	return t, nil
}

// note stores what came of a message.
func (s *states) note(ctx context.Context, slot, m string, t tries) error {
	msg := nats.NewMsg(s.triesSubject(slot, m))
	msg.Data = fmt.Appendf(nil, `{"begun":%d,"failed":%d}`, t.Begun, t.Failed)
	msg.Header.Set(headerTTL, s.ttl.String())
	_, err := s.js.PublishMsg(ctx, msg)
	return err
}

// purge forgets what a worker stored.
func (s *states) purge(ctx context.Context, r *Record) error {
	return s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.prefix+"w-"+r.ID+".kv."+r.UID+".>"))
}

// handle is the [engine.State] of one message. It is not for concurrent use but
// by the one handler.
type handle struct {
	states *states
	record *Record
	slot   string
	fence  uint64
	writes map[string][]byte // nil is a delete
	order  []string
	size   int
}

// maxState bounds what one message may write to state, in bytes and in keys:
// the server takes no larger batch.
const (
	maxStateBytes = 8 << 20
	maxStateKeys  = 500
)

// Get reads a key, first of all from what this message has written.
func (h *handle) Get(ctx context.Context, key string) ([]byte, bool, error) {
	if err := engine.CheckKey(key); err != nil {
		return nil, false, err
	}
	if v, ok := h.writes[key]; ok {
		return bytes.Clone(v), v != nil, nil
	}
	m, err := h.states.last(ctx, h.states.valueSubject(h.record, key))
	if err != nil {
		return nil, false, fmt.Errorf("read state %s: %w", key, err)
	}
	if m == nil || m.Header.Get(headerOp) != "" {
		return nil, false, nil
	}
	return m.Data, true, nil
}

// Put writes a key when the message is done.
func (h *handle) Put(_ context.Context, key string, v []byte) error {
	if v == nil {
		v = []byte{}
	}
	return h.write(key, bytes.Clone(v))
}

// Delete removes a key when the message is done.
func (h *handle) Delete(_ context.Context, key string) error { return h.write(key, nil) }

func (h *handle) write(key string, v []byte) error {
	if err := engine.CheckKey(key); err != nil {
		return err
	}
	if h.writes == nil {
		h.writes = make(map[string][]byte)
	}
	old, known := h.writes[key]
	if !known {
		if len(h.order) == maxStateKeys {
			return &engine.LimitError{What: "state", Limit: fmt.Sprintf("%d keys", maxStateKeys)}
		}
		h.order = append(h.order, key)
	}
	if h.size += len(v) - len(old); h.size > maxStateBytes {
		return &engine.LimitError{What: "state", Limit: fmt.Sprintf("%d bytes", maxStateBytes)}
	}
	h.writes[key] = v
	return nil
}

// commit writes everything that the message wrote, or nothing. It is not an
// error when an earlier delivery of the message has; [ErrStale] says that the
// fencing token is no longer the newest.
func (h *handle) commit(ctx context.Context, message string) error {
	if len(h.order) == 0 {
		return nil
	}
	s := h.states
	slices.Sort(h.order)
	msgs := make([]*nats.Msg, 0, len(h.order)+1)
	done := nats.NewMsg(s.doneSubject(h.slot, message))
	done.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
	done.Header.Set(headerTTL, s.ttl.String())
	msgs = append(msgs, done)
	for _, key := range h.order {
		m := nats.NewMsg(s.valueSubject(h.record, key))
		m.Data = h.writes[key]
		if m.Data == nil {
			m.Header.Set(headerOp, "DEL")
		}
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(h.fence, 10))
		m.Header.Set(headerExpectedSubject, s.fenceSubject(h.slot))
		msgs = append(msgs, m)
	}
	err := s.batch(ctx, msgs)
	if !natserr.Conflict(err) {
		if err != nil {
			err = fmt.Errorf("write state: %w", err)
		}
		return err
	}
	applied, readErr := s.done(ctx, h.slot, message)
	switch {
	case readErr != nil:
		return fmt.Errorf("write state: %w", readErr)
	case applied:
		return nil
	}
	return fmt.Errorf("write state with fencing token %d: %w", h.fence, ErrStale)
}

// batch publishes messages atomically.
func (s *states) batch(ctx context.Context, msgs []*nats.Msg) error {
	id := uid()
	for i, m := range msgs {
		m.Header.Set(headerBatchID, id)
		m.Header.Set(headerBatchSeq, strconv.Itoa(i+1))
		if i < len(msgs)-1 {
			if err := s.nc.PublishMsg(m); err != nil {
				return err
			}
			continue
		}
		m.Header.Set(headerBatchCommit, "1")
		reply, err := s.commit(ctx, m)
		if err != nil {
			return err
		}
		var ack struct {
			Error *jetstream.APIError `json:"error"`
			Seq   uint64              `json:"seq"`
		}
		if err := json.Unmarshal(reply.Data, &ack); err != nil {
			return fmt.Errorf("the server's answer %.200q: %w", reply.Data, err)
		}
		if ack.Error != nil {
			return &apiError{refusal: ack.Error}
		}
	}
	return nil
}

// commitWithin bounds the wait for the answer to a commit. A server that is
// restarted may never send it, and without the bound one lost answer would hold
// up the worker, or the whole group, for as long as a handler may take. Whether
// it was carried out the next attempt learns from the mark beside the state.
const commitWithin = 5 * time.Second

func (s *states) commit(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	return s.nc.RequestMsgWithContext(ctx, m)
}

// apiError is the server's refusal, in the shape that package jetstream gives it.
type apiError struct{ refusal *jetstream.APIError }

func (e *apiError) Error() string                 { return e.refusal.Error() }
func (e *apiError) APIError() *jetstream.APIError { return e.refusal }
