package workflow_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/trace"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// TestTraceGoesFromAWriteToItsHook checks the trace of a context and of the option, in the trail,
// in a watch, in a reaction, and in what the hook writes.
func TestTraceGoesFromAWriteToItsHook(t *testing.T) {
	const other = "00-11111111111111111111111111111111-2222222222222222-00"
	b := hookServer(t)
	reactions := make(chan string, 10)
	var r *rig
	r = hooked(t, b, workflow.Hook{Replay: true, Do: func(ctx context.Context, re workflow.Reaction) error {
		reactions <- re.To + " " + re.Trace.Parent + " " + trace.Of(ctx).Parent
		if re.To == "planning" {
			return r.missions.Transition(ctx, "m1", "flying", workflow.TransitionSourceRule, "")
		}
		return nil
	}})
	r.hooks(t)
	events, err := r.WatchEvents(testContext(t), survey)
	must(t, err)
	ctx := trace.Parse(traceparent, "a=b").In(testContext(t))
	must(t, r.missions.Create(ctx, &Mission{ID: "m1", State: "planning"}))
	for _, want := range []string{"planning", "flying"} {
		if got := <-reactions; got != want+" "+traceparent+" "+traceparent {
			t.Errorf("reaction %s, want %s of %s", got, want, traceparent)
		}
	}
	must(t, r.missions.Transition(ctx, "m1", "landing", "rule", "", workflow.Trace(trace.Parse(other, ""))))
	must(t, r.missions.Update(testContext(t), "m1", func(m *Mission) error { m.Count++; return nil }))
	trail, err := r.missions.History(testContext(t), "m1")
	must(t, err)
	for i, want := range []trace.Context{{Parent: traceparent, State: "a=b"}, {Parent: traceparent, State: "a=b"}, {Parent: other}} {
		if got := trail[i].Trace; got != want {
			t.Errorf("event %d has the trace %v, want %v", i, got, want)
		}
	}
	for e := range events {
		if e.Revision == 3 && e.Trace.Parent != other {
			t.Errorf("the watch has the trace %v, want %s", e.Trace, other)
		}
		if e.Revision == 4 { // an update without a trace
			if e.Trace != (trace.Context{}) {
				t.Errorf("the watch has the trace %v, want none", e.Trace)
			}
			break
		}
	}
}

func ExampleTrace() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "missions")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	b, err := broker.Connect(ctx, broker.Config{
		StoreDir: dir, Logger: brokertest.Quiet(),
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS"), workflow.HookBucket("MISSIONS")},
		Streams: []jetstream.StreamConfig{workflow.Journal("MISSIONS")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close(ctx)
	mgr := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer mgr.Close()

	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	log := slog.New(trace.Handler(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime})))
	done := make(chan struct{})
	err = mgr.Register("drone-survey", newMission, table, workflow.WithJournal(), workflow.WithHook(workflow.Hook{
		Name: "invoice", Replay: true,
		Do: func(ctx context.Context, r workflow.Reaction) error {
			log.InfoContext(ctx, "invoice", "mission", r.Record.EntityID)
			close(done)
			return nil
		},
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	hooks, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Hooks(hooks) }()

	// In a handler: request := trace.FromHeader(req.Header).In(req.Context())
	request := trace.Parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "").In(ctx)
	if err := mgr.Create(request, &Mission{ID: "m-17", State: "planning"}); err != nil {
		fmt.Println(err)
	}
	<-done
	stop()
	fmt.Println(<-ended)
	// Output:
	// level=INFO msg=invoice mission=m-17 trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331
	// <nil>
}
