package workflow_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// tour has methods that panic on unexpected values.
type tour struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
	From  string `json:"from"`
	Stops stops  `json:"stops,omitempty"`
}

func (t *tour) EntityID() string { return t.ID }
func (t *tour) Workflow() string { return "tour" }
func (t *tour) Phase() string    { return t.State }
func (t *tour) IsTerminal() bool { return false }
func (t *tour) KVBucket() string { return "MISSIONS" }
func (t *tour) KVKey(id string) string {
	if strings.HasPrefix(id, "x") {
		panic("an id of another kind")
	}
	return "tour." + id
}
func (t *tour) ParentEntityID() string {
	if t.From == "" {
		return ""
	}
	return t.From[4:]
}

type stops string

func (s *stops) UnmarshalJSON(data []byte) error {
	*s = stops(string(data)[1:4])
	return nil
}

func TestParticipantsThatPanicAreDegraded(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer m.Close()
	must(t, m.Register("tour", func() workflow.Participant { return new(tour) }, workflow.Transitions{"a": {"b"}, "b": {}}))
	ctx := testContext(t)
	kv, err := b.JetStream().KeyValue(ctx, "MISSIONS")
	must(t, err)
	for key, record := range map[string]string{
		"tour.stops":  `{"id":"stops","phase":"a","stops":1}`,
		"tour.key":    `{"id":"x","phase":"a"}`,
		"tour.parent": `{"id":"parent","phase":"a","from":"abc"}`,
	} {
		_, err := kv.Put(ctx, key, []byte(record))
		must(t, err)
	}
	list, err := m.List(ctx, "tour", workflow.ListOptions{Fresh: true})
	if err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	degraded, err := m.Degraded(ctx, "tour")
	must(t, err)
	if len(degraded) != 3 {
		t.Errorf("%d are degraded: %+v", len(degraded), degraded)
	}
	for _, rec := range degraded {
		if !strings.Contains(rec.Degraded.Error(), "panic") {
			t.Errorf("%s: %v", rec.Key, rec.Degraded)
		}
	}
	if _, err := m.Get(ctx, "tour", "xyz"); !errors.Is(err, workflow.ErrInvalidEntityID) {
		t.Errorf("get: %v", err)
	}
	if _, err := m.LookupByEntityID(ctx, "xyz"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("look up: %v", err)
	}
	if err := m.Create(ctx, &tour{ID: "bad", State: "a", From: "abc"}); !errors.Is(err, workflow.ErrInvalidParticipant) {
		t.Errorf("create one whose parent panics: %v", err)
	}
}

func TestNilsAreRefused(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	if err := r.missions.Update(ctx, "m1", nil); err == nil || !strings.Contains(err.Error(), "mutator is nil") {
		t.Errorf("update without a mutator: %v", err)
	}
	if err := r.missions.Create(ctx, nil); !errors.Is(err, workflow.ErrInvalidParticipant) {
		t.Errorf("create a nil *Mission: %v", err)
	}
	m := workflow.NewManager(nil, brokertest.Quiet())
	defer m.Close()
	if err := m.Register(survey, newMission, table); err == nil || !strings.Contains(err.Error(), "JetStream") {
		t.Errorf("register without a JetStream: %v", err)
	}
}

// raid is an entity of another workflow in the bucket of missions, with keys of
// the same form.
type raid struct {
	Mission
	Loot string `json:"loot"`
}

func (r *raid) Workflow() string { return "raid" }

