package host_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/trace"
)

// TestTraceGoesFromAMessageToItsOutputs checks the context of a handler, and what its outputs
// carry: the trace of the message, or their own.
func TestTraceGoesFromAMessageToItsOutputs(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	const own = "00-11111111111111111111111111111111-2222222222222222-00"
	r := newRig(t)
	r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		second := engine.Output{Data: []byte("own"), Header: map[string][]string{"Traceparent": {own}}}
		return append(text(trace.Of(ctx).Parent+" "+m.Trace().State), second), nil
	}))
	msg := nats.NewMsg("work.w")
	msg.Header.Set("Traceparent", parent)
	msg.Header.Set("tracestate", "a=b")
	_, err := r.js.PublishMsg(t.Context(), msg)
	must(t, err)
	r.wantOutputs("out.w", parent+" a=b", "own")
	stream, err := r.js.Stream(t.Context(), "WORK")
	must(t, err)
	for seq, want := range map[uint64]trace.Context{2: {Parent: parent, State: "a=b"}, 3: {Parent: own}} {
		m, err := stream.GetMsg(t.Context(), seq)
		must(t, err)
		if got := trace.FromHeader(m.Header); got != want {
			t.Errorf("the output %s has the trace %v, want %v", m.Data, got, want)
		}
	}
}
