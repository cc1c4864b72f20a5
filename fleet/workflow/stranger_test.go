package workflow_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// A stranger writes into the bucket with a client of his own, and asks with arguments that
// no program needs.

func TestListsWithTheLargestArguments(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	const n = 150 // more than a scan visits in one step
	for i := range n {
		r.create(t, fmt.Sprint("m", i), "planning")
	}
	for name, c := range map[string]struct {
		opts workflow.ListOptions
		want int
	}{
		"a limit, ordered":            {workflow.ListOptions{OrderBy: "replica_count", Limit: math.MaxInt}, n},
		"an offset, ordered":          {workflow.ListOptions{OrderBy: "replica_count", Offset: math.MaxInt, Limit: 10}, 0},
		"both, ordered":               {workflow.ListOptions{OrderBy: "replica_count", Offset: math.MaxInt, Limit: math.MaxInt}, 0},
		"both":                        {workflow.ListOptions{Offset: math.MaxInt, Limit: math.MaxInt}, 0},
		"updated after the year 9998": {workflow.ListOptions{UpdatedAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, 0},
		"updated after the year 2300": {workflow.ListOptions{UpdatedAfter: time.Date(2301, 1, 1, 0, 0, 0, 0, time.UTC)}, 0},
		"updated after the year 500":  {workflow.ListOptions{UpdatedAfter: time.Date(500, 1, 1, 0, 0, 0, 0, time.UTC)}, n},
		"updated after the year -500": {workflow.ListOptions{UpdatedAfter: time.Date(-500, 1, 1, 0, 0, 0, 0, time.UTC)}, n},
		"for 292 years":               {workflow.ListOptions{InPhaseFor: math.MaxInt64}, 0},
		"stale for 292 years":         {workflow.ListOptions{MaxStale: math.MaxInt64}, n},
	} {
		list, err := r.missions.List(ctx, c.opts)
		if err != nil || len(list) != c.want {
			t.Errorf("%s: %d, %v, want %d", name, len(list), err, c.want)
		}
	}
	if _, err := r.missions.List(ctx, workflow.ListOptions{MaxStale: -1}); err == nil || !strings.Contains(err.Error(), "want 0 or more") {
		t.Errorf("a list that is older than -1ns: %v", err)
	}
}

// gauge has an id that is its key, and a number that may be anything.
type gauge struct {
	ID    string  `json:"id"    lifecycle:"id"`
	State string  `json:"phase" lifecycle:"phase"`
	Level float64 `json:"level" lifecycle:"indexable"`
}

func (g *gauge) EntityID() string       { return g.ID }
func (g *gauge) Workflow() string       { return "gauge" }
func (g *gauge) Phase() string          { return g.State }
func (g *gauge) IsTerminal() bool       { return false }
func (g *gauge) KVBucket() string       { return "MISSIONS" }
func (g *gauge) KVKey(id string) string { return id }
func (g *gauge) ParentEntityID() string { return "" }

func gauges(t *testing.T) (*workflow.Manager, workflow.Typed[*gauge]) {
	t.Helper()
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	t.Cleanup(func() { must(t, m.Close()) })
	must(t, m.Register("gauge", func() workflow.Participant { return new(gauge) }, workflow.Transitions{"a": {"b"}, "b": {}}))
	return m, workflow.For[*gauge](m, "gauge")
}

func TestNoNumberIsNoBound(t *testing.T) {
	_, all := gauges(t)
	ctx := testContext(t)
	must(t, all.Create(ctx, &gauge{ID: "g1", State: "a", Level: 1}))
	for _, bad := range []workflow.Range{{Min: math.NaN()}, {Max: math.NaN()}} {
		if list, err := all.List(ctx, workflow.ListOptions{Range: map[string]workflow.Range{"level": bad}}); !errors.Is(err, workflow.ErrFieldType) {
			t.Errorf("%v: %d, %v", bad, len(list), err)
		}
	}
	list, err := all.List(ctx, workflow.ListOptions{Range: map[string]workflow.Range{"level": {Min: math.Inf(-1), Max: math.Inf(1)}}})
	if err != nil || len(list) != 1 {
		t.Errorf("from -Inf to +Inf: %d, %v", len(list), err)
	}
	if err := all.Create(ctx, &gauge{ID: "g2", State: "a", Level: math.NaN()}); err == nil || errors.Is(err, workflow.ErrOutcomeUnknown) {
		t.Errorf("create one with NaN: %v", err)
	}
}

// TestTheReservedKeyIsNoEntitys: a readiness probe would purge the entity.
func TestTheReservedKeyIsNoEntitys(t *testing.T) {
	m, all := gauges(t)
	ctx := testContext(t)
	if err := all.Create(ctx, &gauge{ID: "_lifecycle.canary", State: "a"}); !errors.Is(err, workflow.ErrInvalidEntityID) {
		t.Errorf("create: %v", err)
	}
	if _, err := m.Get(ctx, "gauge", "_lifecycle.canary"); !errors.Is(err, workflow.ErrInvalidEntityID) {
		t.Errorf("get: %v", err)
	}
}

// TestSubjectsThatAreNoKeys publishes what no key-value client would.
func TestSubjectsThatAreNoKeys(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	r := rigOn(t, srv)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	for i, key := range []string{
		"mission.\xff\xfe", "mission.\xff\xfd", "mission.*", "mission.>", "mission..x", "mission.x.", ".mission", `mission."x"`, `mission.\`, "mission.<ü>", "mission.\x01",
		"mission.\u2028", "mission." + strings.Repeat("long.", 400) + "x",
	} {
		raw(t, srv, "$KV.MISSIONS."+key, "", `{"entity_id":"x","phase":"planning"}`)
		id := fmt.Sprint("after", i)
		r.create(t, id, "planning")
		list, err := r.missions.List(ctx, workflow.ListOptions{Fresh: true})
		if err != nil {
			t.Fatalf("after a message on %q: %v", key, err)
		}
		if len(list) != i+2 {
			t.Errorf("after a message on %q: %d entities", key, len(list))
		}
	}
	must(t, r.Ready(ctx))
	// The bucket loses an entity without a message, among those keys.
	stream, err := r.js.Stream(ctx, "KV_MISSIONS")
	must(t, err)
	must(t, stream.Purge(ctx, jetstream.WithPurgeSubject("$KV.MISSIONS.mission.after3")))
	list, err := r.missions.List(ctx, workflow.ListOptions{Fresh: true, Contains: "after3"})
	if err != nil || len(list) != 0 {
		t.Errorf("a ghost: %v, %v", list, err)
	}
}

// raw publishes with a connection of its own, without a client library. header has whole
// lines; "" is none.
func raw(t testing.TB, srv *broker.Broker, subject, header, data string) {
	t.Helper()
	u, err := url.Parse(srv.ClientURL())
	must(t, err)
	conn, err := net.Dial("tcp", u.Host)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	command := fmt.Sprintf("PUB %s %d\r\n%s\r\n", subject, len(data), data)
	if header != "" {
		command = fmt.Sprintf("HPUB %s %d %d\r\n%s%s\r\n", subject, len(header), len(header)+len(data), header, data)
	}
	_, err = fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n%sPING\r\n", command)
	must(t, err)
	said := make([]byte, 0, 1<<13)
	for !strings.Contains(string(said), "PONG\r\n") {
		part := make([]byte, 1<<12)
		n, err := conn.Read(part)
		if said = append(said, part[:n]...); err != nil {
			t.Fatalf("the server says %s: %v", said, err)
		}
	}
}

// TestHeadersThatAreNone stores a record whose headers no client can read.
func TestHeadersThatAreNone(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	r := rigOn(t, srv)
	ctx := testContext(t)
	for i, header := range []string{"NATS/1.0\r\nno colon\r\n\r\n", "NATS/1.0\r\n\xff\x00: \x00\r\n\r\n", "garbage", "NATS/1.0\r\nKV-Operation\r\n\r\n", "NATS/1.0\r\n: x\r\n\r\n"} {
		id := fmt.Sprint("m", i)
		raw(t, srv, "$KV.MISSIONS.mission."+id, header, `{"entity_id":"`+id+`","phase":"planning"}`)
		brokertest.Await(t, "the message to be stored", func() bool {
			_, err := r.missions.Get(ctx, id)
			return !errors.Is(err, workflow.ErrEntityNotFound)
		})
		got, err := r.missions.Get(ctx, id)
		if err != nil || got.State != "planning" {
			t.Errorf("%q: get: %v, %v", header, got, err)
		}
		list, err := r.missions.List(ctx, workflow.ListOptions{Fresh: true})
		if err != nil || len(list) != 1 {
			t.Errorf("%q: list: %d, %v", header, len(list), err)
		}
		if _, err := r.missions.History(ctx, id); err != nil {
			t.Errorf("%q: history: %v", header, err)
		}
		if err := r.missions.Update(ctx, id, func(m *Mission) error { m.Count++; return nil }); err != nil {
			t.Errorf("%q: update: %v", header, err)
		}
		if err := r.missions.Delete(ctx, id); err != nil {
			t.Errorf("%q: delete: %v", header, err)
		}
	}
}

// TestAWriteOfAnotherProgramForgetsKeys: it carries none, and nothing else knows them. A
// purge by it shows in the trail.
func TestAWriteOfAnotherProgramForgetsKeys(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	ctx := testContext(t)
	for name, r := range map[string]*rig{"view": rigOn(t, b), "viewless": rigOn(t, b, workflow.WithoutView())} {
		t.Run(name, func(t *testing.T) {
			id := "m-" + name
			kv, err := r.js.KeyValue(ctx, "MISSIONS")
			must(t, err)
			count := func() error {
				return r.missions.Update(ctx, id, func(m *Mission) error { m.Count++; return nil }, workflow.Key("once"))
			}
			r.create(t, id, "planning")
			must(t, count())
			must(t, count())
			stored, err := kv.Get(ctx, "mission."+id)
			must(t, err)
			_, err = kv.Put(ctx, "mission."+id, stored.Value())
			must(t, err)
			if _, landed, err := r.Landed(ctx, survey, id, "once"); landed || err != nil {
				t.Errorf("landed: %v, %v", landed, err)
			}
			if name == "view" {
				_, err = r.missions.List(ctx, workflow.ListOptions{Fresh: true})
				must(t, err)
			}
			must(t, count())
			must(t, count())
			if got, err := r.missions.Get(ctx, id); err != nil || got.Count != 2 {
				t.Errorf("%+v, %v", got, err)
			}
			must(t, kv.Purge(ctx, "mission."+id))
			trail, err := r.Trail(ctx, survey, id)
			if err != nil || !trail.Truncated {
				t.Errorf("trail, after a purge: %+v, %v", trail, err)
			}
		})
	}
}

// TestDryRunOfAWriteThatHasHappened returns the record.
func TestDryRunOfAWriteThatHasHappened(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	must(t, r.missions.Transition(ctx, "m1", "flying", "rule", "", workflow.Key("once")))
	var result workflow.Participant
	must(t, r.missions.Transition(ctx, "m1", "flying", "rule", "", workflow.Key("once"), workflow.DryRun(&result)))
	if m, ok := result.(*Mission); !ok || m.State != "flying" {
		t.Errorf("the result is %#v", result)
	}
}

// TestTimersThatNoProgramWrites: they fire, and delay no write.
func TestTimersThatNoProgramWrites(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	put := func(id string, timers any) {
		text, ok := timers.(string)
		if !ok {
			data, err := json.Marshal(timers)
			must(t, err)
			text = string(data)
		}
		msg := nats.NewMsg("$KV.MISSIONS.mission." + id)
		msg.Data = []byte(`{"entity_id":"` + id + `","phase":"planning"}`)
		msg.Header["Lifecycle-Timers"] = []string{text}
		_, err := r.js.PublishMsg(ctx, msg)
		must(t, err)
	}
	many := make([]workflow.Timer, workflow.MaxTimers+1)
	for i := range many {
		many[i] = workflow.Timer{Name: fmt.Sprint(i), At: time.Now().Add(time.Hour), Keep: true}
	}
	put("many", many)
	if err := r.missions.Transition(ctx, "many", "flying", "rule", ""); err != nil {
		t.Errorf("an entity with too many timers does not move: %v", err)
	}
	if err := r.missions.Update(ctx, "many", func(*Mission) error { return nil }, workflow.SetTimer(workflow.Timer{Name: "more", After: time.Hour})); !errors.Is(err, workflow.ErrInvalidTimer) {
		t.Errorf("one more timer: %v", err)
	}
	must(t, r.missions.Update(ctx, "many", func(*Mission) error { return nil }, workflow.CancelTimer("0")))
	put("often", []workflow.Timer{{Name: "a", At: time.Now().Add(-time.Hour), Every: 1}})
	put("back", []workflow.Timer{{Name: "a", At: time.Now().Add(-time.Hour), Every: -1}})
	put("nameless", []workflow.Timer{{At: time.Now().Add(-time.Hour)}})
	put("broken", `[{"name":"a","at":"9999-99-99T00:00:00Z"}]`)
	put("late", `[{"name":"a","at":"9999-12-31T23:59:59.999-12:00","every":1000000000}]`)
	put("early", `[{"name":"a","at":"0000-01-01T00:00:00+12:00","every":1000000000}]`)
	put("good", []workflow.Timer{{Name: "a", At: time.Now(), To: "flying"}})
	r.deadlines(t)
	r.awaitPhase(t, "good", "flying")
	fired := func(id string) bool {
		rec, err := r.record(ctx, id)
		must(t, err)
		return len(rec.Timers) == 1 && rec.Timers[0].Fired > 0
	}
	brokertest.Await(t, "the others to fire", func() bool { return fired("often") && fired("back") && fired("early") })
	for id, every := range map[string]bool{"often": true, "back": false, "early": true} {
		rec, err := r.record(ctx, id)
		must(t, err)
		if at := rec.Timers[0].At; at.IsZero() == every || every && at.Before(rec.UpdatedAt.Add(-time.Minute)) { // an hour late, if it were not skipped
			t.Errorf("%s: it was stored at %v and is due again at %v", id, rec.UpdatedAt, at)
		}
	}
	for _, id := range []string{"nameless", "broken", "late"} {
		must(t, r.missions.Transition(ctx, id, "flying", "rule", ""))
	}
}
