package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// listIDs lists missions, and returns their ids.
func listIDs(t testing.TB, r *rig, opts workflow.ListOptions) string {
	t.Helper()
	list, err := r.missions.List(testContext(t), opts)
	must(t, err)
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = m.ID
	}
	return strings.Join(names, " ")
}

func TestListFiltersAndPages(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	for i, m := range []Mission{
		{State: "planning", Org: "acme"}, {State: "flying", Org: "acme", Replicas: 3}, {State: "completed", Org: "acme"},
		{State: "flying", Org: "", Owner: "me"}, {State: "failed", Org: "other"}, {State: "planning", Org: "acme", Count: 9},
	} {
		m.ID = fmt.Sprintf("m%d", i)
		must(t, r.missions.Create(ctx, &m))
	}
	match := func(name string, value any) map[string]any { return map[string]any{name: value} }
	for _, c := range []struct {
		want string
		opts workflow.ListOptions
	}{
		{"m0 m1 m2 m3 m4 m5", workflow.ListOptions{}},
		{"m1 m3", workflow.ListOptions{Phase: "flying"}},
		{"m0 m1 m3 m5", workflow.ListOptions{Active: true}},
		{"m0 m1 m2 m5", workflow.ListOptions{Match: match("org_id", "acme")}},
		{"m0 m1 m5", workflow.ListOptions{Match: match("org_id", "acme"), Active: true}},
		{"m1", workflow.ListOptions{Match: match("replica_count", uint32(3))}},
		{"m5", workflow.ListOptions{Match: map[string]any{"count": 9, "org_id": "acme"}}},
		{"", workflow.ListOptions{Match: match("org_id", "acme"), Phase: "none"}},
		{"m0 m1", workflow.ListOptions{Limit: 2}},
		{"m2 m3 m4", workflow.ListOptions{Offset: 2, Limit: 3}},
		{"m4 m5", workflow.ListOptions{After: "m3"}},
		{"m4", workflow.ListOptions{Match: match("org_id", "other"), Offset: 0}},
		{"m5", workflow.ListOptions{After: "m4x", Limit: 1}},
		{"m3", workflow.ListOptions{Contains: "3"}},
		{"m1", workflow.ListOptions{Contains: "m", Phase: "flying", Limit: 1}},
		{"", workflow.ListOptions{Contains: "m3", Active: true, After: "m3"}},
	} {
		if got := listIDs(t, r, c.opts); got != c.want {
			t.Errorf("%+v: %q, want %q", c.opts, got, c.want)
		}
	}
	for name, value := range map[string]any{"replica_count": 3, "org_id": 3, "count": int64(9)} {
		if got := listIDs(t, r, workflow.ListOptions{Match: match(name, value)}); got != "" {
			t.Errorf("match %s=%v found %q", name, value, got)
		}
	}
	if _, err := r.List(ctx, survey, workflow.ListOptions{Match: match("unknown", "x")}); !errors.Is(err, workflow.ErrUnknownField) || !strings.Contains(err.Error(), "org_id") {
		t.Errorf("match of an unknown field: %v", err)
	}
	if got := listIDs(t, r, workflow.ListOptions{Match: match("org_id", "")}); got != "m3" {
		t.Errorf("match of an unset field found %q", got)
	}
	page, err := r.Query(ctx, survey, workflow.ListOptions{Limit: 4})
	must(t, err)
	next, err := r.Query(ctx, survey, workflow.ListOptions{Limit: 4, After: page.Next})
	must(t, err)
	if page.Next != "m3" || page.Total != 6 || len(next.Records) != 2 || next.Next != "" {
		t.Errorf("pages: %+v, %+v", page, next)
	}
	rec, err := r.record(ctx, "m3")
	must(t, err)
	if _, err := r.List(ctx, survey, workflow.ListOptions{Fresh: true}); err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the server's times", func() bool {
		return listIDs(t, r, workflow.ListOptions{UpdatedAfter: rec.UpdatedAt}) == "m4 m5"
	})
	if _, err := r.List(ctx, survey, workflow.ListOptions{Limit: -1}); err == nil {
		t.Error("a negative limit is accepted")
	}
	if _, err := r.List(ctx, "unknown", workflow.ListOptions{}); !errors.Is(err, workflow.ErrWorkflowNotRegistered) {
		t.Errorf("list: %v", err)
	}
}

