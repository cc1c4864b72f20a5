package workflow_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// Mission2 is the Mission of the next release: it has more fields, one of them inside
// of an object.
type Mission2 struct {
	Mission
	Battery int64          `json:"battery"`
	Site    *Site          `json:"site,omitempty"`
	Legs    []Leg          `json:"legs,omitempty"`
	Labels  map[string]any `json:"labels,omitempty"`
}

type Site struct {
	Name string `json:"name"`
}

type Leg struct {
	Name  string `json:"name" lifecycle:"key"`
	Miles int    `json:"miles"`
}

func (m *Mission2) IsTerminal() bool { return workflow.DefaultIsTerminal(m, table2) }

// table2 has one more phase.
var table2 = func() workflow.Transitions {
	t := workflow.Transitions{}
	for from, to := range table {
		t[from] = to
	}
	t["hovering"] = []string{"flying", "landing"}
	t["flying"] = append([]string{"hovering"}, t["flying"]...)
	return t
}()

// rig2 is a Manager of the next release on a broker.
func rig2(t testing.TB, b *broker.Broker, opts ...workflow.RegisterOption) (*workflow.Manager, workflow.Typed[*Mission2]) {
	t.Helper()
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	t.Cleanup(func() { must(t, m.Close()) })
	must(t, m.Register(survey, func() workflow.Participant { return new(Mission2) }, table2, opts...))
	return m, workflow.For[*Mission2](m, survey)
}

func full(id string) *Mission2 {
	return &Mission2{
		Mission: Mission{ID: id, State: "flying", Count: 1}, Battery: 1<<53 + 1, Site: &Site{Name: "north"},
		Legs: []Leg{{"a", 1}, {"b", 2}}, Labels: map[string]any{"k": "v"},
	}
}

