package host

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// A worker that reads many values gets all of them at once, and then asks the server no
// more: neither for a value nor for one that does not exist.
func TestColdValuesAreReadTogether(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "STATE", Subjects: []string{"s.>"}, MaxMsgsPerSubject: 1}}})
	js := b.JetStream()
	put := func(key, value string) {
		t.Helper()
		m := nats.NewMsg("s.w." + key)
		if m.Data = []byte(value); value == "" {
			m.Header.Set(headerOp, "DEL")
		}
		if _, err := js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	const n = 100
	for i := range n {
		put(fmt.Sprint(i), fmt.Sprint("value ", i))
	}
	put("deleted", "")
	stream, err := js.Stream(t.Context(), "STATE")
	if err != nil {
		t.Fatal(err)
	}
	s := &states{nc: b.Conn(), js: js, stream: stream, prefix: "s."}
	c := newCells(s, "slot", 0)
	want := func(key, value string) {
		t.Helper()
		got, is, err := c.get(t.Context(), "s.w.", key)
		if err != nil || string(got) != value || is != (value != "") {
			t.Errorf("%s is %q, %v, %v; want %q", key, got, is, err, value)
		}
	}
	for i := range readOnes + 1 {
		want(fmt.Sprint(i), fmt.Sprint("value ", i))
	}
	// What only the server knows from here on shows that the server is not asked.
	for i := range n {
		put(fmt.Sprint(i), "of another writer")
	}
	put("new", "of another writer")
	for i := range n {
		want(fmt.Sprint(i), fmt.Sprint("value ", i))
	}
	want("deleted", "")
	want("missing", "")
	want("new", "")

	// When values had to make room, the server is asked again.
	c.mu.Lock()
	c.set("s.w.large", &cell{data: make([]byte, maxCells), clean: true})
	c.mu.Unlock()
	want("new", "of another writer")
	want("7", "of another writer")
}

// A worker with more values than the host keeps reads them one by one.
func TestManyValuesAreReadOneByOne(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "STATE", Subjects: []string{"s.>"}, MaxMsgsPerSubject: 1}}})
	js := b.JetStream()
	for i := range maxWhole + 1 {
		if _, err := js.PublishAsync(fmt.Sprint("s.w.", i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
	stream, err := js.Stream(t.Context(), "STATE")
	if err != nil {
		t.Fatal(err)
	}
	c := newCells(&states{nc: b.Conn(), js: js, stream: stream, prefix: "s."}, "slot", 0)
	for i := range 3 * readOnes {
		if v, is, err := c.get(t.Context(), "s.w.", fmt.Sprint(i)); err != nil || !is || string(v) != "x" {
			t.Fatalf("%d is %q, %v, %v", i, v, is, err)
		}
	}
	if len(c.cells) != 3*readOnes || c.whole["s.w."] {
		t.Errorf("%d values are here, whole: %v", len(c.cells), c.whole)
	}
}

// The values of a replica that has not seen the newest claim of the slot are not taken: it
// may lack what was written before the claim.
func TestValuesOfAnOldReplicaAreNotTaken(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "STATE", Subjects: []string{"s.>"}, MaxMsgsPerSubject: 1}}})
	js := b.JetStream()
	put := func(subject, value string) uint64 {
		t.Helper()
		ack, err := js.Publish(t.Context(), subject, []byte(value))
		if err != nil {
			t.Fatal(err)
		}
		return ack.Sequence
	}
	for i := range 3 * readOnes {
		put(fmt.Sprint("s.w.", i), "old")
	}
	stream, err := js.Stream(t.Context(), "STATE")
	if err != nil {
		t.Fatal(err)
	}
	s := &states{nc: b.Conn(), js: js, stream: stream, prefix: "s."}
	claim := put("s.slot.fence", "host")
	for fence, want := range map[uint64]string{claim: "old", claim + 1: "new"} {
		c := newCells(s, "slot", fence)
		for i := range readOnes + 1 {
			if _, _, err := c.get(t.Context(), "s.w.", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		last := 3*readOnes - 1
		put(fmt.Sprint("s.w.", last), "new") // it shows whether the server is asked
		v, is, err := c.get(t.Context(), "s.w.", fmt.Sprint(last))
		if err != nil || !is || string(v) != want {
			t.Errorf("with the fencing token %d: %q, %v, %v; want %q", fence, v, is, err, want)
		}
		put(fmt.Sprint("s.w.", last), "old")
	}
}
