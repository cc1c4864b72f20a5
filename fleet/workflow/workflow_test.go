package workflow_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

func TestLifeOfAMission(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	must(t, r.missions.Transition(ctx, "m1", "flying", workflow.TransitionSourceOperator, "wind is fine\r\nLifecycle-Op: x — ü"))
	must(t, r.missions.TransitionWith(ctx, "m1", "capturing", workflow.TransitionSourceRule, "", func(m *Mission) error {
		m.Count = 7
		return nil
	}))
	must(t, r.missions.Update(ctx, "m1", func(m *Mission) error { m.Org = "acme"; return nil }))
	r.move(t, "m1", "flying")
	r.move(t, "m1", "landing")
	must(t, r.missions.Fail(ctx, "m1", "out of power"))

	got, err := r.missions.Get(ctx, "m1")
	must(t, err)
	if *got != (Mission{ID: "m1", State: "failed", Org: "acme", Count: 7}) || !got.IsTerminal() {
		t.Errorf("got %+v", got)
	}
	trail, err := r.Trail(ctx, survey, "m1")
	must(t, err)
	want := []workflow.TransitionEvent{
		{From: "", To: "planning", Triggered: "framework"},
		{From: "planning", To: "flying", Triggered: "operator", Note: "wind is fine\r\nLifecycle-Op: x — ü"},
		{From: "flying", To: "capturing", Triggered: "rule"},
		{From: "capturing", To: "flying", Triggered: "component"},
		{From: "flying", To: "landing", Triggered: "component"},
		{From: "landing", To: "failed", Triggered: "framework", Note: "out of power"},
	}
	for i := range trail.Events {
		if trail.Events[i].At.IsZero() {
			t.Errorf("event %d has no time", i)
		}
		if i > 0 && trail.Events[i].Revision <= trail.Events[i-1].Revision {
			t.Errorf("event %d has revision %d, and the one before %d", i, trail.Events[i].Revision, trail.Events[i-1].Revision)
		}
		want[i].Revision = trail.Events[i].Revision
		trail.Events[i].At = want[0].At
	}
	if fmt.Sprint(trail.Events) != fmt.Sprint(want) || trail.Truncated {
		t.Errorf("history:\n%+v\nwant\n%+v", trail, want)
	}
	list, err := r.missions.List(ctx, workflow.ListOptions{Phase: "failed", Match: map[string]any{"org_id": "acme"}})
	must(t, err)
	if len(list) != 1 || *list[0] != *got {
		t.Errorf("list: %+v", list)
	}
}

func TestEveryUpdateOfManyWritersLandsOnce(t *testing.T) {
	const managers, writers, updates = 4, 16, 4
	ctx := testContext(t)
	site := brokertest.NewSite(t)
	rigs := make([]*rig, managers)
	for i := range rigs {
		rigs[i] = rigOn(t, site.Connect(t, broker.Config{Buckets: buckets()}))
	}
	rigs[0].create(t, "hot", "planning")
	var wg sync.WaitGroup
	for i := range managers * writers {
		wg.Go(func() {
			for range updates {
				if err := rigs[i%managers].missions.Update(ctx, "hot", func(m *Mission) error { m.Count++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := rigs[1].missions.Get(ctx, "hot")
	must(t, err)
	if got.Count != managers*writers*updates {
		t.Errorf("%d updates of %d landed", got.Count, managers*writers*updates)
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"create twice":     {r.missions.Create(ctx, &Mission{ID: "m1", State: "planning"}), workflow.ErrEntityExists},
		"no such edge":     {r.missions.Transition(ctx, "m1", "landing", "rule", ""), workflow.ErrInvalidTransition},
		"no such phase":    {r.missions.Transition(ctx, "m1", "flyng", "rule", ""), workflow.ErrInvalidTransition},
		"no such entity":   {r.missions.Transition(ctx, "m2", "flying", "rule", ""), workflow.ErrEntityNotFound},
		"mutator's phase":  {r.missions.Update(ctx, "m1", func(m *Mission) error { m.State = "completed"; return nil }), workflow.ErrImmutableField},
		"mutator's id":     {r.missions.Update(ctx, "m1", func(m *Mission) error { m.ID = "m7"; return nil }), workflow.ErrImmutableField},
		"no way to finish": {r.missions.Complete(ctx, "m2"), workflow.ErrEntityNotFound},
		"delete nothing":   {r.missions.Delete(ctx, "m2"), workflow.ErrEntityNotFound},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	rec, err := r.record(ctx, "m1")
	must(t, err)
	if rec.Revision != 1 {
		t.Errorf("a refusal was written: revision %d", rec.Revision)
	}
}
