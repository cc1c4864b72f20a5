package host

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/effects"
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
	c := newStateCache(&states{nc: b.Conn(), js: js, stream: stream, budget: &budget{memory: 8 * maxCache}, prefix: "s."}, "slot", 0)
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

	// What is committed counts until it is on its subject.
	c.memory = c.states.budget.open()
	writes := []stateWrite{{Worker: "w", UID: "u", Key: "key", Data: make([]byte, 1000)}, {Worker: "w", UID: "u", Key: "key", Data: make([]byte, 10)}}
	c.stage(writes)
	c.commit(writes, 1)
	if n, want := c.memory.unstored, int64(10+len("s.w-w.kv.u.key")); n != want {
		t.Errorf("%d bytes wait for a flush, want %d", n, want)
	}
	c.flushed(writes)
	if n := c.memory.unstored; n != 0 {
		t.Errorf("%d bytes wait after the flush", n)
	}
	c.commit(writes, 2)
	c.forget("s.w-w.")
	if n := c.states.budget.held.Load(); n != 0 || c.isDirty() {
		t.Errorf("%d bytes wait after the deletion", n)
	}
}

// A put that is refused changes nothing: what is stored stays, and a smaller put, or a delete, is
// taken after it.
func TestRefusedPutChangesNothing(t *testing.T) {
	h := &handle{record: &Record{ID: "w", UID: "u"}}
	ctx := t.Context()
	put := func(key string, size int) error { return h.Put(ctx, key, make([]byte, size)) }
	if err := put("large", effects.MaxStateBytes-10); err != nil {
		t.Fatal(err)
	}
	if err := put("stored", 100); !errors.Is(err, engine.ErrLimit) {
		t.Errorf("a put above the limit: %v", err)
	}
	if err := errors.Join(put("small", 10), h.Delete(ctx, "other")); err != nil {
		t.Errorf("after the refused put: %v", err)
	}
	var keys []string
	for _, w := range h.changes() {
		keys = append(keys, fmt.Sprint(w.Key, " ", w.Deleted))
	}
	if want := []string{"large false", "small false", "other true"}; !slices.Equal(keys, want) {
		t.Errorf("the message changes %q, want %q", keys, want)
	}
}
