package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// deadlines runs Deadlines until the test ends, or until the result is called.
func (r *rig) deadlines(t testing.TB) (stop func()) {
	t.Helper()
	return background(t, r.Deadlines)
}

// timers returns an entity's timers as text, without their times.
func (r *rig) timers(t testing.TB, id string) string {
	t.Helper()
	rec, err := r.record(testContext(t), id)
	must(t, err)
	names := make([]string, len(rec.Timers))
	for i, timer := range rec.Timers {
		state := "set"
		if timer.At.IsZero() {
			state = "spent"
		}
		names[i] = fmt.Sprintf("%s %s %d", timer.Name, state, timer.Fired)
	}
	return strings.Join(names, ", ")
}

func (r *rig) awaitPhase(t testing.TB, id, phase string) {
	t.Helper()
	brokertest.Await(t, id+" to be "+phase, func() bool {
		m, err := r.missions.Get(testContext(t), id)
		return err == nil && m.State == phase
	})
}

func TestTimersFireOnceInOrderAcrossProcesses(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	ctx := testContext(t)
	first := rigOn(t, b)
	const n = 20
	for i := range n { // two are due while no process runs Deadlines
		must(t, first.missions.Create(ctx, &Mission{ID: fmt.Sprint(i), State: "planning"},
			workflow.SetTimer(workflow.Timer{Name: "go", At: time.Now().Add(-time.Hour), To: "flying", Keep: true}),
			workflow.SetTimer(workflow.Timer{Name: "look", At: time.Now().Add(-time.Minute), Keep: true}),
			workflow.SetTimer(workflow.Timer{Name: "land", After: 100 * time.Millisecond, To: "landing", Keep: true}),
			workflow.SetTimer(workflow.Timer{Name: "lost", After: time.Hour, To: "aborted"})))
	}
	must(t, first.Close())
	r, other := rigOn(t, b), rigOn(t, b)
	r.deadlines(t)
	other.deadlines(t)
	for i := range n {
		id := fmt.Sprint(i)
		r.awaitPhase(t, id, "landing")
		if got := r.timers(t, id); got != "go spent 1, look spent 1, land spent 1" {
			t.Errorf("%s has timers: %s", id, got)
		}
		events, err := r.missions.History(ctx, id)
		must(t, err)
		if len(events) != 3 || events[1].To != "flying" || events[1].Note != "timer: go" || events[2].Note != "timer: land" || events[2].Triggered != workflow.TransitionSourceFramework {
			t.Errorf("%s: %+v", id, events)
		}
	}
	must(t, r.missions.Transition(ctx, "0", "completed", "rule", ""))
	if got := r.timers(t, "0"); got != "" {
		t.Errorf("a terminal entity has timers: %s", got)
	}
}

func TestReminderRepeatsUntilItsPhaseEnds(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.deadlines(t)
	r.create(t, "m1", "planning")
	must(t, r.missions.Transition(ctx, "m1", "flying", "rule", "",
		workflow.SetTimer(workflow.Timer{Name: "remind", At: time.Now().Add(-90 * time.Second), Every: time.Minute})))
	brokertest.Await(t, "the reminder", func() bool { return r.timers(t, "m1") == "remind set 1" })
	rec, err := r.record(ctx, "m1")
	must(t, err)
	if in := time.Until(rec.Timers[0].At); in < 0 || in > time.Minute {
		t.Errorf("it repeats in %v: those that passed were not skipped", in)
	}
	must(t, r.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil })) // an update keeps it
	must(t, rigOn(t, r.b).missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))
	if got := r.timers(t, "m1"); got != "remind set 1" {
		t.Errorf("after updates: %s", got)
	}
	if events, _ := r.missions.History(ctx, "m1"); len(events) != 2 {
		t.Errorf("a reminder is in the history: %+v", events)
	}
	r.move(t, "m1", "landing")
	if got := r.timers(t, "m1"); got != "" {
		t.Errorf("in another phase: %s", got)
	}
}

// TestTimerWhoseEdgeIsGoneRemindsOnce: the entity has moved to where its table has no
// such edge.
func TestTimerWhoseEdgeIsGoneRemindsOnce(t *testing.T) {
	r := newRig(t)
	must(t, r.missions.Create(testContext(t), &Mission{ID: "m1", State: "landing"},
		workflow.SetTimer(workflow.Timer{Name: "abort", After: time.Millisecond, To: "aborted"})))
	r.deadlines(t)
	brokertest.Await(t, "the timer", func() bool { return r.timers(t, "m1") == "abort spent 1" })
	r.awaitPhase(t, "m1", "landing")
}

func TestTimersAreSetCountedAndCancelled(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	nothing := func(*Mission) error { return nil }
	retry := workflow.SetTimer(workflow.Timer{Name: "retry", After: time.Millisecond, Keep: true})
	stop := r.deadlines(t)
	for i := range 3 { // a count of retries outlives its phases
		must(t, r.missions.Update(ctx, "m1", nothing, retry))
		brokertest.Await(t, "the retry", func() bool { return r.timers(t, "m1") == fmt.Sprintf("retry spent %d", i+1) })
	}
	r.move(t, "m1", "flying")
	stop()
	must(t, r.missions.Update(ctx, "m1", nothing, retry))
	if got := r.timers(t, "m1"); got != "retry set 3" {
		t.Errorf("set again: %s", got)
	}
	must(t, r.missions.Update(ctx, "m1", nothing, workflow.CancelTimer("retry"), workflow.CancelTimer("none")))
	if got := r.timers(t, "m1"); got != "" {
		t.Errorf("cancelled: %s", got)
	}
	// Years from now, and years that nanoseconds do not reach.
	for _, year := range []int{2261, 2262, 2263, 9999} {
		at := time.Date(year, 12, 31, 23, 59, 59, 0, time.UTC)
		must(t, r.missions.Update(ctx, "m1", nothing, workflow.SetTimer(workflow.Timer{Name: fmt.Sprint(year), At: at, To: "aborted"})))
		rec, err := r.record(ctx, "m1")
		must(t, err)
		if got := rec.Timers[len(rec.Timers)-1].At; !got.Equal(at) {
			t.Errorf("it is due %v, want %v", got, at)
		}
	}
	r.deadlines(t)
	must(t, r.missions.Update(ctx, "m1", nothing, workflow.SetTimer(workflow.Timer{Name: "epoch", At: time.Unix(0, 0)})))
	brokertest.Await(t, "the timer of 1970", func() bool {
		return r.timers(t, "m1") == "2261 set 0, 2262 set 0, 2263 set 0, 9999 set 0, epoch spent 1"
	})
}

