package presence

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// The platform is asked about many processes at once, so a slow answer about one does not hold up the
// tombstones of the others. It is asked once, also when the journal takes no write at first.
func TestThePlatformIsAskedSideBySide(t *testing.T) {
	const lost = maxAsked - 1 // and one other event
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	cfg := mustDefaults(t, Config{Logger: brokertest.Quiet()})
	journal, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name:     cfg.Journal,
		Subjects: []string{cfg.Prefix + ".event.>"},
		MaxMsgs:  lost,
		Discard:  jetstream.DiscardNew,
	})
	if err != nil {
		t.Fatal(err)
	}
	w := newJournalWriter(js, cfg, maxLostEvents, nil)
	w.add(Event{Kind: "unit", Service: "s", Process: "s.full"})
	var asked sync.WaitGroup // answers when all are asked
	asked.Add(lost)
	for i := range lost {
		e := Event{Kind: "lost", Service: "s", Process: fmt.Sprint("s.", i)}
		w.addCompleted(e, func(ctx context.Context, e Event) Event {
			asked.Done() // panics for a second question
			asked.Wait()
			e.Cause = "the platform says so"
			return e
		})
	}
	done := make(chan error, 1)
	go func() { done <- w.flush(t.Context(), Event{}) }()
	select {
	case err := <-done:
		if err == nil {
			t.Fatal("a full journal takes all")
		}
	case <-time.After(time.Minute):
		t.Fatal("the platform is asked about one process at a time")
	}
	if err := journal.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.flush(t.Context(), Event{}); err != nil {
		t.Fatal(err)
	}
	f := &Fleet{js: js, cfg: cfg}
	list, _, err := f.Events(t.Context(), EventQuery{Kinds: []string{"lost"}, Contains: "the platform says so", Limit: lost})
	if err != nil || len(list) != 1 {
		t.Errorf("%d tombstones of the second attempt have the platform's word, %v", len(list), err)
	}
}

// A process whose end is noted while the platform is asked about it has no second tombstone.
func TestOneTombstoneForAProcess(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	cfg := mustDefaults(t, Config{Logger: brokertest.Quiet()})
	w, other := newJournalWriter(js, cfg, maxLostEvents, nil), newJournalWriter(js, cfg, maxLostEvents, nil)
	lost := Event{Kind: "lost", Service: "s", Process: "s.slow", seen: time.Now()}
	w.addCompleted(lost, func(ctx context.Context, e Event) Event {
		other.add(e)
		if err := other.flush(ctx, Event{}); err != nil {
			t.Error(err)
		}
		return e
	})
	if err := w.flush(t.Context(), Event{}); err != nil {
		t.Fatal(err)
	}
	f := &Fleet{js: js, cfg: cfg}
	list, _, err := f.Events(t.Context(), EventQuery{Kinds: []string{"lost"}, Limit: 10})
	if err != nil || len(list) != 1 {
		t.Errorf("%d tombstones, %v", len(list), err)
	}
}