func TestOwnWritesAreSeenAtOnce(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	r, other := rigOn(t, b), rigOn(t, b)
	ctx := testContext(t)
	must(t, r.Ready(ctx))
	for i := range 200 {
		id := fmt.Sprintf("m%03d", i)
		r.create(t, id, "planning")
		if n := len(strings.Fields(listIDs(t, r, workflow.ListOptions{Phase: "planning"}))); n != 1 {
			t.Fatalf("%s is not seen: %d", id, n)
		}
		r.move(t, id, "aborted")
		if n := len(strings.Fields(listIDs(t, r, workflow.ListOptions{Active: true}))); n != 0 {
			t.Fatalf("the move of %s is not seen", id)
		}
		if i%2 == 0 {
			must(t, r.missions.Delete(ctx, id))
		}
		if n := len(strings.Fields(listIDs(t, r, workflow.ListOptions{}))); n != (i+1)/2 {
			t.Fatalf("the deletion of %s is not seen: %d", id, n)
		}
		// Another process that asks for Fresh sees them too.
		list, err := other.missions.List(ctx, workflow.ListOptions{Fresh: true})
		must(t, err)
		if len(list) != (i+1)/2 {
			t.Fatalf("another process sees %d of %d", len(list), (i+1)/2)
		}
	}
}

func TestFamilies(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	for id, parent := range map[string]string{"root": "", "child": "root", "grandchild": "child", "orphan": "unknown", "a": "b", "b": "c", "c": "a"} {
		must(t, r.missions.Create(ctx, &Mission{ID: id, State: "planning", Parent: parent}))
	}
	names := func(list []workflow.Participant) string {
		s := ""
		for _, p := range list {
			s += p.EntityID() + " "
		}
		return s
	}
	got, err := r.Ancestors(ctx, "grandchild")
	if names(got) != "child root " || err != nil {
		t.Errorf("ancestors: %s, %v", names(got), err)
	}
	if got, err := r.Ancestors(ctx, "root"); len(got) != 0 || got == nil || err != nil {
		t.Errorf("ancestors of a root: %v, %v", got, err)
	}
	if got, err := r.Ancestors(ctx, "orphan"); len(got) != 0 || err != nil {
		t.Errorf("ancestors of an orphan: %v, %v", got, err)
	}
	if _, err := r.Ancestors(ctx, "unknown"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("ancestors of an unknown entity: %v", err)
	}
	if got, err := r.Ancestors(ctx, "a"); names(got) != "b c " || !errors.Is(err, workflow.ErrAncestorCycle) {
		t.Errorf("ancestors in a cycle: %s, %v", names(got), err)
	}
	if got, err := r.Children(ctx, "root"); names(got) != "child " || err != nil {
		t.Errorf("children: %s, %v", names(got), err)
	}
	if got, err := r.LookupByEntityID(ctx, "child"); err != nil || got.EntityID() != "child" {
		t.Errorf("look up: %v, %v", got, err)
	}
}

