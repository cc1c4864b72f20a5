package workflow

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// hot is an entity that many update.
type hot struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
	Tags  []string
}

func (h *hot) EntityID() string       { return h.ID }
func (h *hot) Workflow() string       { return "notes" }
func (h *hot) Phase() string          { return h.State }
func (h *hot) IsTerminal() bool       { return false }
func (h *hot) KVBucket() string       { return "NOTES" }
func (h *hot) KVKey(id string) string { return id }
func (h *hot) ParentEntityID() string { return "" }

// hotNotes is a Manager with one entity, "x", and the turn at it taken.
type hotNotes struct {
	*Manager
	r       *registration
	ctx     context.Context
	updates sync.WaitGroup
	inLine  int
}

func newHotNotes(t *testing.T) *hotNotes {
	t.Helper()
	b := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("NOTES")}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	h := &hotNotes{Manager: NewManager(b.JetStream(), brokertest.Quiet()), ctx: ctx}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := h.Register("notes", func() Participant { return new(hot) }, Transitions{"a": {"b"}, "b": {}}); err != nil {
		t.Fatal(err)
	}
	h.r, _ = h.registration("notes")
	h.r.bucket.joinTime = time.Minute // the machine may be busy
	if err := h.Create(ctx, &hot{ID: "x", State: "a"}); err != nil {
		t.Fatal(err)
	}
	if !h.r.bucket.queue.try("x") {
		t.Fatal("the turn at a key is taken")
	}
	return h
}

// update begins an update in the background, and waits until it is in line.
func (h *hotNotes) update(t *testing.T, ctx context.Context, mutator func(*hot) error, ended func(error), opts ...WriteOption) {
	t.Helper()
	h.inLine++
	h.updates.Go(func() {
		ended(h.Update(ctx, "notes", "x", func(p Participant) error { return mutator(p.(*hot)) }, opts...))
	})
	brokertest.Await(t, "the update to be in line", func() bool {
		q := &h.r.bucket.queue
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.keys["x"]) == h.inLine
	})
}

// begin gives the turn to the first in line and waits for all.
func (h *hotNotes) begin() {
	h.r.bucket.queue.leave("x")
	h.updates.Wait()
}

