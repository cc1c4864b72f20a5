package workflow

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// unwritable is a note that cannot be stored again when its id is "bad".
type unwritable struct{ hot }

func (u *unwritable) MarshalJSON() ([]byte, error) {
	if u.ID == "bad" {
		return nil, errors.New("it is bad")
	}
	return fmt.Appendf(nil, `{"id":%q,"phase":%q}`, u.ID, u.State), nil
}

// TestFiredTimersAreForgotten: Deadlines remembers what could not be written, and nothing of the
// timers that have fired.
func TestFiredTimersAreForgotten(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("NOTES")}, Sync: broker.SyncInterval})
	m := NewManager(b.JetStream(), brokertest.Quiet())
	t.Cleanup(func() { _ = m.Close() })
	check(t, m.Register("notes", func() Participant { return new(unwritable) }, Transitions{"a": {"b"}, "b": {}},
		WithDeadline("a", "b", time.Nanosecond)))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	kv, err := b.JetStream().KeyValue(ctx, "NOTES")
	check(t, err)
	for i := range 100 {
		check(t, m.Create(ctx, &unwritable{hot{ID: fmt.Sprint(i), State: "a"}}))
	}
	_, err = kv.Put(ctx, "bad", []byte(`{"id":"bad","phase":"a"}`))
	check(t, err)
	_, err = m.Query(ctx, "notes", ListOptions{Fresh: true})
	check(t, err)

	r, err := m.registration("notes")
	check(t, err)
	f := newFiring(m)
	f.round(ctx, r.bucket)
	f.running.Wait()
	bad := f.tries[place{r.bucket, "bad"}]
	if len(f.tries) != 1 || bad == nil || bad.failures != 1 {
		t.Errorf("%d are remembered: %v, want the one that could not be written", len(f.tries), f.tries)
	}
	f.sweep(plus(instant(m.clock.Now()), time.Hour))
	if len(f.tries) != 0 {
		t.Errorf("an hour later %d are remembered", len(f.tries))
	}
}
