package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/servertime"
)

// states stores the values of all workers in one stream with one message for each
// subject:
//
//	host.state.SLOT.fence       the sequence of this message is the newest fencing token
//	host.state.WORKER.kv.KEY    a value that the worker stored
//	host.state.SLOT.tm.…        a timer, see [timer]
//
// The log of the slot has every value first, and cells bring them here. Earlier versions
// of this package also stored marks here, which expire:
//
//	host.state.SLOT.done.KEY    message KEY was handled
//	host.state.SLOT.tries.KEY   the counts of message KEY's deliveries
type states struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	prefix string // "host.state."
	asking gate   // caps the slots that ask the server for what they need
	clock  servertime.Clock
	ahead  atomic.Int64 // nanoseconds by which a test makes the clock later
}

// Headers of the protocol that the client has no names for.
const (
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
	headerOp          = "KV-Operation" // marks a deleted value, as in a key-value bucket
)

func (s *states) fenceSubject(slot string) string { return s.prefix + slot + ".fence" }
func (s *states) doneSubject(slot string, m string) string {
	return s.prefix + slot + ".done." + m
}
func (s *states) triesSubject(slot string, m string) string {
	return s.prefix + slot + ".tries." + m
}

// valuesOf returns the prefix of the values of one life of a worker's id.
func (s *states) valuesOf(id, uid string) string { return s.prefix + "w-" + id + ".kv." + uid + "." }

// subject returns the subject of a value.
func (s *states) subject(w *write) string {
	if w.Slot != "" {
		return s.timersOf(w.Slot, w.Worker, w.UID) + w.Key
	}
	return s.valuesOf(w.Worker, w.UID) + w.Key
}

// now returns the server's time. While the server does not answer, this process's clock
// goes on from its last answer.
func (s *states) now(ctx context.Context) time.Time {
	_ = s.clock.Look(ctx, 5*time.Second, func(ctx context.Context) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, commitWithin)
		defer cancel()
		stream, err := s.js.Stream(ctx, s.stream.CachedInfo().Config.Name)
		if err != nil {
			return time.Time{}, err
		}
		return stream.CachedInfo().TimeStamp, nil
	})
	return s.clock.Now().Add(time.Duration(s.ahead.Load()))
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

// marked reports whether a slot has marks of an earlier version.
func (s *states) marked(ctx context.Context, slot string) (bool, error) {
	for _, subject := range []string{s.doneSubject(slot, "*"), s.triesSubject(slot, "*")} {
		_, err := s.stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(subject))
		if err == nil || !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err == nil, err
		}
	}
	return false, nil
}

// marks returns what an earlier version noted about a message.
func (s *states) marks(ctx context.Context, slot, m string) (done bool, was tries, err error) {
	found, err := last(ctx, s.stream, s.doneSubject(slot, m))
	if err != nil || found != nil {
		return found != nil, tries{Begun: 1}, err
	}
	was = tries{Begun: 1}
	if found, err = last(ctx, s.stream, s.triesSubject(slot, m)); found != nil {
		_ = json.Unmarshal(found.Data, &was) // only hosts write here; the worst is one more attempt
	}
	return false, was, err
}

// tries counts the deliveries of a message so far.
type tries struct {
	Begun  int `json:"begun"`  // deliveries for which a handler was called, or may have been
	Failed int `json:"failed"` // deliveries that are known to have failed

	Spared bool `json:"spared,omitempty"` // the canary failed it, which does not count
}

// purge removes the values that a worker stored, and its timers.
func (s *states) purge(ctx context.Context, r *Record) error {
	for _, prefix := range []string{s.valuesOf(r.ID, r.UID), s.timersOf(r.slot(), r.ID, r.UID), s.marksOf(r.slot(), r.ID, r.UID)} {
		if err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(prefix+">")); err != nil {
			return err
		}
	}
	return nil
}

// api returns the prefix of requests to the server's JetStream.
func api(js jetstream.JetStream) string {
	switch opts := js.Options(); {
	case opts.APIPrefix != "":
		return strings.TrimSuffix(opts.APIPrefix, ".") + "."
	case opts.Domain != "":
		return "$JS." + opts.Domain + ".API."
	}
	return jetstream.DefaultAPIPrefix
}

