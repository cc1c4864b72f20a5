package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// stored is the state of one entity at the server. An empty phase means that it
// does not exist.
type stored struct {
	phase    string
	count    int
	timers   [len(timerNames)]pending
	revision uint64 // at least this one
}

// timerNames are the reminders that an entity may have.
const timerNames = "ab"

// pending is a reminder.
type pending struct {
	set   bool
	at    int64 // unix milliseconds; 0 when it has fired
	fired int
}

func (s stored) same(other stored) bool { return s.phase == other.phase && s.count == other.count }

// asked is one operation on an entity.
type asked struct {
	verb  string // create, transition, update, bump, set, delete, read, or fire, which the Manager does
	to    string // of a transition
	timer int    // that is set, or fires
	at    int64  // when that is due, or fires, in unix milliseconds
}

// answered is the outcome of an operation.
type answered struct {
	is       string // done, unknown, or the reason of a refusal
	on       stored // the state that it was decided on, or that was read
	decided  bool   // on is known
	timed    bool   // so are its timers
	revision uint64 // of a write that was done
}

func (in asked) String() string {
	if in.at != 0 {
		return fmt.Sprintf("%s %c %d", in.verb, timerNames[in.timer], in.at)
	}
	return strings.TrimSpace(in.verb + " " + in.to)
}

// apply returns the state after an operation, and the operation's outcome.
func (in asked) apply(s stored) (stored, string) {
	if in.verb == "create" {
		if s.phase != "" {
			return s, "exists"
		}
		return stored{phase: "planning", revision: s.revision + 1}, "done"
	}
	if s.phase == "" {
		return s, "not found"
	}
	switch in.verb {
	case "read":
		return s, "done"
	case "delete":
		return stored{revision: s.revision + 1}, "done"
	case "update":
		s.count++
	case "set":
		if table.IsTerminal(s.phase) {
			return s, "no timer"
		}
		s.count++
		s.timers[in.timer].set, s.timers[in.timer].at = true, in.at
	case "fire":
		t := &s.timers[in.timer]
		if !t.set || t.at == 0 || t.at > in.at {
			return s, "not due"
		}
		for _, other := range s.timers {
			if other.at != 0 && other.at < t.at {
				return s, "not first"
			}
		}
		t.at = 0
		t.fired++
	case "bump": // an update that asks for no revision, and may share one
		s.count++
		return s, "done"
	case "transition":
		if table.IsTerminal(s.phase) {
			return s, "terminal"
		}
		if !table.IsValidTransition(s.phase, in.to) {
			return s, "invalid"
		}
		if s.phase = in.to; table.IsTerminal(in.to) {
			s.timers = stored{}.timers
		}
	}
	s.revision++
	return s, "done"
}

// entityModel is one entity; operations on it happen one after the other.
// A write of unknown outcome may or may not have happened, on the state that it was
// decided on. A refusal and a read have seen the true state. Revisions rise.
var entityModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{stored{}} },
	Step: func(state, input, output any) []any {
		s, _ := state.(stored)
		in, _ := input.(asked)
		out, _ := output.(answered)
		next, says := in.apply(s)
		fits := (!out.decided || out.on.same(s)) && (!out.timed || out.on.timers == s.timers)
		switch {
		case out.is == "unknown" && says == "done" && fits:
			return []any{s, next}
		case out.is == "unknown":
			return []any{s}
		case says != out.is || !fits || out.revision > 0 && out.revision < next.revision:
			return nil
		}
		next.revision = max(next.revision, out.revision)
		return []any{next}
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%v: %+v", input, output)
	},
}