// TestOldProgramKeepsNewFields does every write of an older program to records of a
// newer one.
func TestOldProgramKeepsNewFields(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	old := rigOn(t, b)
	_, young := rig2(t, b)
	ctx := testContext(t)
	for name, write := range map[string]func(id string) error{
		"Transition": func(id string) error {
			return old.missions.Transition(ctx, id, "landing", workflow.TransitionSourceRule, "")
		},
		"TransitionWith": func(id string) error {
			return old.missions.TransitionWith(ctx, id, "landing", workflow.TransitionSourceRule, "", func(m *Mission) error { m.Count++; return nil })
		},
		"Update": func(id string) error {
			return old.missions.Update(ctx, id, func(m *Mission) error { m.Count++; return nil })
		},
		"UpdateFromOperator": func(id string) error {
			return old.UpdateFromOperator(ctx, survey, id, map[string]any{"owner_org_id": "acme"})
		},
		"Complete": func(id string) error {
			return errors.Join(old.missions.Transition(ctx, id, "landing", workflow.TransitionSourceRule, ""), old.missions.Complete(ctx, id))
		},
		"Fail": func(id string) error {
			return errors.Join(old.missions.Transition(ctx, id, "landing", workflow.TransitionSourceRule, ""), old.missions.Fail(ctx, id, "why"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := full(name)
			must(t, young.Create(ctx, want))
			must(t, write(name))
			got, err := young.Get(ctx, name)
			must(t, err)
			if reflect.DeepEqual(got.Mission, want.Mission) {
				t.Error("the older program's change is not stored")
			}
			got.Mission = want.Mission
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// TestOldProgramSeesNewerVersion lets an older program work with records of a version
// that it does not know, as far as they decode and its table has their phase.
func TestOldProgramSeesNewerVersion(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	old := rigOn(t, b)
	_, young := rig2(t, b, workflow.WithVersion(3, func(_ int, record []byte) ([]byte, error) { return record, nil }))
	ctx := testContext(t)
	want := full("m")
	must(t, young.Create(ctx, want))
	if got := listIDs(t, old, workflow.ListOptions{Fresh: true}); got != "m" {
		t.Errorf("the older program lists %q", got)
	}
	if _, err := old.missions.Get(ctx, "m"); err != nil {
		t.Error(err)
	}
	must(t, old.missions.Update(ctx, "m", func(m *Mission) error { m.Count = 7; return nil }))
	must(t, young.Transition(ctx, "m", "hovering", workflow.TransitionSourceRule, ""))
	if got := listIDs(t, old, workflow.ListOptions{Fresh: true, Active: true}); got != "m" {
		t.Errorf("in a phase that it does not know the older program lists %q", got)
	}
	if err := old.missions.Transition(ctx, "m", "landing", workflow.TransitionSourceRule, ""); !errors.Is(err, workflow.ErrInvalidTransition) {
		t.Errorf("from a phase that it does not know: %v", err)
	}
	must(t, young.Transition(ctx, "m", "landing", workflow.TransitionSourceRule, ""))
	old.move(t, "m", "completed")
	got, err := young.Get(ctx, "m")
	must(t, err)
	if got.Count != 7 || got.Phase() != "completed" || got.Battery != want.Battery || !reflect.DeepEqual(got.Legs, want.Legs) {
		t.Errorf("got %+v", got)
	}
	e, err := old.js.KeyValue(ctx, "MISSIONS")
	must(t, err)
	rec, err := e.Get(ctx, "mission.m")
	must(t, err)
	s, err := old.js.Stream(ctx, "KV_MISSIONS")
	must(t, err)
	msg, err := s.GetMsg(ctx, rec.Revision())
	must(t, err)
	if v := strings.Split(msg.Header.Get("Lifecycle"), "|")[3]; v != "3" {
		t.Errorf("the older program stored version %q", v)
	}
}

// TestMigrateKeepsUnknownFields migrates a record with a field that the program does
// not know.
func TestMigrateKeepsUnknownFields(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	_, young := rig2(t, b)
	ctx := testContext(t)
	want := full("m")
	must(t, young.Create(ctx, want))
	current := rigOn(t, b, workflow.WithVersion(1, func(_ int, record []byte) ([]byte, error) { return record, nil }))
	must(t, current.Ready(ctx))
	if n, err := current.Migrate(ctx, survey); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if got, err := young.Get(ctx, "m"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestLargeNumbersAndForeignFieldsSurvive writes to a record of another program, with
// names in another case.
func TestLargeNumbersAndForeignFieldsSurvive(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	stored := `{"Entity_ID":"m", "PHASE":"flying", "big":18446744073709551615, "deep":{"n":[9007199254740993,{"x":null}]}, "count":1, "Count":2}`
	_, err := r.js.PublishMsg(ctx, &nats.Msg{Subject: "$KV.MISSIONS.mission.m", Data: []byte(stored)})
	must(t, err)
	r.move(t, "m", "landing")
	must(t, r.missions.Update(ctx, "m", func(m *Mission) error { m.Count++; m.Owner = "acme"; return nil }))
	s, err := r.js.Stream(ctx, "KV_MISSIONS")
	must(t, err)
	msg, err := s.GetLastMsgForSubject(ctx, "$KV.MISSIONS.mission.m")
	must(t, err)
	want := `{"Entity_ID":"m","PHASE":"landing","big":18446744073709551615,"deep":{"n":[9007199254740993,{"x":null}]},"count":3,"Count":3,"owner_org_id":"acme"}`
	var got, wanted map[string]json.RawMessage
	must(t, json.Unmarshal(msg.Data, &got))
	must(t, json.Unmarshal([]byte(want), &wanted))
	if !reflect.DeepEqual(got, wanted) {
		t.Errorf("got %s, want %s", msg.Data, want)
	}
}

// TestGenerationsWorkSideBySide lets two generations write the same entities at once.
// Each counts in a field of its own.
func TestGenerationsWorkSideBySide(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	old := rigOn(t, b)
	_, young := rig2(t, b)
	ctx := testContext(t)
	want := full("m")
	want.Battery = 0
	must(t, young.Create(ctx, want))
	const n = 40
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range n {
				if err := old.missions.Update(ctx, "m", func(m *Mission) error { m.Replicas++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range n {
				if err := young.Update(ctx, "m", func(m *Mission2) error { m.Battery++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := young.Get(ctx, "m")
	must(t, err)
	if got.Replicas != 4*n || got.Battery != 4*n || !reflect.DeepEqual(got.Legs, want.Legs) || got.Site == nil {
		t.Errorf("got %+v", got)
	}
}
