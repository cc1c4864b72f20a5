package workflow_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestListByRangeAndOrder selects by the values of an indexed field between two others,
// and orders by them, alone and with the other conditions.
func TestListByRangeAndOrder(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	for i, replicas := range []uint32{5, 1, 4, 4, 9, 0} {
		must(t, r.missions.Create(ctx, &Mission{ID: fmt.Sprintf("m%d", i), State: []string{"planning", "flying"}[i%2], Replicas: replicas, Org: strings.Repeat("x", i), Count: i % 3}))
	}
	between := func(from, to any) map[string]workflow.Range {
		return map[string]workflow.Range{"replica_count": {Min: from, Max: to}}
	}
	for _, c := range []struct {
		opts workflow.ListOptions
		want string
	}{
		{workflow.ListOptions{Range: between(uint32(4), uint32(5))}, "m0 m2 m3"},
		{workflow.ListOptions{Range: between(nil, uint32(1))}, "m1 m5"},
		{workflow.ListOptions{Range: between(uint32(6), nil)}, "m4"},
		{workflow.ListOptions{Range: between(uint32(6), uint32(8))}, ""},
		{workflow.ListOptions{Range: between(uint32(4), nil), Phase: "planning", After: "m0"}, "m2 m4"},
		{workflow.ListOptions{Range: map[string]workflow.Range{"replica_count": {Min: uint32(4)}, "org_id": {Max: "xx"}}}, "m0 m2"},
		{workflow.ListOptions{OrderBy: "replica_count"}, "m5 m1 m2 m3 m0 m4"},
		{workflow.ListOptions{OrderBy: "replica_count", Descending: true}, "m4 m0 m2 m3 m1 m5"},
		{workflow.ListOptions{OrderBy: "replica_count", Limit: 2, Offset: 1}, "m1 m2"},
		{workflow.ListOptions{OrderBy: "replica_count", Offset: 5}, "m4"},
		{workflow.ListOptions{OrderBy: "org_id", Descending: true, Match: map[string]any{"count": 1}}, "m4 m1"},
		{workflow.ListOptions{OrderBy: "replica_count", Phase: "nowhere"}, ""},
	} {
		if got := listIDs(t, r, c.opts); got != c.want {
			t.Errorf("%+v: %q, want %q", c.opts, got, c.want)
		}
	}
	page, err := r.Query(ctx, survey, workflow.ListOptions{OrderBy: "replica_count", Limit: 1, Phase: "flying"})
	must(t, err)
	if page.Total != 3 || page.Next != "" || len(page.Records) != 1 || page.Records[0].EntityID != "m5" {
		t.Errorf("a page: %+v", page)
	}
	for want, opts := range map[error][]workflow.ListOptions{
		workflow.ErrUnknownField: {{OrderBy: "count"}, {OrderBy: "nothing"}, {Range: map[string]workflow.Range{"count": {}}}},
		workflow.ErrFieldType:    {{Range: between(4, nil)}},
	} {
		for _, o := range opts {
			if _, err := r.Query(ctx, survey, o); !errors.Is(err, want) {
				t.Errorf("%+v: %v, want %v", o, err, want)
			}
		}
	}
	for _, o := range []workflow.ListOptions{{OrderBy: "org_id", After: "m1"}, {InPhaseFor: -1}, {Limit: -1}} {
		if _, err := r.Query(ctx, survey, o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// TestOrderOfManyKeepsThePage orders more entities than a page and a step hold.
func TestOrderOfManyKeepsThePage(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	const n = 400
	for i := range n {
		must(t, r.missions.Create(ctx, &Mission{ID: fmt.Sprintf("%03d", i), State: "planning", Replicas: uint32(i * 7919 % n)}))
	}
	list, err := r.missions.List(ctx, workflow.ListOptions{OrderBy: "replica_count", Limit: 5, Offset: 10})
	must(t, err)
	for i, m := range list {
		if m.Replicas != uint32(10+i) {
			t.Errorf("place %d has %d", 10+i, m.Replicas)
		}
	}
	if len(list) != 5 {
		t.Errorf("%d entities", len(list))
	}
}

func TestCountsOfNoWorkflow(t *testing.T) {
	r := newRig(t)
	if _, err := r.Counts(testContext(t), "none", time.Hour); !errors.Is(err, workflow.ErrWorkflowNotRegistered) {
		t.Error(err)
	}
	counts, err := r.Counts(testContext(t), survey, time.Hour)
	must(t, err)
	if len(counts) != len(table) || counts[0].Phase != "aborted" || !counts[0].Terminal || counts[0].Entities != 0 || !counts[0].Oldest.IsZero() {
		t.Errorf("%+v", counts)
	}
}

// sometimes is a Mission whose parent depends on its phase.
type sometimes struct{ Mission }

func (m *sometimes) ParentEntityID() string {
	if m.State == "flying" {
		return ""
	}
	return m.Parent
}

// TestParentThatDependsOnThePhase finds out at Register that a change of phase is more
// than that.
func TestParentThatDependsOnThePhase(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	m := workflow.NewManager(r.js, nil)
	defer m.Close()
	must(t, m.Register(survey, func() workflow.Participant { return new(sometimes) }, table))
	must(t, m.Ready(ctx))
	must(t, m.Create(ctx, &sometimes{Mission{ID: "m", State: "planning", Parent: "p"}}))
	for _, to := range []string{"flying", "landing"} {
		must(t, m.Transition(ctx, survey, "m", to, workflow.TransitionSourceRule, ""))
		children, err := m.Children(ctx, "p")
		must(t, err)
		if want := map[string]int{"flying": 0, "landing": 1}[to]; len(children) != want {
			t.Errorf("in %s the parent has %d children, want %d", to, len(children), want)
		}
	}
}
