package workflow

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// FuzzCompact writes the same decision in both forms, and reads the same from either.
func FuzzCompact(f *testing.F) {
	f.Add("op.1", "a|b", "phase ü / 100%", "2", "from|", true, false, int64(17))
	f.Add("op.1", "-", "a", "0", "", false, false, int64(-1))
	f.Add("op.1", "%41 b", "a", "", "b", true, true, int64(0))
	f.Fuzz(func(t *testing.T, op, workflow, phase, version, from string, moved, deletion bool, since int64) {
		if !validKey(op) || version != "" && !validKey(version) || workflow == "" || phase == "" {
			return // this package makes no such id and version, and takes no such names
		}
		r := &registration{workflow: workflow, bucket: &bucket{}}
		d := decision{data: []byte("{}"), phase: phase, version: version}
		d.change = change{op: op, moved: moved, from: from, source: TransitionSourceRule, since: time.Unix(0, since)}
		if deletion {
			d.data = nil
		}
		spread := &entry{header: r.message("x", d, 7).Header}
		r.bucket.traits.compact.Store(true)
		compact := &entry{header: r.message("x", d, 7).Header}
		for _, name := range []string{headerOp, headerWorkflow, headerOn, headerVersion, headerPhase, headerFrom, headerSource, headerSince, headerTimers} {
			if got, want := compact.get(name), spread.get(name); got != want {
				t.Errorf("%s: %q, and %q in a header of its own", name, got, want)
			}
		}
		if n := len(compact.header); !deletion && n != 2 {
			t.Errorf("%d headers: %v", n, compact.header)
		}
	})
}

// TestBothFormsOfHeadersSideBySide marks a bucket while it is used. A program of an
// earlier release, which writes every header by itself, goes on; every reader, with and
// without a view, from the start and from before, reads the same.
func TestBothFormsOfHeadersSideBySide(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("NOTES")}})
	js := b.JetStream()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	open := func(opts ...RegisterOption) *Manager {
		m := NewManager(js, brokertest.Quiet())
		t.Cleanup(func() { _ = m.Close() })
		if err := m.Register("notes", func() Participant { return new(hot) }, Transitions{"a": {"b"}, "b": {"a"}}, opts...); err != nil {
			t.Fatal(err)
		}
		return m
	}
	viewing, blind := open(), open(WithoutView())
	steps := 0
	step := func(m *Manager) {
		t.Helper()
		to := []string{"b", "a"}[steps%2]
		if err := m.Transition(ctx, "notes", "x", to, TransitionSourceRule, fmt.Sprint(steps)); err != nil {
			t.Fatal(err)
		}
		if err := m.Update(ctx, "notes", "x", func(p Participant) error { return tag(fmt.Sprint(steps))(p.(*hot)) }); err != nil {
			t.Fatal(err)
		}
		steps++
	}
	older := func() { // as the release before writes
		t.Helper()
		r, _ := viewing.registration("notes")
		e, err := r.bucket.last(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		p, err := r.decode(e)
		if err != nil {
			t.Fatal(err)
		}
		from, to := p.Phase(), []string{"b", "a"}[steps%2]
		d := decision{data: r.rephase(e.data, to), phase: to, version: "0"}
		d.change = change{op: fmt.Sprint("older.", steps), moved: true, from: from, source: TransitionSourceRule, note: fmt.Sprint(steps)}
		msg := &nats.Msg{Subject: "$KV.NOTES.x", Header: r.spread(d, fmt.Sprint(e.revision)), Data: d.data}
		msg.Header[headerNote] = []string{fmt.Sprint(steps)}
		if _, err := js.PublishMsg(ctx, msg); err != nil {
			t.Fatal(err)
		}
		steps++
	}
	if err := viewing.Create(ctx, &hot{ID: "x", State: "a"}); err != nil {
		t.Fatal(err)
	}
	step(viewing)
	step(blind)
	older()
	if err := CompactHeaders(ctx, js, "NOTES"); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*Manager{viewing, blind} {
		r, _ := m.registration("notes")
		brokertest.Await(t, "the mark to be found", func() bool {
			r.bucket.traits.at.CompareAndSwap(r.bucket.traits.at.Load(), 1) // as if it were long ago
			r.bucket.look(ctx)
			return r.bucket.traits.compact.Load()
		})
	}
	for range 3 {
		step(viewing)
		step(blind)
		older()
	}
	r, _ := viewing.registration("notes")
	written, err := r.bucket.next(ctx, "x", 7) // the first after the mark
	if err != nil || len(written.header) != 3 || written.get(headerOn) != "6" || written.note() != "3" {
		t.Errorf("the first write after the mark: %+v, %v", written, err)
	}
	for _, m := range []*Manager{viewing, blind, open(), open(WithoutView())} {
		trail, err := m.Trail(ctx, "notes", "x")
		if err != nil || trail.Truncated || len(trail.Events) != steps+1 {
			t.Fatalf("%+v, %v", trail, err)
		}
		for i, e := range trail.Events[1:] {
			want := TransitionEvent{From: []string{"a", "b"}[i%2], To: []string{"b", "a"}[i%2], At: e.At, Triggered: TransitionSourceRule, Note: fmt.Sprint(i)}
			if e != want {
				t.Errorf("%+v, want %+v", e, want)
			}
		}
	}
	page, err := viewing.Query(ctx, "notes", ListOptions{Fresh: true})
	found, failed := viewing.Find(ctx, "notes", "x")
	if err != nil || failed != nil || len(page.Records) != 1 {
		t.Fatal(page, err, found, failed)
	}
	rec := page.Records[0]
	if got := rec.Participant.(*hot); !slices.Equal(got.Tags, found.Participant.(*hot).Tags) || rec.Revision != found.Revision || !rec.Since.Equal(found.Since) || !rec.UpdatedAt.Equal(found.UpdatedAt) {
		t.Errorf("the view has %+v %+v, and the server %+v", rec, got, found)
	}
	// A deletion has an author, and its hook knows the workflow.
	if err := blind.Delete(ctx, "notes", "x"); err != nil {
		t.Fatal(err)
	}
	gone, err := r.bucket.last(ctx, "x")
	if err != nil || !gone.deleted() || gone.get(headerWorkflow) != "notes" || gone.get(headerFrom) == "" {
		t.Errorf("the deletion is %+v, %v", gone, err)
	}
	if h := (&Hook{On: []string{PhaseDeleted}}); !h.wants(r, gone) || h.wants(r, written) || !(&Hook{On: []string{written.get(headerPhase)}}).wants(r, written) {
		t.Error("hooks read another form")
	}
}
