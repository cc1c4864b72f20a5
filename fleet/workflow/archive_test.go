package workflow_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

func TestArchiveKeepsTheHistoryAndFreesTheBucket(t *testing.T) {
	r := journaled(t)
	ctx := testContext(t)
	for i := range 300 {
		id := fmt.Sprint(i)
		r.create(t, id, "landing")
		if i%3 != 0 {
			must(t, r.missions.Fail(ctx, id, "out of fuel"))
		}
	}
	r.copied(t)
	if n, err := r.Archive(ctx, survey, time.Hour); n != 0 || err != nil {
		t.Errorf("archived %d that ended just now, %v", n, err)
	}
	n, err := r.Archive(ctx, survey, 0)
	if n != 200 || err != nil {
		t.Errorf("archived %d, %v; want 200", n, err)
	}
	list, err := r.missions.List(ctx, workflow.ListOptions{Fresh: true})
	must(t, err)
	if len(list) != 100 {
		t.Errorf("%d are left, want 100", len(list))
	}
	bucket, err := r.js.Stream(ctx, "KV_MISSIONS")
	must(t, err)
	if msgs := bucket.CachedInfo().State.Msgs; msgs != 300 { // a record of each that lives, a marker of each other
		t.Errorf("the bucket has %d messages, want 300", msgs)
	}
	r.copied(t)
	trail, err := r.Trail(ctx, survey, "1")
	must(t, err)
	if len(trail.Events) != 3 || trail.Truncated || trail.Events[1].Note != "out of fuel" || trail.Events[2].To != workflow.PhaseDeleted || trail.Events[2].Note != "archived" {
		t.Errorf("%+v", trail)
	}
	rec, err := r.Recall(ctx, survey, "1")
	must(t, err)
	if rec.Phase != "failed" || rec.EntityID != "1" {
		t.Errorf("recalled %+v", rec)
	}
	// The id is free, and its history goes on.
	r.create(t, "1", "planning")
	if events, err := r.History(ctx, survey, "1"); len(events) != 4 || err != nil {
		t.Errorf("%+v, %v", events, err)
	}
	if err := r.Forget(ctx, survey, "1"); !errors.Is(err, workflow.ErrEntityExists) {
		t.Errorf("forgot one that lives: %v", err)
	}
	must(t, r.Forget(ctx, survey, "2"))
	must(t, r.Forget(ctx, survey, "2"))
	if _, err := r.History(ctx, survey, "2"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("the history of a forgotten one: %v", err)
	}
	if _, err := r.Recall(ctx, survey, "2"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("recalled a forgotten one: %v", err)
	}
	r.create(t, "2", "planning")
	if n, err := r.Archive(ctx, survey, 0); n != 0 || err != nil { // the journal can be used still
		t.Errorf("archived %d, %v", n, err)
	}
}

func TestArchiveNeedsAJournal(t *testing.T) {
	ctx := testContext(t)
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	for _, r := range []*rig{rigOn(t, b), rigOn(t, b, workflow.WithJournal())} {
		id := nextID()
		r.create(t, id, "failed")
		if n, err := r.Archive(ctx, survey, 0); n != 0 || !errors.Is(err, workflow.ErrJournal) {
			t.Errorf("archived %d, %v", n, err)
		}
	}
}