func TestKeysOfAnotherWorkflow(t *testing.T) {
	r := newRig(t)
	must(t, r.Register("raid", func() workflow.Participant { return new(raid) }, table))
	ctx := testContext(t)
	must(t, r.Ready(ctx))
	must(t, r.Create(ctx, &raid{Mission: Mission{ID: "r1", State: "planning"}, Loot: "gold"}))
	for name, err := range map[string]error{
		"transition": r.missions.Transition(ctx, "r1", "flying", "rule", ""),
		"update":     r.missions.Update(ctx, "r1", func(*Mission) error { return nil }),
		"delete":     r.missions.Delete(ctx, "r1"),
		"get":        func() error { _, err := r.missions.Get(ctx, "r1"); return err }(),
	} {
		if !errors.Is(err, workflow.ErrDegraded) || !strings.Contains(err.Error(), `workflow "raid"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.missions.Create(ctx, &Mission{ID: "r1", State: "planning"}); !errors.Is(err, workflow.ErrEntityExists) {
		t.Errorf("create: %v", err)
	}
	got, err := r.Get(ctx, "raid", "r1")
	must(t, err)
	if got := got.(*raid); got.Loot != "gold" || got.State != "planning" {
		t.Errorf("got %+v", got)
	}
}

// TestWatchHearsDeletionsByOthers deletes with the key-value API, which does not
// name the record's workflow.
func TestWatchHearsDeletionsByOthers(t *testing.T) {
	r := newRig(t)
	must(t, r.Register("a-raid", func() workflow.Participant { return new(aRaid) }, table))
	ctx := testContext(t)
	must(t, r.Create(ctx, &aRaid{Mission{ID: "r1", State: "planning"}}))
	r.create(t, "m1", "planning")
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	others, err := r.WatchEvents(ctx, "a-raid")
	must(t, err)
	for _, ch := range []<-chan workflow.Event{events, others} {
		for e := range ch {
			if e.Kind == workflow.EventSynced {
				break
			}
		}
	}
	kv, err := r.js.KeyValue(ctx, "MISSIONS")
	must(t, err)
	must(t, kv.Delete(ctx, "mission.m1"))
	must(t, kv.Delete(ctx, "araid.r1"))
	if e := <-events; e.Kind != workflow.EventDeleted || e.Record.EntityID != "m1" {
		t.Errorf("told %+v", e)
	}
	if e := <-others; e.Kind != workflow.EventDeleted || e.Record.EntityID != "r1" {
		t.Errorf("told %+v", e)
	}
}

type aRaid struct{ Mission }

func (r *aRaid) Workflow() string       { return "a-raid" }
func (r *aRaid) KVKey(id string) string { return "araid." + id }

func TestConnectionClosedInTheMiddleOfAWrite(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	p := muffle(t, srv.ClientURL())
	here := rigOn(t, srv)
	nc, err := nats.Connect(p.url())
	must(t, err)
	b := brokertest.Connect(t, broker.Config{URL: p.url()})
	there := rigOn(t, b)
	nc.Close()
	ctx := testContext(t)
	here.create(t, "m1", "planning")
	_, err = there.missions.List(ctx, workflow.ListOptions{Fresh: true})
	must(t, err)
	p.mute.Store(true)
	done := make(chan error, 1)
	go func() { done <- there.missions.Transition(ctx, "m1", "flying", "operator", "") }()
	brokertest.Await(t, "the write to be carried out", func() bool {
		got, err := here.missions.Get(ctx, "m1")
		return err == nil && got.State == "flying"
	})
	b.Conn().Close()
	select {
	case err := <-done:
		if !errors.Is(err, workflow.ErrOutcomeUnknown) {
			t.Errorf("the server carried out the write, and the error says: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the write waits for a connection that will never come back")
	}
	if err := there.missions.Transition(ctx, "m1", "landing", "operator", ""); err == nil || errors.Is(err, workflow.ErrOutcomeUnknown) {
		t.Errorf("on a closed connection: %v", err)
	}
}

func TestWriteWithAContextThatIsOver(t *testing.T) {
	r := newRig(t)
	r.create(t, "m1", "planning")
	must(t, r.Ready(testContext(t)))
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 {
		err := r.missions.Transition(over, "m1", "flying", "rule", "")
		if !errors.Is(err, context.Canceled) || errors.Is(err, workflow.ErrOutcomeUnknown) || errors.Is(err, workflow.ErrUpdateRetriesExhausted) {
			t.Fatalf("got %v", err)
		}
	}
	if rec, err := r.record(testContext(t), "m1"); err != nil || rec.Revision != 1 {
		t.Errorf("%+v, %v", rec, err)
	}
}

func TestAfterClose(t *testing.T) {
	r := newRig(t)
	r.create(t, "m1", "planning")
	ctx := testContext(t)
	must(t, r.Ready(ctx))
	deadlines := make(chan error, 1)
	go func() { deadlines <- r.Deadlines(ctx) }()
	must(t, r.Close())
	_, lookup := r.LookupByEntityID(ctx, "m1")
	_, children := r.Children(ctx, "m1")
	_, ancestors := r.Ancestors(ctx, "m1")
	_, list := r.missions.List(ctx, workflow.ListOptions{})
	for name, err := range map[string]error{
		"ready": r.Ready(ctx), "look up": lookup, "children": children, "ancestors": ancestors, "list": list,
		"running deadlines": <-deadlines, "deadlines": r.Deadlines(ctx), "update": r.missions.Update(ctx, "m1", func(*Mission) error { return nil }),
	} {
		if !errors.Is(err, workflow.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHistorySkipsUnreadableRecords(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	kv, err := r.js.KeyValue(ctx, "MISSIONS")
	must(t, err)
	_, err = kv.PutString(ctx, "mission.m1", "no JSON")
	must(t, err)
	_, err = kv.PutString(ctx, "mission.m1", `{"entity_id":"m1","phase":"flying"}`)
	must(t, err)
	events, err := r.missions.History(ctx, "m1")
	must(t, err)
	if len(events) != 2 || events[1].From != "planning" || events[1].To != "flying" {
		t.Errorf("history: %+v", events)
	}
}

func TestLongIDsAndNotes(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	if err := r.missions.Create(ctx, &Mission{ID: strings.Repeat("x", 5000), State: "planning"}); !errors.Is(err, workflow.ErrInvalidEntityID) {
		t.Errorf("got %v", err)
	}
	r.create(t, strings.Repeat("x", 1000), "planning")
	r.create(t, "m1", "planning")
	must(t, r.missions.Transition(ctx, "m1", "flying", "rule", strings.Repeat("ä", 100_000)))
	events, err := r.missions.History(ctx, "m1")
	must(t, err)
	note := events[len(events)-1].Note
	if len(note) > workflow.MaxNote || len(note) < workflow.MaxNote-10 || !strings.HasSuffix(note, "ä…") {
		t.Errorf("of a note of 200 kB %d bytes are stored, which end in %q", len(note), note[len(note)-10:])
	}
	large := strings.Repeat("s", int(r.b.Conn().MaxPayload())-150)
	err = r.missions.Transition(ctx, "m1", "landing", "rule", strings.Repeat("n", 1000), workflow.Key("k"))
	must(t, err)
	err = r.missions.Update(ctx, "m1", func(m *Mission) error { m.Secret = large; return nil }, workflow.Key(strings.Repeat("k", 500)))
	if err == nil || errors.Is(err, workflow.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "with its headers") {
		t.Errorf("a record that is too large with its headers: %v", err)
	}
	if r.b.Conn().Statistics.Reconnects != 0 {
		t.Error("the connection was lost")
	}
}

func TestIfMatchZero(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	if err := r.missions.Transition(ctx, "m1", "flying", "rule", "", workflow.IfMatch(0)); !errors.Is(err, workflow.ErrRevisionMismatch) {
		t.Errorf("got %v", err)
	}
}

// TestUpdatesLeaveTheTimeOfEntryAlone updates entities before the view knows from
// the server when they were stored: this process's clock may differ.
func TestUpdatesLeaveTheTimeOfEntryAlone(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	must(t, r.Ready(ctx))
	for range 20 {
		id := "m" + nextID()
		r.create(t, id, "planning")
		for range 2 {
			must(t, r.missions.Update(ctx, id, func(m *Mission) error { m.Count++; return nil }))
		}
		rec, err := r.record(ctx, id)
		must(t, err)
		events, err := r.missions.History(ctx, id)
		must(t, err)
		if !rec.Since.Equal(events[0].At) {
			t.Fatalf("in its phase since %v, and entered it at %v", rec.Since, events[0].At)
		}
	}
}
