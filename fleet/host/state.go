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

// states stores the state of all workers in one stream with one message for each subject:
//
//	host.state.SLOT.fence       the sequence of this message is the newest fencing token
//	host.state.SLOT.done.KEY    the state of message KEY was written; expires
//	host.state.SLOT.tries.KEY   the counts of message KEY's deliveries; expires
//	host.state.WORKER.kv.KEY    a value that the worker stored
//
// A write of state is one atomic batch. It has the done message, which must be the
// first on its subject, and the values, each under the condition that the fence's
// last sequence is the token. The server does both checks (Nats-Expected-Last-
// Subject-Sequence, and -Subject to look at another subject of the stream; ADR-50
// of NATS for batches), so nothing depends on a clock here.
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
	headerOp              = "KV-Operation" // marks a deleted value, as in a key-value bucket
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

// claim takes the fence of a slot for this host and returns the token. It makes
// every earlier token of the slot void.
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

// tries counts the deliveries of a message so far.
type tries struct {
	Begun  int `json:"begun"`  // deliveries for which a handler was called, or may have been
	Failed int `json:"failed"` // deliveries that are known to have failed
}

// tries returns the counts of a message. The host stores nothing about a first
// delivery unless it fails, because nearly all succeed.
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

// note stores the counts of a message.
func (s *states) note(ctx context.Context, slot, m string, t tries) error {
	msg := nats.NewMsg(s.triesSubject(slot, m))
	msg.Data = fmt.Appendf(nil, `{"begun":%d,"failed":%d}`, t.Begun, t.Failed)
	msg.Header.Set(headerTTL, s.ttl.String())
	_, err := s.js.PublishMsg(ctx, msg)
	return err
}

// purge removes the values that a worker stored.
func (s *states) purge(ctx context.Context, r *Record) error {
	return s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.prefix+"w-"+r.ID+".kv."+r.UID+".>"))
}

// handle is the [engine.State] of one message. Only the message's handler uses it;
// it is not for concurrent use.
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

// Get reads a key. It returns the value that this message has written, if any, and
// the stored one otherwise.
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

// Put keeps the value of a key until commit writes it.
func (h *handle) Put(_ context.Context, key string, v []byte) error {
	if v == nil {
		v = []byte{}
	}
	return h.write(key, bytes.Clone(v))
}

// Delete notes that commit removes a key.
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

// commit writes everything that the message wrote, or nothing. It returns nil when
// an earlier delivery of the message has written its state already, and [ErrStale]
// when the fencing token is no longer the newest.
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

// commitWithin bounds the wait for the answer to a commit. A server that restarts
// may never send the answer. Without the bound one lost answer would hold up the
// worker, or the whole group, for as long as a handler may take. The next attempt
// learns from the done message whether the server carried out the commit.
const commitWithin = 5 * time.Second

func (s *states) commit(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	return s.nc.RequestMsgWithContext(ctx, m)
}

// apiError is the server's refusal. It implements [jetstream.JetStreamError].
type apiError struct{ refusal *jetstream.APIError }

func (e *apiError) Error() string                 { return e.refusal.Error() }
func (e *apiError) APIError() *jetstream.APIError { return e.refusal }
