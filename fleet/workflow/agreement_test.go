package workflow_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// keepAll lets the bucket keep every revision, so that the journal can be compared with
// all of them.
func keepAll(t *testing.T, r *rig) {
	t.Helper()
	ctx := testContext(t)
	s, err := r.js.Stream(ctx, "KV_MISSIONS")
	must(t, err)
	cfg := s.CachedInfo().Config
	cfg.MaxMsgsPerSubject = -1
	_, err = r.js.UpdateStream(ctx, cfg)
	must(t, err)
}

// reacted is what a hook was called with, by key and revision.
type reacted struct {
	mu sync.Mutex
	to map[string]map[uint64]workflow.Reaction
}

func (rs *reacted) note(_ context.Context, re workflow.Reaction) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.to == nil {
		rs.to = make(map[string]map[uint64]workflow.Reaction)
	}
	key, revision := re.Record.Key, re.Record.Revision
	if rs.to[key] == nil {
		rs.to[key] = make(map[uint64]workflow.Reaction)
	}
	if before, known := rs.to[key][revision]; known && before.ID != re.ID {
		return fmt.Errorf("revision %d of %s has the reactions %s and %s", revision, key, before.ID, re.ID)
	}
	rs.to[key][revision] = re
	return nil
}

func (rs *reacted) of(key string) map[uint64]workflow.Reaction {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return maps.Clone(rs.to[key])
}

// happened is one revision of an entity in the bucket, compared with the one before.
type happened struct {
	msg   *jetstream.RawStreamMsg
	event workflow.TransitionEvent // without a To for one that kept the phase
	fired bool                     // nothing of the record changed: a reminder has fired
}

// told reports whether the hook is told of it.
func (h happened) told() bool { return h.event.To != "" || h.fired }

// agree waits until the timers of an entity have fired. Then it checks that the journal
// has the bucket's revisions, the history their changes of phase and the hook those and
// the timers. It returns the firings, and a last reading, as operations.
func (rs *reacted) agree(t *testing.T, r *rig, id string, began time.Time, history []porcupine.Operation) []porcupine.Operation {
	t.Helper()
	ctx := testContext(t)
	brokertest.Await(t, "every timer to fire", func() bool {
		rec, err := r.record(ctx, id)
		return errors.Is(err, workflow.ErrEntityNotFound) || err == nil && !slices.ContainsFunc(rec.Timers, func(t workflow.Timer) bool { return !t.At.IsZero() })
	})
	key := newMission().KVKey(id)
	subject := "$KV.MISSIONS." + key
	bucket, journal := &revisionReader{r: r, stream: "KV_MISSIONS", subject: subject}, &revisionReader{r: r, stream: missionsJournal.Name, subject: subject}
	var all []happened
	var told map[uint64]workflow.Reaction
	var trail workflow.Trail
	complaint := ""
	defer func() {
		if t.Failed() && complaint != "" {
			t.Log(complaint)
		}
	}()
	brokertest.Await(t, "journal, history and hook to have what the bucket has", func() bool {
		brief, cancel := context.WithTimeout(context.Background(), 5*time.Second) // a request may be lost while a leader is elected
		defer cancel()
		var read error
		trail, read = r.Trail(brief, survey, id)
		if err := errors.Join(bucket.more(brief), journal.more(brief), read); err != nil {
			complaint = err.Error()
			return false
		}
		all, told = what(t, bucket.msgs), rs.of(key)
		complaint = compare(bucket.msgs, journal.msgs, all, told, history)
		return complaint == ""
	})
	var want []workflow.TransitionEvent
	for _, h := range all {
		if h.event.To != "" {
			want = append(want, h.event)
		}
	}
	got := slices.Clone(trail.Events)
	for i := range got {
		got[i].Triggered, got[i].Note = "", ""
	}
	if trail.Truncated || !slices.Equal(got, want) {
		t.Errorf("%s: the history is %+v, truncated: %v, and the bucket has %+v", id, got, trail.Truncated, want)
	}
	ops := firings(t, began, history, all, told)
	var call time.Duration
	var last answered
	brokertest.Await(t, "a last reading", func() (ok bool) {
		call = time.Since(began)
		last, ok = asked{verb: "read"}.do(ctx, r, id)
		return ok
	})
	t.Logf("%s: %d revisions, %d changes of phase, %d timers have fired", id, len(all), len(want), len(ops))
	return append(ops, porcupine.Operation{ClientId: 5000, Input: asked{verb: "read"}, Call: call.Nanoseconds(), Output: last, Return: time.Since(began).Nanoseconds()})
}

// revisionReader reads the revisions of a key from a stream.
type revisionReader struct {
	r               *rig
	stream, subject string
	msgs            []*jetstream.RawStreamMsg
}

