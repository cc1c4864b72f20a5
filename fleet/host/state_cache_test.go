package host

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// A value is read from the server once. When it had to make room it is read again.
func TestValuesAreReadOnce(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "STATE", Subjects: []string{"s.>"}, MaxMsgsPerSubject: 1}}})
	js := b.JetStream()
	put := func(value string) {
		t.Helper()
		if _, err := js.Publish(t.Context(), "s.w.key", []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(t.Context(), "STATE")
	if err != nil {
		t.Fatal(err)
	}
	c := newStateCache(&states{nc: b.Conn(), js: js, stream: stream, prefix: "s."}, "slot", 0)
	want := func(subject, value string) {
		t.Helper()
		got, is, err := c.get(t.Context(), subject)
		if err != nil || string(got) != value || is != (value != "") {
			t.Errorf("%s is %q, %v, %v; want %q", subject, got, is, err, value)
		}
	}
	put("first")
	want("s.w.key", "first")
	want("s.w.missing", "")
	put("of another writer") // it shows whether the server is asked
	want("s.w.key", "first")
	c.mu.Lock()
	c.setLocked("s.w.large", &cachedValue{data: make([]byte, maxCache), stored: true})
	c.mu.Unlock()
	want("s.w.key", "of another writer")
	c.stage([]stateWrite{{Worker: "w", UID: "u", Key: "key", Deleted: true}})
	want("s.w-w.kv.u.key", "")
}
