package workflow_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// methods are the methods of participants with faulty fields.
type methods struct{}

func (methods) EntityID() string       { return "" }
func (methods) Workflow() string       { return "w" }
func (methods) Phase() string          { return "" }
func (methods) IsTerminal() bool       { return false }
func (methods) KVBucket() string       { return "B" }
func (methods) KVKey(id string) string { return id }
func (methods) ParentEntityID() string { return "" }

type (
	noID struct {
		methods
		P string `lifecycle:"phase"`
	}
	noPhase struct {
		methods
		I string `lifecycle:"id"`
	}
	twoIDs struct {
		methods
		I, J string `lifecycle:"id"`
		P    string `lifecycle:"phase"`
	}
	twoPhases struct {
		methods
		I    string `lifecycle:"id"`
		P, Q string `lifecycle:"phase"`
	}
	unexported struct {
		methods
		i string `lifecycle:"id"` //nolint:unused // the test needs an unexported field
		P string `lifecycle:"phase"`
	}
	unstored struct {
		methods
		I string `lifecycle:"id" json:"-"`
		P string `lifecycle:"phase"`
	}
	notString struct {
		methods
		I int    `lifecycle:"id"`
		P string `lifecycle:"phase"`
	}
	unknownTag struct {
		methods
		I string `lifecycle:"id"`
		P string `lifecycle:"phase"`
		X string `lifecycle:"operator-writable"`
	}
	both struct {
		methods
		I string `lifecycle:"id"`
		P string `lifecycle:"phase,operator_writable"`
	}
	listed struct {
		methods
		I string   `lifecycle:"id"`
		P string   `lifecycle:"phase"`
		X []string `lifecycle:"indexable"`
	}
	mixed struct {
		methods
		I string               `lifecycle:"id"`
		P string               `lifecycle:"phase"`
		X [1]struct{ Any any } `lifecycle:"indexable"`
	}
	timed struct {
		methods
		I string    `lifecycle:"id"`
		P string    `lifecycle:"phase"`
		X time.Time `lifecycle:"indexable"`
	}
	base struct {
		X string `json:"x" lifecycle:"operator_writable"`
	}
	shadowed struct {
		methods
		I string `lifecycle:"id"`
		P string `lifecycle:"phase"`
		Y string `json:"x"`
		base
	}
	deaf struct { // its methods do not return the fields
		methods
		I string `lifecycle:"id"`
		P string `lifecycle:"phase"`
	}
	byValue struct {
		methods
		I string `lifecycle:"id"`
		P string `lifecycle:"phase"`
	}
)