func TestWatchTellsEveryWriteOnce(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(testContext(t))
	r.create(t, "m1", "planning")
	r.create(t, "m2", "planning")
	r.move(t, "m1", "flying")
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	plain, err := r.missions.Watch(ctx)
	must(t, err)
	states := []string{(<-plain).ID, (<-plain).ID}
	var got []string
	next := func() workflow.Event {
		e := <-events
		got = append(got, fmt.Sprintf("%s %s %s>%s %s %d", e.Kind, e.Record.EntityID, e.From, e.Record.Phase, e.Source, e.Revision))
		return e
	}
	for next().Kind != workflow.EventSynced {
	}
	must(t, r.missions.Transition(ctx, "m1", "landing", "operator", "home"))
	must(t, r.missions.Update(ctx, "m2", func(m *Mission) error { m.Count++; return nil }))
	must(t, r.missions.Delete(ctx, "m2"))
	next()
	next()
	next()
	want := "put m2 >planning framework 2; put m1 planning>flying component 3; synced  >  0; " +
		"put m1 flying>landing operator 4; put m2 >planning  5; deleted m2 planning> framework 6"
	if strings.Join(got, "; ") != want {
		t.Errorf("told:\n%s\nwant\n%s", strings.Join(got, "; "), want)
	}
	for range 2 {
		m := <-plain
		states = append(states, m.ID+" "+m.State)
	}
	if s := strings.Join(states, ", "); s != "m2, m1, m1 landing, m2 planning" {
		t.Errorf("watch: %s", s)
	}
	cancel()
	for range events {
	}
	for range plain {
	}
	ended, err := r.Watch(testContext(t), survey)
	must(t, err)
	must(t, r.Close())
	for range ended {
	}
}

func TestDegradedRecordsDoNotHideTheOthers(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	kv, err := r.js.KeyValue(ctx, "MISSIONS")
	must(t, err)
	r.create(t, "good", "flying")
	for key, record := range map[string]string{
		"mission.text":    "this is not JSON",
		"mission.null":    "null",
		"mission.array":   "[1,2]",
		"mission.other":   `{"entity_id":"another","phase":"flying"}`,
		"mission.unknown": `{"entity_id":"unknown","phase":"hovering"}`,
		"mission.wrong":   `{"entity_id":7,"phase":"flying"}`,
	} {
		_, err := kv.Put(ctx, key, []byte(record))
		must(t, err)
	}
	_, err = r.js.PublishMsg(ctx, &nats.Msg{Subject: "$KV.MISSIONS.mission.newer", Header: nats.Header{"Lifecycle": {"x|drone-survey|0|3|flying|||"}}, Data: []byte(`{"entity_id":"newer","phase":["flying"]}`)})
	must(t, err)
	if got := listIDs(t, r, workflow.ListOptions{Fresh: true}); got != "good unknown" {
		t.Errorf("list: %s", got)
	}
	if got := listIDs(t, r, workflow.ListOptions{Active: true}); got != "good unknown" {
		t.Errorf("active: %s: an unknown phase is active", got)
	}
	degraded, err := r.Degraded(ctx, survey)
	must(t, err)
	var keys []string
	for _, rec := range degraded {
		keys = append(keys, strings.TrimPrefix(rec.Key, "mission."))
		var d *workflow.DegradedError
		if !errors.As(rec.Degraded, &d) || d.Key != rec.Key || d.Bucket != "MISSIONS" {
			t.Errorf("%s: %v", rec.Key, rec.Degraded)
		}
	}
	if got := strings.Join(keys, " "); got != "array newer null other text unknown wrong" {
		t.Errorf("degraded: %s", got)
	}
	for _, id := range []string{"text", "null", "array", "other", "wrong", "newer"} {
		if _, err := r.missions.Get(ctx, id); !errors.Is(err, workflow.ErrDegraded) {
			t.Errorf("get %s: %v", id, err)
		}
		if err := r.missions.Transition(ctx, id, "landing", "rule", ""); !errors.Is(err, workflow.ErrDegraded) {
			t.Errorf("transition of %s: %v", id, err)
		}
	}
	if m, err := r.missions.Get(ctx, "unknown"); err != nil || m.IsTerminal() {
		t.Errorf("get one in an unknown phase: %v, %v", m, err)
	}
	if err := r.missions.Transition(ctx, "unknown", "landing", "rule", ""); !errors.Is(err, workflow.ErrDegraded) || !errors.Is(err, workflow.ErrInvalidTransition) {
		t.Errorf("transition from an unknown phase: %v", err)
	}
	if err := r.missions.Complete(ctx, "unknown"); !errors.Is(err, workflow.ErrDegraded) || !errors.Is(err, workflow.ErrInvalidTransition) {
		t.Errorf("complete one in an unknown phase: %v", err)
	}
	must(t, r.missions.Delete(ctx, "text"))
	if degraded, _ := r.Degraded(ctx, survey); len(degraded) != 6 {
		t.Errorf("%d are degraded after one was deleted", len(degraded))
	}
}

