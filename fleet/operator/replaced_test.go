package operator_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// When NATS comes back with an empty disk, each call is answered soon and names what is missing,
// no entity that is gone stays in the diagnosis, and a finding says that data was lost.
func TestStoreWasReplaced(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS")}}).JetStream()
	mgr := workflow.NewManager(js, quiet)
	t.Cleanup(func() { mgr.Close() })
	if err := mgr.Register("drone-survey", func() workflow.Participant { return new(survey) }, surveys); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"one", "two"} {
		if err := mgr.Create(t.Context(), &survey{ID: id, State: "planning"}); err != nil {
			t.Fatal(err)
		}
	}
	engines, err := engine.NewRegistry(starlark.New())
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(js, host.Config{Engines: engines, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	f, err := presence.Open(t.Context(), js, presence.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	url, _ := serve(t, operator.Config{
		Workflows:  operator.FromManager(mgr),
		Workers:    operator.FromHost(h),
		Processes:  operator.FromPresence(f),
		StuckAfter: time.Millisecond,
		Rate:       10_000,
	})
	diagnosis := func() string {
		_, _, text := request(t, "GET", url+"/diagnosis", "")
		return text
	}
	brokertest.Await(t, "the stuck entities", func() bool {
		text := diagnosis()
		return strings.Contains(text, "2 entities are in the phase planning") && strings.Contains(text, "0 hosted workers") && strings.Contains(text, "streams\"")
	})
	var lost []string
	for name := range js.StreamNames(t.Context()).Name() {
		lost = append(lost, name)
	}
	for _, name := range lost {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	brokertest.Await(t, "the finding", func() bool {
		text := diagnosis()
		return strings.Contains(text, "the store was replaced: NATS has nothing of what it had on disk: the bucket MISSIONS is missing (it had 2 messages)") &&
			!strings.Contains(text, "entity-stuck")
	})
	for path, names := range map[string]string{"/workers": "not found", "/workflows/drone-survey": "MISSIONS"} {
		code, _, text := request(t, "GET", url+path, "")
		if code != 503 || !strings.Contains(text, names) || strings.Contains(text, "may have been stored") || strings.Contains(text, "deadline") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	// The service that owns the bucket makes it again.
	if _, err := js.CreateKeyValue(t.Context(), workflow.Bucket("MISSIONS")); err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the word of the loss afterwards", func() bool {
		code, _, text := request(t, "GET", url+"/workflows/drone-survey", "")
		said := diagnosis()
		return code == 200 && !strings.Contains(text, "planning") && !strings.Contains(said, "entity-stuck") &&
			strings.Contains(said, "the bucket MISSIONS was made anew, empty (it had 2 messages)")
	})
}
