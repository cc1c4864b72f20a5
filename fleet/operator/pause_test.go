package operator_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestPauseOverREST pauses and resumes an entity whose id has a slash, and looks at the pages.
func TestPauseOverREST(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS"), workflow.HookBucket("MISSIONS")},
		Streams: []jetstream.StreamConfig{workflow.Journal("MISSIONS")},
	}).JetStream()
	mgr := workflow.NewManager(js, brokertest.Quiet())
	t.Cleanup(func() { mgr.Close() })
	invoice := workflow.Hook{Name: "invoice", Do: func(context.Context, workflow.Reaction) error { return nil }}
	opts := []workflow.RegisterOption{workflow.WithJournal(), workflow.WithHook(invoice)}
	if err := mgr.Register("drone-survey", func() workflow.Participant { return new(survey) }, surveys, opts...); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"acme/north", "other"} {
		if err := mgr.Create(t.Context(), &survey{ID: id, State: "planning"}); err != nil {
			t.Fatal(err)
		}
	}
	base, _ := serve(t, operator.Config{Workflows: operator.FromManager(mgr)})
	const entity = "/workflows/drone-survey/acme%2Fnorth"
	for _, step := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", entity, "", 200, `"id":"acme/north"`},
		{"POST", entity + "/pause", `{"reason":"the pilot is ill"}`, 200, `"paused":true`},
		{"POST", entity + "/pause", `{}`, 200, `"paused":true`},
		{"GET", "/workflows/drone-survey?paused=true", "", 200, `"id":"acme/north"`},
		{"POST", entity + "/transition", `{"phase":"flying"}`, 200, `"paused":true`},
		{"POST", entity + "/resume", `{"note":"she is back"}`, 200, `"updatedAt"`},
		{"POST", entity + "/pause", `{"ifMatch":"\"1\""}`, 409, "STALE_ETAG"},
		{"GET", entity + "/history", "", 200, `"note":"the pilot is ill`},
		{"GET", "/definitions/drone-survey", "", 200, `"hooks":["invoice"]`},
		{"POST", entity + "/pause", `{}`, 200, `"paused":true`},
		{"GET", "/ui/workflows/drone-survey/acme%2Fnorth", "", 200, `href="/ui/act/unpause?type=drone-survey&amp;id=acme%2fnorth"`},
		{"GET", "/ui/act/unpause?type=drone-survey&id=acme%2Fnorth", "", 200, "Resume this entity"},
		{"GET", "/ui/workflows/drone-survey", "", 200, `href="/ui/workers/drone-survey%2Finvoice/deadletters"`},
	} {
		code, _, text := request(t, step.method, base+step.path, step.body)
		text = strings.ReplaceAll(text, ": ", ":")
		if code != step.code || !strings.Contains(text, step.want) {
			t.Errorf("%s %s: %d, want %d and %s:\n%s", step.method, step.path, code, step.code, step.want, text)
		}
	}
}
