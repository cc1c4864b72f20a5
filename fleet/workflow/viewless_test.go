package workflow_test

import (
	"errors"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestWithoutView writes and reads in a process that follows no bucket, beside one that
// does.
func TestWithoutView(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	blind, seeing := rigOn(t, b, workflow.WithoutView()), rigOn(t, b)
	ctx := testContext(t)
	must(t, blind.Ready(ctx))
	blind.create(t, "m", "planning")
	blind.move(t, "m", "flying")
	must(t, blind.missions.Update(ctx, "m", func(m *Mission) error { m.Count++; return nil }))
	seeing.move(t, "m", "capturing")
	blind.move(t, "m", "flying") // decided on an old record first
	if err := blind.missions.Transition(ctx, "m", "planning", workflow.TransitionSourceRule, ""); !errors.Is(err, workflow.ErrInvalidTransition) {
		t.Errorf("an edge that the table does not have: %v", err)
	}
	blind.move(t, "m", "landing")
	must(t, blind.missions.Complete(ctx, "m"))
	if err := blind.missions.Complete(ctx, "m"); !errors.Is(err, workflow.ErrTerminalPhase) {
		t.Errorf("a second time: %v", err)
	}
	rec, err := blind.record(ctx, "m")
	must(t, err)
	if got := listIDs(t, seeing, workflow.ListOptions{Fresh: true, Phase: "completed"}); got != "m" || rec.Phase != "completed" {
		t.Errorf("listed %q, and found it in %s", got, rec.Phase)
	}
	if p, err := blind.LookupByEntityID(ctx, "m"); err != nil || p.Phase() != "completed" {
		t.Errorf("lookup: %v, %v", p, err)
	}
	if _, err := blind.LookupByEntityID(ctx, "none"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("lookup of none: %v", err)
	}
	_, list := blind.List(ctx, survey, workflow.ListOptions{})
	_, children := blind.Children(ctx, "m")
	_, degraded := blind.Degraded(ctx, survey)
	for _, err := range []error{list, children, degraded} {
		if !errors.Is(err, workflow.ErrNoView) {
			t.Errorf("a query without a view: %v", err)
		}
	}
	if views := blind.Views(); len(views) != 0 {
		t.Errorf("views: %+v", views)
	}
	must(t, blind.Delete(ctx, survey, "m"))
	blind.create(t, "m", "planning")
	if n := consumers(t, blind); n != 1 {
		t.Errorf("%d processes follow the bucket, want the one with a view", n)
	}
}

// consumers returns how many consumers the bucket has.
func consumers(t *testing.T, r *rig) int {
	t.Helper()
	s, err := r.js.Stream(testContext(t), "KV_MISSIONS")
	must(t, err)
	return s.CachedInfo().State.Consumers
}