func TestMigration(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	old := rigOn(t, b)
	old.create(t, "m1", "planning")
	old.create(t, "m2", "planning")
	old.create(t, "m3", "planning")
	ctx := testContext(t)
	must(t, old.missions.Update(ctx, "m3", func(m *Mission) error { m.Owner = "broken"; return nil }))
	current := rigOn(t, b, workflow.WithVersion(1, func(from int, record []byte) ([]byte, error) {
		if from != 0 {
			return nil, fmt.Errorf("from version %d", from)
		}
		if strings.Contains(string(record), "broken") {
			panic("did not think of that")
		}
		return []byte(strings.Replace(string(record), `"count":0`, `"count":100`, 1)), nil
	}))
	m, err := current.missions.Get(ctx, "m1")
	must(t, err)
	if m.Count != 100 {
		t.Errorf("not migrated in reading: %+v", m)
	}
	must(t, current.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))
	n, err := current.Migrate(ctx, survey)
	if n != 1 || !errors.Is(err, workflow.ErrDegraded) || !strings.Contains(err.Error(), "did not think of that") {
		t.Errorf("migrated %d: %v", n, err)
	}
	if n, _ := current.Migrate(ctx, survey); n != 0 {
		t.Errorf("migrated %d again", n)
	}
	for id, count := range map[string]int{"m1": 101, "m2": 100} {
		if m, err := current.missions.Get(ctx, id); err != nil || m.Count != count {
			t.Errorf("%s: %+v, %v", id, m, err)
		}
	}
	// The old process goes on with the new records.
	must(t, old.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))
	if m, err := current.missions.Get(ctx, "m1"); err != nil || m.Count != 102 {
		t.Errorf("after the old process wrote: %+v, %v", m, err)
	}
}

