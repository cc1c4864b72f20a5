package host_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// TestStateOfAnotherStream holds that what is remembered about a message is not
// taken for another one of the same number: a worker is made anew on another
// stream, and a stream that was there before is made anew.
func TestStateOfAnotherStream(t *testing.T) {
	r := newRig(t)
	req := r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		return text(string(m.Data)), s.Put(ctx, "last", m.Data)
	})
	stream := func(name, subject string) {
		t.Helper()
		_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
		must(t, err)
	}
	stream("ONE", "one")
	stream("TWO", "two")
	h := r.start("a")
	states, err := r.js.Stream(t.Context(), "HOST_STATE")
	must(t, err)
	handled := 0
	handle := func(topic, data string) {
		t.Helper()
		req.Topic = topic
		create(t, h, req)
		rec, err := h.Get(t.Context(), "w")
		must(t, err)
		r.publish(topic, data)
		handled++
		r.eventually(data+" is handled", func() bool { return len(r.outputs("out.w")) == handled })
		r.eventually("the state of "+data+" is written", func() bool {
			m, err := states.GetLastMsgForSubject(t.Context(), "host.state.w-w.kv."+rec.UID+".last")
			return err == nil && string(m.Data) == data
		})
		must(t, h.Delete(t.Context(), "w"))
	}
	handle("one", "first")
	handle("two", "second")
	must(t, r.js.DeleteStream(t.Context(), "ONE"))
	stream("ONE", "one")
	handle("one", "third")
}
