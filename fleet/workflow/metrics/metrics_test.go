package metrics

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

type note struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
}

func (n *note) EntityID() string       { return n.ID }
func (n *note) Workflow() string       { return "notes" }
func (n *note) Phase() string          { return n.State }
func (n *note) IsTerminal() bool       { return false }
func (n *note) KVBucket() string       { return "NOTES" }
func (n *note) KVKey(id string) string { return id }
func (n *note) ParentEntityID() string { return "" }

func TestViewsAreShown(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Buckets: []jetstream.KeyValueConfig{workflow.Bucket("NOTES")}})
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Register("notes", func() workflow.Participant { return new(note) }, workflow.Transitions{"a": {}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := m.Create(ctx, &note{ID: "n", State: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.List(ctx, "notes", workflow.ListOptions{Fresh: true}); err != nil {
		t.Fatal(err)
	}
	want := `
		# HELP lifecycle_workflow_view_entities Entities in the view of a bucket.
		# TYPE lifecycle_workflow_view_entities gauge
		lifecycle_workflow_view_entities{bucket="NOTES"} 1
		# HELP lifecycle_workflow_view_ready 1 for a view that has read its bucket, else 0.
		# TYPE lifecycle_workflow_view_ready gauge
		lifecycle_workflow_view_ready{bucket="NOTES"} 1
	`
	c := New(m)
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "lifecycle_workflow_view_entities", "lifecycle_workflow_view_ready"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"lifecycle_workflow_view_age_seconds", "lifecycle_workflow_view_writes_waiting"} {
		if n := testutil.CollectAndCount(c, name); n != 1 {
			t.Errorf("%d of %s, want 1", n, name)
		}
	}
}

func TestHooksAreShown(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("NOTES"), workflow.HookBucket("NOTES")},
		Streams: []jetstream.StreamConfig{workflow.Journal("NOTES")},
	})
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	mail := workflow.Hook{Name: "mail", Do: func(context.Context, workflow.Reaction) error { return nil }}
	opts := []workflow.RegisterOption{workflow.WithJournal(), workflow.WithHook(mail)}
	if err := m.Register("notes", func() workflow.Participant { return new(note) }, workflow.Transitions{"a": {}}, opts...); err != nil {
		t.Fatal(err)
	}
	want := `
		# HELP lifecycle_workflow_hook_dead_letters Reactions that a hook has given up.
		# TYPE lifecycle_workflow_hook_dead_letters gauge
		lifecycle_workflow_hook_dead_letters{hook="mail",workflow="notes"} 0
		# HELP lifecycle_workflow_hook_waiting Writes that a hook has not looked at, or not reacted to with success.
		# TYPE lifecycle_workflow_hook_waiting gauge
		lifecycle_workflow_hook_waiting{hook="mail",workflow="notes"} 0
	`
	names := []string{"lifecycle_workflow_hook_dead_letters", "lifecycle_workflow_hook_waiting"}
	if err := testutil.CollectAndCompare(New(m), strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}
