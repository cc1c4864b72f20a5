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
	viewless, viewing := rigOn(t, b, workflow.WithoutView()), rigOn(t, b)
	ctx := testContext(t)
	must(t, viewless.Ready(ctx))
	viewless.create(t, "m", "planning")
	viewless.move(t, "m", "flying")
	must(t, viewless.missions.Update(ctx, "m", func(m *Mission) error { m.Count++; return nil }))
	viewing.move(t, "m", "capturing")
	viewless.move(t, "m", "flying") // decided on an old record first
	if err := viewless.missions.Transition(ctx, "m", "planning", workflow.TransitionSourceRule, ""); !errors.Is(err, workflow.ErrInvalidTransition) {
		t.Errorf("an edge that the table does not have: %v", err)
	}
	viewless.move(t, "m", "landing")
	must(t, viewless.missions.Complete(ctx, "m"))
	if err := viewless.missions.Complete(ctx, "m"); !errors.Is(err, workflow.ErrTerminalPhase) {
		t.Errorf("a second time: %v", err)
	}
	rec, err := viewless.record(ctx, "m")
	must(t, err)
	if got := listIDs(t, viewing, workflow.ListOptions{Fresh: true, Phase: "completed"}); got != "m" || rec.Phase != "completed" {
		t.Errorf("listed %q, and found it in %s", got, rec.Phase)
	}
	if p, err := viewless.LookupByEntityID(ctx, "m"); err != nil || p.Phase() != "completed" {
		t.Errorf("lookup: %v, %v", p, err)
	}
	if _, err := viewless.LookupByEntityID(ctx, "none"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("lookup of none: %v", err)
	}
	_, list := viewless.List(ctx, survey, workflow.ListOptions{})
	_, children := viewless.Children(ctx, "m")
	_, degraded := viewless.Degraded(ctx, survey)
	for _, err := range []error{list, children, degraded} {
		if !errors.Is(err, workflow.ErrNoView) {
			t.Errorf("a query without a view: %v", err)
		}
	}
	if views := viewless.Views(); len(views) != 0 {
		t.Errorf("views: %+v", views)
	}
	must(t, viewless.Delete(ctx, survey, "m"))
	viewless.create(t, "m", "planning")
	if n := consumers(t, viewless); n != 1 {
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