// more reads the new ones.
func (r *revisionReader) more(ctx context.Context) error {
	s, err := r.r.js.Stream(ctx, r.stream)
	if err != nil {
		return err
	}
	for next := uint64(1); ; {
		if n := len(r.msgs); n > 0 {
			next = r.msgs[n-1].Sequence + 1
		}
		msg, err := s.GetMsg(ctx, next, jetstream.WithGetMsgSubject(r.subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		r.msgs = append(r.msgs, msg)
	}
}

// what says what each revision did, from the records alone.
func what(t *testing.T, msgs []*jetstream.RawStreamMsg) []happened {
	t.Helper()
	var all []happened
	var before Mission
	for _, msg := range msgs {
		h := happened{msg: msg, event: workflow.TransitionEvent{From: before.State, At: msg.Time, Revision: msg.Sequence}}
		var m Mission
		switch {
		case len(msg.Data) == 0:
			h.event.To = workflow.PhaseDeleted
		case json.Unmarshal(msg.Data, &m) != nil:
			t.Fatalf("revision %d is %q", msg.Sequence, msg.Data)
		case m.State != before.State:
			h.event.To = m.State
		default:
			h.fired = m == before
		}
		all, before = append(all, h), m
	}
	return all
}

// compare returns what journal, hook and the answers to clients lack or have too much,
// "" for nothing.
func compare(bucket, journal []*jetstream.RawStreamMsg, all []happened, told map[uint64]workflow.Reaction, history []porcupine.Operation) string {
	written := make(map[uint64]happened)
	for i, h := range all {
		if i >= len(journal) {
			return fmt.Sprintf("the journal has %d revisions and the bucket %d", len(journal), len(bucket))
		}
		mine, theirs := bucket[i], journal[i]
		// The server takes the headers of the compare-and-set out of a mirror's messages.
		if mine.Sequence != theirs.Sequence || !mine.Time.Equal(theirs.Time) || !bytes.Equal(mine.Data, theirs.Data) {
			return fmt.Sprintf("the journal has %+v and the bucket %+v", theirs, mine)
		}
		seq := mine.Sequence
		written[seq] = h
		re, has := told[seq]
		if has != h.told() {
			return fmt.Sprintf("revision %d, %+v: the hook was told of it: %v", seq, h, has)
		}
		if has && (re.Gap || h.fired && re.Timer == "" || !h.fired && (re.From != h.event.From || re.To != h.event.To) || !re.At.Equal(mine.Time)) {
			return fmt.Sprintf("revision %d, %+v: the hook was told %+v", seq, h, re)
		}
	}
	if len(journal) > len(bucket) {
		return fmt.Sprintf("the journal has %d revisions and the bucket %d", len(journal), len(bucket))
	}
	for _, op := range history {
		in, _ := op.Input.(asked)
		out, _ := op.Output.(answered)
		if out.revision == 0 {
			continue
		}
		h, ok := written[out.revision]
		want := map[string]string{"create": "planning", "transition": in.to, "delete": workflow.PhaseDeleted}[in.verb]
		if !ok || h.event.To != want || h.fired {
			return fmt.Sprintf("%v was acknowledged as revision %d, and the bucket has %+v", in, out.revision, h)
		}
	}
	return ""
}

// firings makes an operation of each timer that has fired. It happened about when the
// server stored it, and before an operation with a later revision was acknowledged.
func firings(t *testing.T, began time.Time, history []porcupine.Operation, all []happened, told map[uint64]workflow.Reaction) []porcupine.Operation {
	t.Helper()
	var ops []porcupine.Operation
	for _, h := range all {
		if !h.fired {
			continue
		}
		re := told[h.msg.Sequence]
		i := slices.Index([]string{"a", "b"}, re.Timer)
		if i < 0 {
			t.Fatalf("a timer %q has fired", re.Timer)
		}
		op := porcupine.Operation{
			ClientId: 2000 + len(ops), Input: asked{verb: "fire", timer: i, at: h.msg.Time.UnixMilli()}, Output: answered{is: "done", revision: h.msg.Sequence},
			Call: h.msg.Time.Sub(began).Nanoseconds() - (100 * time.Millisecond).Nanoseconds(), Return: time.Hour.Nanoseconds(),
		}
		for _, other := range history {
			if out, ok := other.Output.(answered); ok && out.is == "done" && out.revision > h.msg.Sequence {
				op.Return = max(op.Call, min(op.Return, other.Return))
			}
		}
		ops = append(ops, op)
	}
	return ops
}

// TestModelRefusesWrongTimers shows that the check of [TestOneEntityIsLinearizable] sees
// a timer that fires twice, too early, or never.
func TestModelRefusesWrongTimers(t *testing.T) {
	done := func(revision uint64) answered { return answered{is: "done", revision: revision} }
	begin := []porcupine.Operation{{Input: asked{verb: "create"}, Output: done(1)}, {Input: asked{verb: "set", at: 100}, Output: done(2)}}
	spent := answered{is: "done", on: stored{phase: "planning", count: 1}, decided: true, timed: true}
	spent.on.timers[0] = pending{set: true, fired: 1}
	fire := func(at int64, revision uint64) porcupine.Operation {
		return porcupine.Operation{Input: asked{verb: "fire", at: at}, Output: done(revision)}
	}
	read := porcupine.Operation{Input: asked{verb: "read"}, Output: spent}
	for name, c := range map[string]struct {
		ops []porcupine.Operation
		ok  bool
	}{
		"as it should": {[]porcupine.Operation{fire(100, 3), read}, true},
		"twice":        {[]porcupine.Operation{fire(100, 3), fire(101, 4)}, false},
		"too early":    {[]porcupine.Operation{fire(99, 3)}, false},
		"never":        {[]porcupine.Operation{read}, false},
		"out of order": {[]porcupine.Operation{fire(100, 2), read}, false},
	} {
		ops := slices.Concat(begin, c.ops)
		for i := range ops {
			ops[i].Call, ops[i].Return = int64(2*i), int64(2*i+1)
		}
		if got := porcupine.CheckOperations(entityModel.ToModel(), ops); got != c.ok {
			t.Errorf("%s: %v", name, got)
		}
	}
}
