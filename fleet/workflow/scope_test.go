package workflow_test

import (
	"errors"
	"testing"
	"time"

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
	must(t, blind.missions.Complete(ctx, "m"))
	if err := blind.missions.Complete(ctx, "m"); !errors.Is(err, workflow.ErrTerminalPhase) {
		t.Errorf("a second time: %v", err)
	}
	rec, err := blind.Find(ctx, survey, "m")
	must(t, err)
	if got := listIDs(t, seeing, workflow.ListOptions{Fresh: true, Phase: "aborted"}); got != "m" || rec.Phase != "aborted" {
		t.Errorf("listed %q, and found it in %s", got, rec.Phase)
	}
	if p, err := blind.LookupByEntityID(ctx, "m"); err != nil || p.Phase() != "aborted" {
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

// TestViewOfPhases keeps active entities in a view, and no others.
func TestViewOfPhases(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	all := rigOn(t, b)
	all.create(t, "old", "failed")
	all.create(t, "m", "planning")
	some := rigOn(t, b, workflow.WithViewOf("planning", "flying", "landing"))
	ctx := testContext(t)
	list := func() string {
		t.Helper()
		return listIDs(t, some, workflow.ListOptions{Fresh: true})
	}
	if got := list(); got != "m" {
		t.Errorf("listed %q", got)
	}
	some.move(t, "m", "flying")
	all.move(t, "m", "capturing")
	if got := list(); got != "" {
		t.Errorf("in another phase: listed %q", got)
	}
	all.move(t, "m", "flying")
	if got := list(); got != "m" {
		t.Errorf("back again: listed %q", got)
	}
	some.move(t, "m", "capturing") // the view drops it at once
	if got := listIDs(t, some, workflow.ListOptions{}); got != "" {
		t.Errorf("after its own write: listed %q", got)
	}
	some.move(t, "m", "flying") // decided on the server's record
	if got := listIDs(t, some, workflow.ListOptions{}); got != "m" {
		t.Errorf("after its own write: listed %q", got)
	}
	if p, err := some.LookupByEntityID(ctx, "old"); err != nil || p.Phase() != "failed" {
		t.Errorf("lookup: %v, %v", p, err)
	}
	if _, err := some.List(ctx, survey, workflow.ListOptions{Phase: "failed"}); !errors.Is(err, workflow.ErrNoView) {
		t.Errorf("another phase: %v", err)
	}
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer func() { must(t, m.Close()) }()
	if err := m.Register(survey, newMission, table, workflow.WithViewOf("flyng")); !errors.Is(err, workflow.ErrInvalidTransitionsTable) {
		t.Errorf("a phase that the table does not have: %v", err)
	}
}

// TestViewPrefix has the keys of one prefix in a view. Removals and Fresh work too.
func TestViewPrefix(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	all, some := rigOn(t, b), rigOn(t, b, workflow.WithViewPrefix("mission.eu."))
	ctx := testContext(t)
	for _, id := range []string{"eu.a", "us.a", "eu.b", "us.b"} {
		all.create(t, id, "flying")
		some.move(t, id, "landing")
	}
	if got := listIDs(t, some, workflow.ListOptions{MaxStale: time.Nanosecond}); got != "eu.a eu.b" {
		t.Errorf("listed %q", got)
	}
	if views := some.Views(); views[0].Entities != 2 {
		t.Errorf("views: %+v", views)
	}
	kv, err := b.JetStream().Stream(ctx, "KV_MISSIONS")
	must(t, err)
	must(t, kv.Purge(ctx))
	all.create(t, "eu.c", "flying")
	if got := listIDs(t, some, workflow.ListOptions{Fresh: true}); got != "eu.c" {
		t.Errorf("after a purge: listed %q", got)
	}
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer func() { must(t, m.Close()) }()
	for _, prefix := range []string{"mission.eu", ".", "a..", "mission.*."} {
		if err := m.Register(survey, newMission, table, workflow.WithViewPrefix(prefix)); !errors.Is(err, workflow.ErrInvalidParticipant) {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
}
