package workflow_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

func TestMain(m *testing.M) {
	child()
	hookChild()

	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// patience bounds the waits of a test on a busy machine.
const patience = 60 * time.Second

// Mission is the model's drone survey.
type Mission struct {
	ID       string `json:"entity_id"              lifecycle:"id"`
	State    string `json:"phase"                  lifecycle:"phase,readonly"`
	Org      string `json:"org_id,omitempty"       lifecycle:"indexable"`
	Replicas uint32 `json:"replica_count"          lifecycle:"operator_writable,indexable"`
	Owner    string `json:"owner_org_id,omitempty" lifecycle:"operator_writable"`
	Parent   string `json:"parent,omitempty"`
	Count    int    `json:"count"`
	Secret   string `json:"internal_state,omitempty"`
}

func (m *Mission) EntityID() string       { return m.ID }
func (m *Mission) Workflow() string       { return survey }
func (m *Mission) Phase() string          { return m.State }
func (m *Mission) IsTerminal() bool       { return workflow.DefaultIsTerminal(m, table) }
func (m *Mission) KVBucket() string       { return "MISSIONS" }
func (m *Mission) KVKey(id string) string { return "mission." + id }
func (m *Mission) ParentEntityID() string { return m.Parent }

const survey = "drone-survey"

func newMission() workflow.Participant { return new(Mission) }

var table = workflow.Transitions{
	"planning":  {"flying", "aborted"},
	"flying":    {"capturing", "landing", "aborted"},
	"capturing": {"flying"},
	"landing":   {"completed", "failed"},
	"completed": {},
	"failed":    {},
	"aborted":   {},
}

var missionsBucket = workflow.Bucket("MISSIONS")

// rig is a Manager with its own server.
type rig struct {
	*workflow.Manager
	b        *broker.Broker
	js       jetstream.JetStream
	missions workflow.Typed[*Mission]
}

func newRig(t testing.TB, opts ...workflow.RegisterOption) *rig {
	t.Helper()
	return rigOn(t, brokertest.Server(t, broker.Config{Buckets: buckets()}), opts...)
}

// rigOn returns another Manager on a broker. To the server it is another process.
func rigOn(t testing.TB, b *broker.Broker, opts ...workflow.RegisterOption) *rig {
	t.Helper()
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Register(survey, newMission, table, opts...); err != nil {
		t.Fatal(err)
	}
	return &rig{m, b, b.JetStream(), workflow.For[*Mission](m, survey)}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	t.Cleanup(cancel)
	return ctx
}

// expiring is a context whose time is over when the test says so.
type expiring struct {
	context.Context
	over chan struct{}
}

func (c expiring) Done() <-chan struct{} { return c.over }

func (c expiring) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// record reads a mission with its metadata.
func (r *rig) record(ctx context.Context, id string, opts ...workflow.ReadOption) (rec workflow.Record, err error) {
	_, err = r.Get(ctx, survey, id, append(opts, workflow.RecordTo(&rec))...)
	return rec, err
}

func (r *rig) create(t testing.TB, id, phase string) {
	t.Helper()
	if err := r.missions.Create(testContext(t), &Mission{ID: id, State: phase}); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) move(t testing.TB, id, phase string) {
	t.Helper()
	if err := r.missions.Transition(testContext(t), id, phase, workflow.TransitionSourceComponent, ""); err != nil {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func buckets() []jetstream.KeyValueConfig { return []jetstream.KeyValueConfig{missionsBucket} }

var ids atomic.Int64

func nextID() string { return strconv.FormatInt(ids.Add(1), 10) }
