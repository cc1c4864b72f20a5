package host_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// value returns the stored value of a worker's key.
func (r *rig) value(h *host.Host, id, key string) string {
	r.t.Helper()
	rec, err := h.Get(r.t.Context(), id)
	must(r.t, err)
	stream, err := r.js.Stream(r.t.Context(), "HOST_STATE")
	must(r.t, err)
	m, err := stream.GetLastMsgForSubject(r.t.Context(), "$host.state.w-"+id+".kv."+rec.UID+"."+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return ""
	}
	must(r.t, err)
	return string(m.Data)
}

// TestPublishedIsWhatWasCommitted checks that an attempt whose commit was refused has
// published nothing: its outputs differ from those of the attempt that is committed.
func TestPublishedIsWhatWasCommitted(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.AckWait = bound / 10 }
	entered, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		n := strconv.FormatInt(calls.Add(1), 10)
		if n == "1" {
			close(entered)
			<-release
		}
		return text(n), s.Put(ctx, "by", []byte(n))
	}))
	r.publish("work.w", "x")
	<-entered
	must(t, r.host("b").Supersede(t.Context(), "w-w"))
	close(release)
	r.eventually("the second attempt is committed", func() bool { return r.value(h, "w", "by") == "2" })
	r.wantOutputs("out.w", "2")
	r.letters(h, "w", 0)
}

// TestDeadLetterHasPublishedNothing checks that a message whose state cannot be written
// becomes a dead letter without any output, and that redrive publishes once.
func TestDeadLetterHasPublishedNothing(t *testing.T) {
	r := newRig(t)
	var fixed atomic.Bool
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		size := 1
		if !fixed.Load() {
			size = 1 << 20 // more than a message of the server may have
		}
		return text(fmt.Sprint("paid ", m.Attempt)), s.Put(ctx, "receipt", make([]byte, size))
	}))
	r.publish("work.w", "x")
	d := r.letters(h, "w", 1)[0]
	if out := r.outputs("out.w"); len(out) > 0 {
		t.Errorf("a dead letter has published %q: %s", out, d.Reason)
	}
	fixed.Store(true)
	if n, err := h.Redrive(t.Context(), "w"); n != 1 || err != nil {
		t.Fatalf("redrive: %d, %v", n, err)
	}
	r.wantOutputs("out.w", "paid 1")
}
