package host_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/host"
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

// TestPrintedLinesHaveTheTrace checks the host's log lines of what code prints: they have the
// trace of the message that is handled, and none when there is none or the code is loaded.
func TestPrintedLinesHaveTheTrace(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var log lockedBuffer
	r := newRig(t)
	r.tune = func(c *host.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: []byte(`
print("is loaded")
def handle(message):
    print("handles", message.text)
    return message.text
`)})
	traced := nats.NewMsg("work.w")
	traced.Header.Set("traceparent", parent)
	traced.Data = []byte("one")
	_, err := r.js.PublishMsg(t.Context(), traced)
	must(t, err)
	r.publish("work.w", "two")
	r.wantOutputs("out.w", "one", "two")
	for line, want := range map[string]bool{
		`line="is loaded"`:   false,
		`line="handles one"`: true,
		`line="handles two"`: false,
	} {
		_, rest, found := strings.Cut(log.String(), line)
		rest, _, _ = strings.Cut(rest, "\n")
		has := rest == " trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331"
		if !found || has != want || !want && rest != "" {
			t.Errorf("after %s the log has %q (found %t), want the trace: %t", line, rest, found, want)
		}
	}
}