func TestRegisterRefuses(t *testing.T) {
	m := workflow.NewManager(brokertest.Server(t, broker.Config{}).JetStream(), brokertest.Quiet())
	defer m.Close()
	good := workflow.Transitions{"a": {"b"}, "b": {}}
	same := new(Mission)
	for name, c := range map[string]struct {
		make  func() workflow.Participant
		table workflow.Transitions
		opts  []workflow.RegisterOption
		want  error
		says  string
	}{
		"a typo":              {newMission, workflow.Transitions{"a": {"bb"}, "b": {}}, nil, workflow.ErrInvalidTransitionsTable, `"a" -> "bb"`},
		"an edge twice":       {newMission, workflow.Transitions{"a": {"b", "b"}, "b": {}}, nil, workflow.ErrInvalidTransitionsTable, "twice"},
		"no phases":           {newMission, nil, nil, workflow.ErrInvalidTransitionsTable, "no states"},
		"no factory":          {nil, good, nil, workflow.ErrInvalidParticipant, "factory is nil"},
		"nil":                 {func() workflow.Participant { return nil }, good, nil, workflow.ErrInvalidParticipant, "want a pointer"},
		"nil pointer":         {func() workflow.Participant { return (*deaf)(nil) }, good, nil, workflow.ErrInvalidParticipant, "nil *workflow_test.deaf"},
		"a value":             {func() workflow.Participant { return byValue{} }, good, nil, workflow.ErrInvalidParticipant, "want a pointer"},
		"always the same":     {func() workflow.Participant { return same }, table, nil, workflow.ErrInvalidParticipant, "same value twice"},
		"it panics":           {func() workflow.Participant { panic("boom") }, good, nil, nil, "boom"},
		"no id":               {func() workflow.Participant { return new(noID) }, good, nil, workflow.ErrMissingIDField, "noID"},
		"no phase":            {func() workflow.Participant { return new(noPhase) }, good, nil, workflow.ErrMissingPhaseField, "noPhase"},
		"two ids":             {func() workflow.Participant { return new(twoIDs) }, good, nil, workflow.ErrInvalidParticipant, "I and J"},
		"two phases":          {func() workflow.Participant { return new(twoPhases) }, good, nil, workflow.ErrInvalidParticipant, "P and Q"},
		"an unexported field": {func() workflow.Participant { return new(unexported) }, good, nil, workflow.ErrInvalidParticipant, "export it"},
		"a field left out":    {func() workflow.Participant { return new(unstored) }, good, nil, workflow.ErrInvalidParticipant, "is not stored"},
		"an id of ints":       {func() workflow.Participant { return new(notString) }, good, nil, workflow.ErrInvalidParticipant, "want a string"},
		"an unknown tag":      {func() workflow.Participant { return new(unknownTag) }, good, nil, workflow.ErrInvalidParticipant, "operator-writable"},
		"a writable phase":    {func() workflow.Participant { return new(both) }, good, nil, workflow.ErrInvalidParticipant, "want one of them"},
		"an indexed slice":    {func() workflow.Participant { return new(listed) }, good, nil, workflow.ErrInvalidParticipant, "compared"},
		"an indexed any":      {func() workflow.Participant { return new(mixed) }, good, nil, workflow.ErrInvalidParticipant, "compared"},
		"an indexed time":     {func() workflow.Participant { return new(timed) }, good, nil, workflow.ErrInvalidParticipant, "Unix time"},
		"one name for two":    {func() workflow.Participant { return new(shadowed) }, good, nil, workflow.ErrInvalidParticipant, "Y and X"},
		"deaf methods":        {func() workflow.Participant { return new(deaf) }, good, nil, workflow.ErrInvalidParticipant, "EntityID() does not return"},
		"another's name":      {newMission, table, nil, workflow.ErrInvalidParticipant, `"drone-survey"`},
		"deadline, no edge":   {newMission, table, []workflow.RegisterOption{workflow.WithDeadline("planning", "landing", 1)}, workflow.ErrInvalidTransitionsTable, "no edge"},
		"deadline, no time":   {newMission, table, []workflow.RegisterOption{workflow.WithDeadline("planning", "flying", 0)}, workflow.ErrInvalidTransitionsTable, "above zero"},
		"version, no migrate": {newMission, table, []workflow.RegisterOption{workflow.WithVersion(2, nil)}, workflow.ErrInvalidParticipant, "migrates"},
	} {
		err := m.Register("w", c.make, c.table, c.opts...)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.want, c.says)
		}
	}
	for _, name := range []string{"", " w", "w\r\nLifecycle-Op: x"} {
		if err := m.Register(name, newMission, table); !errors.Is(err, workflow.ErrInvalidParticipant) || !strings.Contains(err.Error(), "its name") {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	must(t, m.Register(survey, newMission, table))
	if err := m.Register(survey, newMission, table); !errors.Is(err, workflow.ErrWorkflowAlreadyRegistered) {
		t.Errorf("twice: %v", err)
	}
	if defs := m.ListWorkflows(); len(defs) != 1 || defs[0].Workflow != survey || defs[0].KVBucket != "MISSIONS" ||
		!reflect.DeepEqual(defs[0].OperatorWritableFields, []string{"owner_org_id", "replica_count"}) || !reflect.DeepEqual(defs[0].Transitions, table) {
		t.Errorf("workflows: %+v", defs)
	}
	if _, err := m.GetWorkflowDefinition("unknown"); !errors.Is(err, workflow.ErrWorkflowNotRegistered) {
		t.Errorf("definition: %v", err)
	}
	must(t, m.Close())
	must(t, m.Close())
	if err := m.Register(survey, newMission, table); !errors.Is(err, workflow.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestIDsThatAKeyCannotHave(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	for _, id := range []string{"", "a b", "a*", ">", "a..b", "a.", "ü", "a\nb", `a"b`} {
		if err := r.missions.Create(ctx, &Mission{ID: id, State: "planning"}); !errors.Is(err, workflow.ErrInvalidEntityID) {
			t.Errorf("create %q: %v", id, err)
		}
		if _, err := r.missions.Get(ctx, id); !errors.Is(err, workflow.ErrInvalidEntityID) {
			t.Errorf("get %q: %v", id, err)
		}
	}
	if err := r.Create(ctx, nil); !errors.Is(err, workflow.ErrInvalidParticipant) {
		t.Errorf("create nil: %v", err)
	}
	if err := r.missions.Create(ctx, &Mission{ID: "a", State: "dancing"}); !errors.Is(err, workflow.ErrInvalidTransition) {
		t.Errorf("create in an unknown phase: %v", err)
	}
	r.create(t, "a", "planning")
	if err := r.missions.Transition(ctx, "a", "flying", "oprator", ""); err == nil || !strings.Contains(err.Error(), "oprator") {
		t.Errorf("a source with a typo: %v", err)
	}
}

func TestTerminalPhases(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "landing")
	must(t, r.missions.Complete(ctx, "m1"))
	for name, err := range map[string]error{
		"complete":   r.missions.Complete(ctx, "m1"),
		"fail":       r.missions.Fail(ctx, "m1", "late"),
		"transition": r.missions.Transition(ctx, "m1", "flying", "rule", ""),
	} {
		if !errors.Is(err, workflow.ErrTerminalPhase) || errors.Is(err, workflow.ErrInvalidTransition) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.create(t, "m2", "capturing")
	if err := r.missions.Complete(ctx, "m2"); !errors.Is(err, workflow.ErrInvalidTransition) {
		t.Errorf("complete from a phase that no terminal phase follows: %v", err)
	}
	if err := r.missions.Fail(ctx, "m2", "  "); err == nil {
		t.Error("a failure without a reason")
	}
	// A deleted entity may be created again; the history has both lives.
	must(t, r.missions.Delete(ctx, "m1"))
	if _, err := r.missions.Get(ctx, "m1"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("get a deleted one: %v", err)
	}
	r.create(t, "m1", "planning")
	events, err := r.missions.History(ctx, "m1")
	must(t, err)
	var phases []string
	for _, e := range events {
		phases = append(phases, e.From+">"+e.To)
	}
	if got := strings.Join(phases, " "); got != ">landing landing>completed completed><deleted> >planning" {
		t.Errorf("history: %s", got)
	}
	if _, err := r.missions.History(ctx, "never"); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("history of nothing: %v", err)
	}
}

// TestCompleteHasNoWindow lets many goroutines complete one mission: one does, and the
// others find it terminal. None gets an invalid transition.
func TestCompleteHasNoWindow(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	rigs := []*rig{rigOn(t, b), rigOn(t, b), rigOn(t, b)}
	ctx := testContext(t)
	for range 20 {
		id := "m" + nextID()
		rigs[0].create(t, id, "landing")
		done := make(chan error, len(rigs))
		for _, r := range rigs {
			go func() { done <- r.missions.Complete(ctx, id) }()
		}
		completed := 0
		for range rigs {
			switch err := <-done; {
			case err == nil:
				completed++
			case !errors.Is(err, workflow.ErrTerminalPhase):
				t.Error(err)
			}
		}
		if completed != 1 {
			t.Errorf("%d completed it", completed)
		}
	}
}
