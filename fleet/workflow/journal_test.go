package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

var missionsJournal = workflow.Journal("MISSIONS")

// journaled returns a rig whose bucket has a journal.
func journaled(t testing.TB, opts ...workflow.RegisterOption) *rig {
	t.Helper()
	b := brokertest.Server(t, broker.Config{Buckets: buckets(), Streams: []jetstream.StreamConfig{missionsJournal}})
	return rigOn(t, b, append(opts, workflow.WithJournal())...)
}

// TestHistoryWithoutACap writes an entity more often than its bucket remembers.
func TestHistoryWithoutACap(t *testing.T) {
	r := journaled(t)
	ctx := testContext(t)
	r.create(t, "m1", "flying")
	for i := range 400 {
		must(t, r.missions.Transition(ctx, "m1", []string{"capturing", "flying"}[i%2], "rule", fmt.Sprint(i)))
	}
	trail, err := r.Trail(ctx, survey, "m1")
	must(t, err)
	if trail.Truncated || len(trail.Events) != 401 {
		t.Fatalf("the trail has %d events, truncated: %v; want 401", len(trail.Events), trail.Truncated)
	}
	for i, e := range trail.Events[1:] {
		if e.Note != fmt.Sprint(i) || e.From != trail.Events[i].To || e.At.Before(trail.Events[i].At) {
			t.Fatalf("event %d is %+v after %+v", i+1, e, trail.Events[i])
		}
	}
	if _, err := r.missions.History(ctx, "m2"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("history of no entity: %v", err)
	}
}

// TestWritesWaitForTheJournal has a journal that copies nothing at first. The bucket keeps 64 writes
// of an entity: the write that would push a change of phase out waits, and is refused when its time
// is over. When the journal has the change, updates are free again, and none of them costs an event.
func TestWritesWaitForTheJournal(t *testing.T) {
	ctx := testContext(t)
	r := rigOn(t, brokertest.Embedded(t, broker.Config{Buckets: buckets()}), workflow.WithJournal())
	lagging := missionsJournal
	lagging.Mirror = &jetstream.StreamSource{Name: "KV_MISSIONS", FilterSubject: "$KV.MISSIONS.none"}
	_, err := r.js.CreateStream(ctx, lagging)
	must(t, err)
	r.create(t, "m1", "flying")
	update := func(ctx context.Context) error {
		return r.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil })
	}
	for range 63 {
		must(t, update(ctx))
	}
	before, err := r.record(ctx, "m1")
	must(t, err)
	waits := func(n int) func() bool { return func() bool { return r.Views()[0].Waiting == n } }
	waiting, giveUp := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- update(waiting) }()
	brokertest.Await(t, "a write to wait", waits(1))
	giveUp()
	if err := <-ended; err == nil || !waits(0)() {
		t.Errorf("the write that was given up: %v", err)
	}
	for name, write := range map[string]func(context.Context) error{
		"an update":    update,
		"a transition": func(ctx context.Context) error { return r.missions.Transition(ctx, "m1", "landing", "rule", "") },
		"a deletion":   func(ctx context.Context) error { return r.missions.Delete(ctx, "m1") },
	} {
		short := expiring{ctx, make(chan struct{})}
		go func() { ended <- write(short) }()
		brokertest.Await(t, name+" to wait", waits(1))
		close(short.over)
		if err := <-ended; !errors.Is(err, workflow.ErrJournal) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s that would push a change out ends with %v", name, err)
		}
	}
	if now, err := r.record(ctx, "m1"); err != nil || now.Revision != before.Revision {
		t.Errorf("it is at revision %d after the refusals, %v; before at %d", now.Revision, err, before.Revision)
	}
	must(t, r.js.DeleteStream(ctx, lagging.Name))
	if err := update(ctx); !errors.Is(err, workflow.ErrJournal) {
		t.Errorf("without a journal: %v", err)
	}
	brokertest.Await(t, "the journal's successor", func() bool { // the server removes files a moment later
		_, err := r.js.CreateStream(ctx, missionsJournal)
		return err == nil
	})
	for range 100 {
		must(t, update(ctx))
	}
	r.move(t, "m1", "landing")
	r.copied(t)
	journal, err := r.js.Stream(ctx, missionsJournal.Name)
	must(t, err)
	for seq := uint64(2); seq < 100; seq++ { // as if it had lagged: updates may be missing
		must(t, journal.DeleteMsg(ctx, seq))
	}
	trail, err := r.Trail(ctx, survey, "m1")
	must(t, err)
	if trail.Truncated || len(trail.Events) != 2 || trail.Events[1].From != "flying" || trail.Events[1].To != "landing" {
		t.Errorf("the trail is %+v", trail)
	}
}

// TestHistoryShowsWhatTheJournalMissed removes some of the journal's messages, as a
// bucket does that was written faster than its journal could copy.
func TestHistoryShowsWhatTheJournalMissed(t *testing.T) {
	r := journaled(t)
	ctx := testContext(t)
	r.create(t, "m1", "flying")
	for i := range 100 {
		must(t, r.missions.Transition(ctx, "m1", []string{"capturing", "flying"}[i%2], "rule", fmt.Sprint(i)))
		if i%32 == 0 {
			r.copied(t)
		}
	}
	r.copied(t)
	journal, err := r.js.Stream(ctx, missionsJournal.Name)
	must(t, err)
	for seq := uint64(11); seq <= 13; seq++ {
		must(t, journal.DeleteMsg(ctx, seq))
	}
	trail, err := r.Trail(ctx, survey, "m1")
	must(t, err)
	if !trail.Truncated || len(trail.Events) != 98 {
		t.Fatalf("the trail has %d events, truncated: %v; want 98, true", len(trail.Events), trail.Truncated)
	}
	for i, e := range trail.Events[1:] {
		if from := []string{"flying", "capturing"}[i%2]; i < 9 && e.From != from {
			t.Errorf("event %d is from %s, want %s", i+1, e.From, from)
		}
	}
}

func TestJournalThatCannotBeUsed(t *testing.T) {
	ctx := testContext(t)
	r := rigOn(t, brokertest.Server(t, broker.Config{Buckets: buckets()}), workflow.WithJournal())
	r.create(t, "m1", "flying")
	if _, err := r.missions.History(ctx, "m1"); !errors.Is(err, workflow.ErrJournal) {
		t.Errorf("history without a journal: %v", err)
	}
	r.move(t, "m1", "landing") // writes need no journal
}

// copied waits until the journal has the bucket's last write.
func (r *rig) copied(t testing.TB) {
	t.Helper()
	must(t, r.awaitCopies(testContext(t)))
}

// awaitCopies is copied outside the goroutine of the test.
func (r *rig) awaitCopies(ctx context.Context) error {
	bucket, err := r.js.Stream(ctx, "KV_MISSIONS")
	for err == nil {
		var journal jetstream.Stream
		if journal, err = r.js.Stream(ctx, missionsJournal.Name); err == nil && journal.CachedInfo().State.LastSeq >= bucket.CachedInfo().State.LastSeq {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the journal: %w", err)
}