func TestOperatorPatches(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	patch := func(name string, value any, opts ...workflow.WriteOption) error {
		return r.UpdateFromOperator(ctx, survey, "m1", map[string]any{name: value}, opts...)
	}
	for name, err := range map[string]error{
		"unknown field": patch("owner", "x"), "protected": patch("internal_state", "x"), "id": patch("entity_id", "x"),
		"phase": patch("phase", "flying"), "go name": patch("Owner", "x"), "nothing": r.UpdateFromOperator(ctx, survey, "m1", nil),
		"one of two": r.UpdateFromOperator(ctx, survey, "m1", map[string]any{"owner_org_id": "x", "count": 1}),
	} {
		if !errors.Is(err, workflow.ErrFieldNotOperatorWritable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{"an int": patch("replica_count", 3), "a float": patch("replica_count", 3.0), "nil": patch("replica_count", nil)} {
		if !errors.Is(err, workflow.ErrFieldType) || !strings.Contains(err.Error(), "uint32") {
			t.Errorf("%s: %v", name, err)
		}
	}
	var would workflow.Participant
	must(t, patch("replica_count", uint32(5), workflow.DryRun(&would), workflow.IfMatch(1)))
	if m := would.(*Mission); m.Replicas != 5 {
		t.Errorf("dry run: %+v", m)
	}
	var is *workflow.RevisionError
	if err := patch("replica_count", uint32(5), workflow.IfMatch(7)); !errors.As(err, &is) || is.Is != 1 || is.Want != 7 || !errors.Is(err, workflow.ErrRevisionMismatch) {
		t.Errorf("another revision: %v", err)
	}
	if rec, _ := r.record(ctx, "m1"); rec.Revision != 1 || *rec.Participant.(*Mission) != (Mission{ID: "m1", State: "planning"}) {
		t.Errorf("something was written: %+v", rec)
	}
	var revision uint64
	must(t, patch("replica_count", uint32(5), workflow.IfMatch(1), workflow.RevisionTo(&revision)))
	must(t, patch("owner_org_id", "me", workflow.IfMatch(revision)))
	if m, _ := r.missions.Get(ctx, "m1"); m.Replicas != 5 || m.Owner != "me" {
		t.Errorf("patched: %+v", m)
	}
	must(t, r.AssertRuleWritable(survey, "replica_count"))
	for _, name := range []string{"phase", "entity_id", "count", "typo"} {
		if err := r.AssertRuleWritable(survey, name); !errors.Is(err, workflow.ErrFieldNotOperatorWritable) {
			t.Errorf("rule on %s: %v", name, err)
		}
	}
	if typ, err := r.FieldType(survey, "replica_count"); err != nil || typ.Kind().String() != "uint32" {
		t.Errorf("type: %v, %v", typ, err)
	}
}

func TestDeadlines(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	soon := workflow.WithDeadline("flying", "aborted", 300*time.Millisecond)
	ctx := testContext(t)
	first := rigOn(t, b, soon)
	first.create(t, "m0", "flying") // comes due while no process runs Deadlines
	first.create(t, "waits", "planning")
	rec, err := first.record(ctx, "m0")
	must(t, err)
	if rec.Due.Sub(rec.Since) != 300*time.Millisecond {
		t.Errorf("due %v after it flew", rec.Due.Sub(rec.Since))
	}
	must(t, first.Close())

	// Two processes run Deadlines at once: the leader, and an old leader that
	// does not know that it was replaced.
	r, other := rigOn(t, b, soon), rigOn(t, b, soon)
	own, cancel := context.WithCancel(ctx)
	done := make(chan error, 2)
	go func() { done <- r.Deadlines(own) }()
	go func() { done <- other.Deadlines(own) }()
	for i := range 20 {
		r.create(t, fmt.Sprintf("n%d", i), "flying")
	}
	for range 4 { // each entry restarts the time, an update does not
		must(t, r.missions.Update(ctx, "n0", func(m *Mission) error { m.Count++; return nil }))
	}
	brokertest.Await(t, "all deadlines", func() bool {
		list, err := r.missions.List(ctx, workflow.ListOptions{Phase: "aborted", Fresh: true})
		return err == nil && len(list) == 21
	})
	cancel()
	must(t, <-done)
	must(t, <-done)
	for _, id := range []string{"m0", "n0", "n19"} {
		events, err := r.missions.History(ctx, id)
		must(t, err)
		last := events[len(events)-1]
		if len(events) != 2 || last.To != "aborted" || last.Triggered != workflow.TransitionSourceFramework || last.Note != "deadline: 300ms in flying" || last.At.Sub(events[0].At) < 300*time.Millisecond {
			t.Errorf("%s: %+v", id, events)
		}
	}
	if m, _ := r.missions.Get(ctx, "waits"); m.State != "planning" {
		t.Errorf("one without a deadline: %+v", m)
	}
}

func TestMutatorErrorsWriteNothing(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	r, other := rigOn(t, b), rigOn(t, b)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	mine := errors.New("mine")
	if err := r.missions.TransitionWith(ctx, "m1", "flying", "rule", "", func(*Mission) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	// The Manager refuses only after it has read the record again, not because of
	// the view's record.
	other.move(t, "m1", "flying")
	must(t, r.missions.Transition(ctx, "m1", "landing", "rule", ""))
	if events, _ := r.missions.History(ctx, "m1"); len(events) != 3 {
		t.Errorf("history: %+v", events)
	}
}
