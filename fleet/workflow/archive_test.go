package workflow_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
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
	rec, err := r.record(ctx, "1", workflow.Removed())
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
	if _, err := r.record(ctx, "2", workflow.Removed()); !errors.Is(err, workflow.ErrEntityNotFound) {
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

// TestForgottenOnesStayGone checks that an entity which was forgotten does not live again
// when its server is killed. A server that starts again forgets what it has replaced, and
// so brings revisions back that were replaced before the entity was forgotten.
func TestForgottenOnesStayGone(t *testing.T) {
	ctx := testContext(t)
	cluster := brokertest.StartCluster(t, 1)
	small := missionsBucket
	small.History = 3
	b := brokertest.Connect(t, broker.Config{URL: cluster.URL(), Buckets: []jetstream.KeyValueConfig{small}})
	r := rigOn(t, b)
	r.create(t, "other", "planning")
	again := 9
	for _, id := range []string{"many", "few", "again", "again"} {
		r.create(t, id, "planning")
		for range map[string]int{"many": 9, "again": again}[id] {
			must(t, r.missions.Update(ctx, id, func(m *Mission) error { m.Count++; return nil }))
		}
		must(t, r.missions.Delete(ctx, id))
		must(t, r.Forget(ctx, survey, id))
		must(t, r.Forget(ctx, survey, id))
		if id == "again" {
			again = 0 // its second life is short
		}
	}
	kv, err := r.js.KeyValue(ctx, "MISSIONS")
	must(t, err)
	if status, err := kv.Status(ctx); err != nil || status.Values() != 3 { // of other, and the markers of many and again
		t.Errorf("%d messages are left, %v", status.Values(), err)
	}
	cluster.Kill(0)
	cluster.Start(0)
	brokertest.Await(t, "the server answers", func() bool { _, err := r.missions.Get(ctx, "other"); return err == nil })
	for _, id := range []string{"many", "few", "again"} {
		if m, err := r.missions.Get(ctx, id); !errors.Is(err, workflow.ErrEntityNotFound) {
			t.Errorf("%s lives again: %+v, %v", id, m, err)
		}
		must(t, r.Forget(ctx, survey, id))
	}
	if events, err := r.History(ctx, survey, "few"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("the history of few: %+v, %v", events, err)
	}
	if events, err := r.History(ctx, survey, "many"); len(events) != 1 || events[0].To != workflow.PhaseDeleted { // its marker
		t.Errorf("the history of many: %+v, %v", events, err)
	}
}
