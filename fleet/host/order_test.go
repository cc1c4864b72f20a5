package host_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// A handler whose host doubts its lease for a moment ends without an outcome. Its message
// is handled again before the next one of its key.
func TestOrderSurvivesADoubtfulLease(t *testing.T) {
	r := newRig(t)
	var h *host.Host
	var calls atomic.Int64
	req := r.native("w", func(ctx context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		if calls.Add(1) == 1 {
			h.Trust(false)
			<-ctx.Done()
			h.Trust(true)
			return nil, context.Cause(ctx)
		}
		return text(string(m.Data)), nil
	})
	h = r.start("a")
	create(t, h, req)
	must(t, h.StopWorker(t.Context(), "w"))
	r.publish("work.w", "1", "2", "3") // they wait together
	must(t, h.StartWorker(t.Context(), "w"))
	r.wantOutputs("out.w", "1", "2", "3")
}