// subjects returns the subjects of values that match a pattern, and nil when there are
// more than most. It asks the stream's leader, which has every acknowledged write.
func (s *states) subjects(ctx context.Context, pattern string, most int) ([]string, error) {
	all := make([]string, 0)
	for total := 1; len(all) < total; {
		question, err := json.Marshal(map[string]any{"subjects_filter": pattern, "offset": len(all)})
		if err != nil {
			return nil, err
		}
		// The client's own call reads all pages, of 100,000 subjects each.
		reply, err := s.nc.RequestWithContext(ctx, api(s.js)+"STREAM.INFO."+s.stream.CachedInfo().Config.Name, question)
		if err != nil {
			return nil, fmt.Errorf("list the values: %w", err)
		}
		var found struct {
			Error *jetstream.APIError `json:"error"`
			Total int                 `json:"total"`
			State struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		if err := json.Unmarshal(reply.Data, &found); err != nil {
			return nil, fmt.Errorf("list the values: %w", err)
		}
		if found.Error != nil {
			return nil, fmt.Errorf("list the values: %w", found.Error)
		}
		if total = found.Total; len(found.State.Subjects) > most || total > most {
			return nil, nil
		}
		if len(found.State.Subjects) == 0 {
			break
		}
		all = slices.AppendSeq(all, maps.Keys(found.State.Subjects))
	}
	return all, nil
}

// readMany reads subjects, many at once, from the stream's leader.
func (s *states) readMany(ctx context.Context, subjects []string) ([]*cell, error) {
	var next atomic.Int64
	read := make([]*cell, len(subjects))
	errs := make([]error, min(32, len(subjects)))
	var readers sync.WaitGroup
	for i := range errs {
		readers.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(subjects)); n = next.Add(1) - 1 {
				m, err := last(ctx, s.stream, subjects[n])
				if err != nil {
					errs[i] = err
					return
				}
				read[n] = cellOf(m)
			}
		})
	}
	readers.Wait()
	return read, errors.Join(errs...)
}

// handle is the [engine.State] of one message. Only the message's handler uses it;
// it is not for concurrent use.
type handle struct {
	cells  *cells
	record *Record
	web    *web              // nil for none
	writes map[string][]byte // nil is a delete
	order  []string
	size   int
	timing timing

	fetched int // requests
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
	v, ok, err := h.cells.get(ctx, h.cells.states.valuesOf(h.record.ID, h.record.UID), key)
	if err != nil {
		return nil, false, fmt.Errorf("read state %s: %w", key, err)
	}
	return bytes.Clone(v), ok, nil
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

// changes returns what the handler wrote.
func (h *handle) changes() []write {
	all := make([]write, 0, len(h.order))
	for _, key := range h.order {
		v := h.writes[key]
		all = append(all, write{Worker: h.record.ID, UID: h.record.UID, Key: key, Data: v, Deleted: v == nil})
	}
	return all
}

// batch publishes messages atomically and returns the sequence of the last one.
func (s *states) batch(ctx context.Context, msgs []*nats.Msg) (uint64, error) {
	if len(msgs) == 1 {
		return s.ask(ctx, msgs[0])
	}
	id := uid()
	for i, m := range msgs {
		m.Header.Set(headerBatchID, id)
		m.Header.Set(headerBatchSeq, strconv.Itoa(i+1))
		if i == len(msgs)-1 {
			m.Header.Set(headerBatchCommit, "1")
			break
		}
		if err := s.nc.PublishMsg(m); err != nil {
			return 0, err
		}
	}
	return s.ask(ctx, msgs[len(msgs)-1])
}

// commitWithin bounds the wait for the answer to a commit. A server that restarts
// may never send the answer. The chain then looks up whether the server carried out the
// commit.
const commitWithin = 5 * time.Second

// ask publishes a message and returns its sequence.
func (s *states) ask(ctx context.Context, m *nats.Msg) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	reply, err := s.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return 0, err
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Seq   uint64              `json:"seq"`
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		return 0, fmt.Errorf("the server's answer %.200q: %w", reply.Data, err)
	}
	if ack.Error != nil {
		return 0, &apiError{refusal: ack.Error}
	}
	return ack.Seq, nil
}

// apiError is the server's refusal. It implements [jetstream.JetStreamError].
type apiError struct{ refusal *jetstream.APIError }

func (e *apiError) Error() string                 { return e.refusal.Error() }
func (e *apiError) APIError() *jetstream.APIError { return e.refusal }