func TestInvalidTimersWriteNothing(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	r.create(t, "m2", "completed")
	nothing := func(*Mission) error { return nil }
	for text, timer := range map[string]workflow.Timer{
		"its name":       {After: time.Second},
		"65 bytes":       {Name: strings.Repeat("x", 65), After: time.Second},
		"either At":      {Name: "x"},
		"want either":    {Name: "x", At: time.Now(), After: time.Second},
		"above zero":     {Name: "x", After: -1},
		"no phase":       {Name: "x", After: 1, To: "nowhere"},
		"only a remind":  {Name: "x", After: 1, To: "flying", Every: time.Minute},
		"a second at":    {Name: "x", After: 1, Every: time.Millisecond},
		"the year 10000": {Name: "x", At: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		err := r.missions.Update(ctx, "m1", nothing, workflow.SetTimer(timer))
		if !errors.Is(err, workflow.ErrInvalidTimer) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), `"m1"`) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := r.missions.Update(ctx, "m2", nothing, workflow.SetTimer(workflow.Timer{Name: "x", After: 1})); !errors.Is(err, workflow.ErrInvalidTimer) {
		t.Errorf("terminal: %v", err)
	}
	many := make([]workflow.WriteOption, workflow.MaxTimers+1)
	for i := range many {
		many[i] = workflow.SetTimer(workflow.Timer{Name: fmt.Sprint(i), After: time.Hour})
	}
	if err := r.missions.Update(ctx, "m1", nothing, many...); !errors.Is(err, workflow.ErrInvalidTimer) {
		t.Errorf("too many: %v", err)
	}
	if got := r.timers(t, "m1"); got != "" {
		t.Errorf("timers: %s", got)
	}
}

// TestManyTimersInAMinute has a due minute of timers, and a second one for each entity later: each
// fires once, and they are begun in the order of their times, so only those that are under way at
// once pass each other. TIMERS is how many entities there are in a long run.
func TestManyTimersInAMinute(t *testing.T) {
	n := 100_000
	if text := os.Getenv("TIMERS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		must(t, err)
	}
	if testing.Short() {
		n = 1000
	}
	b := brokertest.Embedded(t, broker.Config{Buckets: buckets(), Sync: broker.SyncInterval})
	var failed atomic.Int64 // tries that are repeated later
	m := workflow.NewManager(b.JetStream(), slog.New(countWarnings{slog.DiscardHandler, &failed}))
	defer m.Close()
	must(t, m.Register(survey, newMission, table))
	must(t, m.Ready(testContext(t)))
	minute := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	began := time.Now()
	var writers sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		writers.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				at := minute.Add(time.Minute * time.Duration(i) / time.Duration(n))
				err := m.Create(context.Background(), &Mission{ID: fmt.Sprintf("%07d", i), State: "flying"},
					workflow.SetTimer(workflow.Timer{Name: "go", At: at, To: "landing"}),
					workflow.SetTimer(workflow.Timer{Name: "end", At: at.Add(time.Minute), To: "completed", Keep: true}))
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	t.Log("created in", time.Since(began))
	began = time.Now()
	stop := background(t, m.Deadlines)
	for { // as long as it takes
		page, err := m.Query(t.Context(), survey, workflow.ListOptions{Phase: "completed", Limit: 1})
		must(t, err)
		if page.Total == n {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	t.Log(2*n, "timers fired in", time.Since(began))

	const underWay = 64
	most := 2*underWay + int(failed.Load())
	fired := make(map[string]string, n)
	stream, err := b.JetStream().Stream(t.Context(), "KV_MISSIONS")
	must(t, err)
	last := stream.CachedInfo().State.LastSeq
	messages, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{HeadersOnly: true})
	must(t, err)
	all, err := messages.Messages()
	must(t, err)
	defer all.Stop()
	for count := 0; ; {
		msg, err := all.Next()
		must(t, err)
		id := strings.TrimPrefix(msg.Subject(), "$KV.MISSIONS.mission.")
		if name := msg.Headers().Get("Lifecycle-Fired"); name != "" {
			place, err := strconv.Atoi(id)
			must(t, err)
			if name == "end" {
				place += n
			}
			if place-count > most {
				t.Fatalf("%s of %s fired as number %d of %d, and is number %d by its time", name, id, count, 2*n, place)
			}
			fired[id] += name + " "
			count++
		}
		meta, err := msg.Metadata()
		must(t, err)
		if meta.Sequence.Stream == last {
			break
		}
	}
	for i := range n {
		if id := fmt.Sprintf("%07d", i); fired[id] != "go end " {
			t.Fatalf("of %s fired %q", id, fired[id])
		}
	}
}

// countWarnings counts the warnings of a log.
type countWarnings struct {
	slog.Handler
	n *atomic.Int64
}

func (c countWarnings) Enabled(context.Context, slog.Level) bool { return true }

func (c countWarnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		c.n.Add(1)
	}
	return nil
}
