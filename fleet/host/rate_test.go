package host_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// TestRate checks that a worker with a rate handles a burst and then no more, that its
// attempts count, and that another rate holds at once.
func TestRate(t *testing.T) {
	r := newRig(t)
	var calls atomic.Int64
	w := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		calls.Add(1)
		if string(m.Data) == "0" && m.Attempt == 1 {
			return nil, errors.New("not yet")
		}
		return text(string(m.Data)), nil
	})
	w.Rate = host.Rate{Messages: 1, Per: time.Hour, Burst: 3}
	h := r.startWith(w)
	for i := range 5 {
		r.publish("work.w", strconv.Itoa(i))
	}
	r.wantOutputs("out.w", "0", "1") // the first one took two tokens
	w.OutputTopic = "out.w"
	plan, err := h.Apply(t.Context(), w)
	if err != nil || len(plan.Differences) != 0 {
		t.Fatalf("%+v, %v", plan, err)
	}
	w.Rate = host.Rate{Messages: 1, Per: time.Hour}
	plan, err = h.Apply(t.Context(), w)
	if err != nil || len(plan.Differences) != 1 || plan.Differences[0] != (host.Difference{Field: "rate", From: "1 per 1h0m0s, burst 3", To: "1 per 1h0m0s, burst 1"}) {
		t.Fatalf("%+v, %v", plan, err)
	}
	r.wantOutputs("out.w", "0", "1", "2") // a new holder begins with a full burst
	w.Rate = host.Rate{}
	_, err = h.Apply(t.Context(), w)
	must(t, err)
	r.wantOutputs("out.w", "0", "1", "2", "3", "4")
	if n := calls.Load(); n != 6 {
		t.Errorf("%d calls", n)
	}
	rec, err := h.Get(t.Context(), "w")
	if err != nil || rec.Generation != 1 {
		t.Errorf("a rate is no new version: %+v, %v", rec, err)
	}
	for _, bad := range []host.Rate{{Messages: -1}, {Per: time.Second}, {Messages: 1, Burst: -1}, {Messages: 1, Per: -1}} {
		w.Rate = bad
		if _, err := h.Diff(t.Context(), w); !errors.Is(err, host.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestRateAfterAChange checks that a runner that gives messages back at a change that keeps the rate
// gives back the tokens too that they had reserved, so that the next runner does not wait for them.
func TestRateAfterAChange(t *testing.T) {
	r := newRig(t)
	const keys, per = 40, 3 * time.Second // together they wait for longer than bound
	w := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		return text(string(m.Data)), nil
	})
	w.Topic, w.OutputTopic = "work.w.*", "out.w"
	w.Rate = host.Rate{Messages: 1, Per: per}
	h := r.startWith(w)
	for i := range keys {
		r.publish("work.w."+strconv.Itoa(i), "x")
	}
	r.eventually("the first one is handled", func() bool { return len(r.outputs("out.w")) > 0 })
	time.Sleep(300 * time.Millisecond) // so that the others most likely wait for their tokens
	w.OutputTopic = "out.changed"
	_, err := h.Apply(t.Context(), w)
	must(t, err)
	r.eventually("the next one is handled", func() bool { return len(r.outputs("out.changed")) > 0 })
}