// do asks one Manager for an operation. It returns false for one that had no
// effect and no answer.
func (in asked) do(ctx context.Context, r *rig, id string) (out answered, ok bool) {
	look := func(m *Mission) error {
		out.on, out.decided = stored{phase: m.State, count: m.Count}, true
		return nil
	}
	var err error
	written := workflow.RevisionTo(&out.revision)
	switch in.verb {
	case "create":
		err = r.missions.Create(ctx, &Mission{ID: id, State: "planning"}, written)
	case "transition":
		err = r.missions.TransitionWith(ctx, id, in.to, workflow.TransitionSourceRule, "", look, written)
	case "update":
		err = r.missions.Update(ctx, id, func(m *Mission) error {
			defer func() { m.Count++ }()
			return look(m)
		}, written)
	case "set":
		err = r.missions.Update(ctx, id, func(m *Mission) error {
			defer func() { m.Count++ }()
			return look(m)
		}, written, workflow.SetTimer(workflow.Timer{Name: timerNames[in.timer : in.timer+1], At: time.UnixMilli(in.at), Keep: true}))
	case "bump":
		err = r.missions.Update(ctx, id, func(m *Mission) error {
			defer func() { m.Count++ }()
			return look(m)
		})
	case "delete":
		err = r.missions.Delete(ctx, id, written)
	case "read":
		var rec workflow.Record
		if rec, err = r.record(ctx, id); err != nil {
			break
		}
		if m, ok := rec.Participant.(*Mission); ok {
			err = look(m)
		}
		out.timed = true
		for _, t := range rec.Timers {
			p := pending{set: true, fired: t.Fired}
			if !t.At.IsZero() {
				p.at = t.At.UnixMilli()
			}
			out.on.timers[strings.Index(timerNames, t.Name)] = p
		}
	}
	switch {
	case err == nil:
		out.is = "done"
		return out, true
	case errors.Is(err, workflow.ErrOutcomeUnknown):
		out.is = "unknown"
		return out, true
	}
	for why, is := range map[error]string{
		workflow.ErrEntityExists: "exists", workflow.ErrEntityNotFound: "not found",
		workflow.ErrTerminalPhase: "terminal", workflow.ErrInvalidTransition: "invalid", workflow.ErrInvalidTimer: "no timer",
	} {
		if errors.Is(err, why) {
			return answered{is: is}, true
		}
	}
	return answered{}, false // the contract says that it was not written, so the history must be valid without it
}

// verbs are the operations of clients, frequent ones several times.
var verbs = []string{"create", "create", "transition", "transition", "transition", "transition", "update", "update", "bump", "bump", "set", "set", "read", "read", "read", "delete"}

// faults are faults of the servers of a cluster. Each calls more before
// and after: operations go on.
var faults = []struct {
	name string
	// A leader that was replaced while it was paused may answer reads from its old
	// state until it learns of that. It writes nothing.
	stale  bool
	happen func(c *brokertest.Cluster, leader int, more func())
}{
	{"the leader is killed", false, func(c *brokertest.Cluster, leader int, more func()) {
		c.Kill(leader)
		more()
		c.Start(leader)
	}},
	{"the leader is paused", true, func(c *brokertest.Cluster, leader int, more func()) {
		c.Pause(leader)
		more()
		c.Resume(leader)
	}},
	{"the leader is restarted", false, func(c *brokertest.Cluster, leader int, more func()) {
		c.Stop(leader)
		more()
		c.Start(leader)
	}},
	{"another one is killed", false, func(c *brokertest.Cluster, leader int, more func()) {
		c.Kill((leader + 1) % 3)
		more()
		c.Start((leader + 1) % 3)
	}},
	{"all are killed", false, func(c *brokertest.Cluster, _ int, _ func()) {
		for i := range 3 {
			c.Kill(i)
		}
		c.StartAll()
	}},
}

// TestOneEntityIsLinearizable lets eight clients of four processes create, change,
// read and delete one entity on three servers, while those are killed, paused and
// started again. Two of the processes run timers, and one a hook. The test checks that
// all answers fit one order: every write happened once, in the order of revisions, on the
// state that it was decided on, or not at all, and so did the firing of each timer, not
// before its time. The journal, the history and the hook agree with the bucket.
func TestOneEntityIsLinearizable(t *testing.T) {
	if testing.Short() {
		t.Skip("long: three servers that are killed and started")
	}
	rounds := 2
	if n, err := strconv.Atoi(os.Getenv("CHAOS_RESTARTS")); err == nil {
		rounds = n
	}
	c := brokertest.StartCluster(t, 3)
	replicated, journal, hooks := missionsBucket, missionsJournal, workflow.HookBucket("MISSIONS")
	replicated.Replicas, journal.Replicas, hooks.Replicas = 3, 3, 3
	rigs := make([]*rig, 4)
	var reactions reacted
	for i := range rigs {
		opts := []workflow.RegisterOption{workflow.WithJournal()}
		if i == 2 {
			opts = append(opts, workflow.WithHook(workflow.Hook{Name: "check", Replay: true, Attempts: 1000, Backoff: quick, Do: reactions.note}))
		}
		rigs[i] = rigOn(t, brokertest.Connect(t, broker.Config{
			URL: c.URL(), ReconnectWait: 20 * time.Millisecond,
			Buckets: []jetstream.KeyValueConfig{replicated, hooks}, Streams: []jetstream.StreamConfig{journal},
		}), opts...)
	}
	keepAll(t, rigs[0])
	rigs[0].deadlines(t)
	rigs[1].deadlines(t)
	rigs[2].hooks(t)
	for round := range rounds {
		fault := faults[round%len(faults)]
		id, began := fmt.Sprintf("hot-%d", round), time.Now()
		history := record(t, rigs, id, began, 2, 10*time.Millisecond, func(more func()) {
			more()
			leader := -1
			brokertest.Await(t, "a leader of the bucket", func() bool { leader = c.Leader("KV_MISSIONS"); return leader >= 0 })
			fault.happen(c, leader, more)
			more()
		})
		history = append(history, reactions.agree(t, rigs[0], id, began, history)...)
		if fault.stale {
			history = slices.DeleteFunc(history, func(op porcupine.Operation) bool {
				in, _ := op.Input.(asked)
				out, _ := op.Output.(answered)
				return in.verb == "read" || out.is != "done" && out.is != "unknown"
			})
		}
		explained(t, fault.name, history)
	}
}

