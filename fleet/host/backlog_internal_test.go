package host

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// The backlogs of many workers are those that their consumers have, whether they are
// listed or asked for one by one. A worker without a consumer has none.
func TestBacklogsOfManyWorkers(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{
		{Name: "MANY", Subjects: []string{"many.>"}}, {Name: "FEW", Subjects: []string{"few.>"}},
	}})
	h := &Host{js: b.JetStream(), cfg: Config{Name: "HOST"}}
	var records []*Record
	add := func(stream, topic, id string) {
		records = append(records, &Record{ID: id, Stream: stream})
		_, err := h.js.CreateConsumer(t.Context(), stream, jetstream.ConsumerConfig{
			Durable:       "HOST_w-" + id,
			FilterSubject: topic,
			AckPolicy:     jetstream.AckExplicitPolicy,
			MemoryStorage: true,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := make(map[string]int)
	publish := func(topic, id string, n int) {
		want["HOST_w-"+id] = n
		for range n {
			if _, err := h.js.Publish(t.Context(), topic, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range listFrom + 1 {
		add("MANY", fmt.Sprint("many.", i), fmt.Sprint("m", i))
	}
	add("FEW", "few.0", "f")
	publish("many.0", "m0", 1)
	publish(fmt.Sprint("many.", listFrom), fmt.Sprint("m", listFrom), 3)
	publish("few.0", "f", 2)
	records = append(records, &Record{ID: "gone", Stream: "MANY"}, &Record{ID: "lost", Stream: "NONE"})
	brokertest.Await(t, "the consumers know of all messages", func() bool {
		got, err := h.pendingOf(t.Context(), records)
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(records, func(rec *Record) bool { return got[rec.slot()] != want[rec.slot()] })
	})
}

// A host rests after an assignment for four times as long as that took, and never long.
func TestRestAfterAssignments(t *testing.T) {
	began := time.Now()
	for took, rest := range map[time.Duration]time.Duration{0: 0, time.Millisecond: 4 * time.Millisecond, time.Hour: 100 * time.Millisecond} {
		if got := nextAssignment(began, began.Add(took)).Sub(began.Add(took)); got != rest {
			t.Errorf("after %v: %v, want %v", took, got, rest)
		}
	}
}
