package workflow_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// tour has methods that take what they get for granted, and panic.
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
	b := brokertest.Embedded(t, broker.Config{Buckets: buckets()})
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