// explained checks that the operations fit one order.
func explained(t *testing.T, name string, history []porcupine.Operation) {
	t.Helper()
	result, info := porcupine.CheckOperationsVerbose(entityModel.ToModel(), history, 60*time.Second)
	t.Logf("%s: %d operations are %s", name, len(history), result)
	if result != porcupine.Ok {
		page := t.ArtifactDir() + "/history.html"
		if err := porcupine.VisualizePath(entityModel.ToModel(), info, page); err != nil {
			page = err.Error()
		}
		t.Errorf("%s: no order explains the answers: %s (a picture: %s, kept with -artifacts)", name, result, page)
	}
}

// TestBusyEntityIsLinearizable lets the clients of two processes do the same on one server
// without pauses, so that they wait for each other, while the connections break.
func TestBusyEntityIsLinearizable(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	var rigs []*rig
	var lines []*muffler
	for range 2 {
		p := muffle(t, srv.ClientURL())
		lines = append(lines, p)
		rigs = append(rigs, rigOn(t, brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 5 * time.Millisecond})))
	}
	history := record(t, rigs, "hot", time.Now(), 6, time.Millisecond, func(more func()) {
		for n := range 6 {
			more()
			p := lines[n%2]
			p.mute.Store(true) // what the server carries out from now on gets no answer
			time.Sleep(rand.N(5 * time.Millisecond))
			p.mute.Store(false)
			p.cut()
		}
		more()
	})
	explained(t, "cut connections", history)
}

// record lets some clients of each rig do random operations on an entity, with pauses,
// while meanwhile runs. more waits until some have succeeded.
func record(t *testing.T, rigs []*rig, id string, began time.Time, clients int, pause time.Duration, meanwhile func(more func())) []porcupine.Operation {
	t.Helper()
	stop := make(chan struct{})
	var mu sync.Mutex
	var history []porcupine.Operation
	done := 0
	var wg sync.WaitGroup
	for i := range clients * len(rigs) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(rand.N(pause)): // a longer history shows no more, and takes longer to check
				}
				in := asked{verb: verbs[rand.N(len(verbs))]}
				switch in.verb {
				case "transition":
					in.to = []string{"flying", "flying", "capturing", "landing", "completed"}[rand.N(5)]
				case "set":
					in.timer, in.at = rand.N(len(timerNames)), time.Now().Add(rand.N(30*time.Millisecond)).UnixMilli()
				}
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				call := time.Since(began)
				out, ok := in.do(ctx, rigs[i%len(rigs)], id)
				back := time.Since(began)
				cancel()
				if !ok {
					continue
				}
				op := porcupine.Operation{ClientId: i, Input: in, Call: call.Nanoseconds(), Output: out, Return: back.Nanoseconds()}
				mu.Lock()
				if out.is == "unknown" {
					// The server may still carry it out at any later time. So
					// give it a client of its own: each client has one operation
					// at a time.
					op.ClientId, op.Return = 1000+len(history), time.Hour.Nanoseconds()
				} else if in.verb != "read" && out.is == "done" {
					done++
				}
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	meanwhile(func() {
		mu.Lock()
		at := done
		mu.Unlock()
		goesOn := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return done >= at+20
		}
		// All clients may be connected to a server that is paused. They notice after three
		// pings, which is a minute.
		for began := time.Now(); !goesOn(); time.Sleep(5 * time.Millisecond) {
			if time.Since(began) > 3*time.Minute {
				t.Fatal("writes do not go on")
			}
		}
	})
	close(stop)
	wg.Wait()
	return history
}