func (h *hotNotes) last(t *testing.T) (*entry, *hot) {
	t.Helper()
	e, err := h.r.bucket.last(h.ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.r.decode(e)
	if err != nil {
		t.Fatal(err)
	}
	return e, p.(*hot)
}

func tag(text string) func(*hot) error {
	return func(n *hot) error {
		n.Tags = append(slices.Clone(n.Tags), text)
		return nil
	}
}

func well(t *testing.T) func(error) {
	return func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestUpdatesThatWaitBecomeOneWrite lets fifty updates wait: they are one write, in
// their order, with the id of each.
func TestUpdatesThatWaitBecomeOneWrite(t *testing.T) {
	h := newHotNotes(t)
	before, _ := h.last(t)
	for i := range 50 {
		h.update(t, h.ctx, tag(fmt.Sprint(i)), well(t))
	}
	h.begin()
	e, n := h.last(t)
	if on, _ := e.predecessor(); on != before.revision {
		t.Errorf("there are other writes between %d and %d", before.revision, e.revision)
	}
	for i, text := range n.Tags {
		if text != fmt.Sprint(i) {
			t.Errorf("the updates happened in the order %v", n.Tags)
			break
		}
	}
	ops := append(strings.Split(e.get(headerOps), ","), e.get(headerOp))
	slices.Sort(ops)
	if len(n.Tags) != 50 || len(slices.Compact(ops)) != 50 {
		t.Errorf("%d updates with %d ids, want 50", len(n.Tags), len(slices.Compact(ops)))
	}
	// The view has it, without a question to the server.
	if known, ok := h.r.known("x"); !ok || known.revision != e.revision || string(known.data) != string(e.data) {
		t.Errorf("the view has %+v", known)
	}
}

// TestWritesThatNameARevisionOrMoveAreAlone lets writes of other kinds wait between
// updates: each is a write of its own.
func TestWritesThatNameARevisionOrMoveAreAlone(t *testing.T) {
	h := newHotNotes(t)
	var revision uint64
	before, _ := h.last(t)
	h.update(t, h.ctx, tag("1"), well(t))
	h.update(t, h.ctx, tag("2"), well(t), WithRevision(&revision))
	h.update(t, h.ctx, tag("3"), func(err error) {
		if !errors.Is(err, ErrRevisionMismatch) {
			t.Error(err)
		}
	}, IfMatch(before.revision))
	h.update(t, h.ctx, tag("4"), well(t), SetTimer(Timer{Name: "t", At: time.Unix(1<<33, 0)}))
	h.update(t, h.ctx, tag("5"), well(t))
	h.update(t, h.ctx, tag("6"), well(t))
	h.begin()
	e, n := h.last(t)
	if strings.Join(n.Tags, "") != "12456" || e.revision != before.revision+4 || revision != before.revision+2 || len(readTimers(e.timers())) != 1 {
		t.Errorf("%v at %d after %d, with %d and %s", n.Tags, e.revision, before.revision, revision, e.timers())
	}
}

// TestKeysOfUpdatesThatWaitedTogether gives each of many updates a key: each can be
// asked for afterwards, and each happened once. Two of them have the same key.
func TestKeysOfUpdatesThatWaitedTogether(t *testing.T) {
	h := newHotNotes(t)
	const many = 2*maxKeys + 3
	h.update(t, h.ctx, tag("twice"), well(t), WithKey("twice"))
	for i := range many {
		h.update(t, h.ctx, tag(fmt.Sprint(i)), well(t), WithKey(fmt.Sprint(i)))
		h.update(t, h.ctx, tag("-"), well(t))
	}
	h.update(t, h.ctx, tag("twice"), well(t), WithKey("twice"))
	h.begin()
	_, n := h.last(t)
	if len(n.Tags) != 2*many+1 {
		t.Errorf("%d updates landed, want %d: %v", len(n.Tags), 2*many+1, n.Tags)
	}
	for i := range many {
		if _, landed, err := h.Landed(h.ctx, "notes", "x", fmt.Sprint(i)); !landed || err != nil {
			t.Errorf("the update with key %d: %v, %v", i, landed, err)
		}
		err := h.Update(h.ctx, "notes", "x", func(Participant) error { return errors.New("it runs again") }, WithKey(fmt.Sprint(i)))
		if err != nil {
			t.Errorf("the update with key %d again: %v", i, err)
		}
	}
	if _, landed, err := h.Landed(h.ctx, "notes", "x", "no"); landed || err != nil {
		t.Errorf("a key that was never used: %v, %v", landed, err)
	}
}

// TestAnUpdateThatFailsHarmsNoOtherInItsWrite lets updates wait together of which some
// fail in every way: the others happen, once, and each caller gets its own error.
func TestAnUpdateThatFailsHarmsNoOtherInItsWrite(t *testing.T) {
	h := newHotNotes(t)
	h.r.bucket.joinTime = joinTime // one of them waits for another
	why := errors.New("no")
	fails := func(want error) func(error) {
		return func(err error) {
			if !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
	}
	h.update(t, h.ctx, tag("1"), well(t))
	h.update(t, h.ctx, func(n *hot) error { n.Tags = []string{"half"}; return why }, fails(why))
	h.update(t, h.ctx, func(n *hot) error { n.ID = "y"; return nil }, fails(ErrImmutableField))
	h.update(t, h.ctx, func(n *hot) error { n.State = "b"; return nil }, fails(ErrImmutableField))
	h.update(t, h.ctx, func(n *hot) error { n.Tags = []string{strings.Repeat("x", 5<<20)}; return nil }, func(err error) {
		if err == nil {
			t.Error("a record of 5 MB was stored")
		}
	})
	h.update(t, h.ctx, tag("2"), well(t))
	// It waits for an update that waits behind it.
	behind := make(chan struct{})
	h.update(t, h.ctx, func(n *hot) error { <-behind; return tag("3")(n) }, well(t))
	panicked := make(chan any, 1)
	h.inLine++
	h.updates.Go(func() {
		defer func() { panicked <- recover() }()
		_ = h.Update(h.ctx, "notes", "x", func(Participant) error { panic("in a mutator") })
	})
	h.inLine++
	h.updates.Go(func() {
		_ = h.Update(h.ctx, "notes", "x", func(Participant) error { runtime.Goexit(); return nil })
	})
	brokertest.Await(t, "those to be in line", func() bool {
		q := &h.r.bucket.queue
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.keys["x"]) == h.inLine
	})
	h.r.bucket.queue.leave("x")
	brokertest.Await(t, "the first update to be stored, beside one that waits", func() bool {
		_, n := h.last(t)
		return slices.Contains(n.Tags, "1")
	})
	close(behind)
	h.updates.Wait()
	if got := <-panicked; got != "in a mutator" {
		t.Errorf("the caller of the mutator that panics recovers %v", got)
	}
	_, n := h.last(t)
	slices.Sort(n.Tags)
	if strings.Join(n.Tags, "") != "123" {
		t.Errorf("stored are %v", n.Tags)
	}
}

// TestAnUpdateThatLeavesBeforeItsTurnWritesNothing ends the contexts of updates in line.
func TestAnUpdateThatLeavesBeforeItsTurnWritesNothing(t *testing.T) {
	h := newHotNotes(t)
	h.update(t, h.ctx, tag("1"), well(t))
	own, cancel := context.WithCancel(h.ctx)
	left := make(chan error, 1)
	h.update(t, own, tag("2"), func(err error) { left <- err })
	h.update(t, h.ctx, tag("3"), well(t))
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	h.begin()
	if _, n := h.last(t); strings.Join(n.Tags, "") != "13" {
		t.Errorf("stored are %v", n.Tags)
	}
}
