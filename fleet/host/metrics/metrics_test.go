package metrics

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/native"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

func TestCountsPerVersion(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "WORK", Subjects: []string{"work"}}}})
	engines, err := engine.NewRegistry(native.New(map[string]native.Func{"f": func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		if string(m.Data) == "bad" {
			return nil, errors.New("bad")
		}
		return nil, nil
	}}))
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(b.JetStream(), host.Config{Engines: engines, MaxRetries: host.NoRetry, MemoryBudget: 128 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	if _, err := h.Create(t.Context(), host.Spec{ID: "w", MIMEType: native.MIMEType, Topic: "work", Code: []byte("f")}); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"good", "bad", "good"} {
		if _, err := b.JetStream().Publish(t.Context(), "work", []byte(d)); err != nil {
			t.Fatal(err)
		}
	}
	want := `
# HELP lifecycle_hosted_backlog Messages that wait for a hosted worker of this host, or for its group.
# TYPE lifecycle_hosted_backlog gauge
lifecycle_hosted_backlog{group="",worker="w"} 0
# HELP lifecycle_hosted_children Child processes that run the code of hosted workers.
# TYPE lifecycle_hosted_children gauge
lifecycle_hosted_children 0
# HELP lifecycle_hosted_children_killed_total Child processes that their code ended, or that were ended to end their code.
# TYPE lifecycle_hosted_children_killed_total counter
lifecycle_hosted_children_killed_total 0
# HELP lifecycle_hosted_children_started_total Child processes that were started for the code of hosted workers.
# TYPE lifecycle_hosted_children_started_total counter
lifecycle_hosted_children_started_total 0
# HELP lifecycle_hosted_dead_letters Dead letters of a hosted worker of this host that have not been redriven.
# TYPE lifecycle_hosted_dead_letters gauge
lifecycle_hosted_dead_letters{worker="w"} 1
# HELP lifecycle_hosted_dropped_total Outputs without a topic, and dead letters beyond the limit, that this host dropped.
# TYPE lifecycle_hosted_dropped_total counter
lifecycle_hosted_dropped_total{generation="1",what="letter",worker="w"} 0
lifecycle_hosted_dropped_total{generation="1",what="output",worker="w"} 0
# HELP lifecycle_hosted_floor_missing Parts of the containment of hosted code that this system does not have.
# TYPE lifecycle_hosted_floor_missing gauge
lifecycle_hosted_floor_missing 0
# HELP lifecycle_hosted_memory_bytes Memory of the host for what workers produce and what waits for them: the budget, and what is taken of it.
# TYPE lifecycle_hosted_memory_bytes gauge
lifecycle_hosted_memory_bytes{what="budget"} 1.34217728e+08
lifecycle_hosted_memory_bytes{what="taken"} 0
# HELP lifecycle_hosted_messages_total Results of the messages of a hosted worker on this host, by version of its code.
# TYPE lifecycle_hosted_messages_total counter
lifecycle_hosted_messages_total{generation="1",result="dead",worker="w"} 1
lifecycle_hosted_messages_total{generation="1",result="failed",worker="w"} 1
lifecycle_hosted_messages_total{generation="1",result="succeeded",worker="w"} 2
# HELP lifecycle_hosted_waiting Messages, and loads of code, that wait for a place or for memory of this host.
# TYPE lifecycle_hosted_waiting gauge
lifecycle_hosted_waiting{for="memory"} 0
lifecycle_hosted_waiting{for="place"} 0
# HELP lifecycle_hosted_waits_total Messages, and loads of code, that had to wait for a place or for memory of this host.
# TYPE lifecycle_hosted_waits_total counter
lifecycle_hosted_waits_total{for="memory"} 0
lifecycle_hosted_waits_total{for="place"} 0
# HELP lifecycle_hosted_workers Hosted workers that are loaded on this host.
# TYPE lifecycle_hosted_workers gauge
lifecycle_hosted_workers 1
`
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := testutil.CollectAndCompare(New(h), strings.NewReader(want))
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
