package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestOnlyAnOperatorMovesAPausedEntity checks what writes do while an entity is paused, and that
// each of them keeps the mark.
func TestOnlyAnOperatorMovesAPausedEntity(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	r.create(t, "m2", "planning")
	must(t, r.missions.Pause(ctx, "m1", "the pilot is ill"))
	var first, second uint64
	must(t, r.missions.Pause(ctx, "m1", "again", workflow.RevisionTo(&first)))

	for name, write := range map[string]func() error{
		"rule": func() error {
			return r.missions.Transition(ctx, "m1", "flying", workflow.TransitionSourceRule, "")
		},
		"component": func() error {
			return r.missions.Transition(ctx, "m1", "flying", workflow.TransitionSourceComponent, "")
		},
		"framework": func() error {
			return r.missions.TransitionWith(ctx, "m1", "aborted", workflow.TransitionSourceFramework, "", nil)
		},
		"many": func() error {
			return r.missions.TransitionMany(ctx, []workflow.Move{{EntityID: "m1", To: "flying", Source: "rule"}})[0].Err
		},
	} {
		if err := write(); !errors.Is(err, workflow.ErrPaused) {
			t.Errorf("%s: %v, want ErrPaused", name, err)
		}
	}
	must(t, r.missions.Pause(ctx, "m1", "again", workflow.RevisionTo(&second)))
	if first != second {
		t.Errorf("a second pause wrote revision %d after %d", second, first)
	}
	must(t, r.missions.Transition(ctx, "m1", "flying", workflow.TransitionSourceOperator, ""))
	must(t, r.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))
	must(t, rigOn(t, r.b).missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))

	for _, other := range []*rig{r, rigOn(t, r.b), rigOn(t, r.b, workflow.WithoutView())} {
		rec, err := other.record(ctx, "m1")
		must(t, err)
		if !rec.Paused || rec.Phase != "flying" {
			t.Errorf("paused is %v, in %s", rec.Paused, rec.Phase)
		}
		if err := other.missions.Transition(ctx, "m1", "landing", "rule", ""); !errors.Is(err, workflow.ErrPaused) {
			t.Errorf("another process: %v, want ErrPaused", err)
		}
	}
	page, err := r.Query(ctx, survey, workflow.ListOptions{Paused: true})
	must(t, err)
	if len(page.Records) != 1 || page.Records[0].EntityID != "m1" {
		t.Errorf("paused are %v, want m1", page.Records)
	}

	must(t, r.missions.Resume(ctx, "m1", "she is back"))
	must(t, r.missions.Resume(ctx, "m1", "she is back"))
	r.move(t, "m1", "landing")
	events, err := r.missions.History(ctx, "m1")
	must(t, err)
	got := ""
	for _, e := range events {
		got += fmt.Sprintf("%s>%s %s %s %q\n", e.From, e.To, e.Pause, e.Triggered, e.Note)
	}
	const want = `>planning  framework ""
planning>planning pause operator "the pilot is ill"
planning>flying  operator ""
flying>flying resume operator "she is back"
flying>landing  component ""
`
	if got != want {
		t.Errorf("history is\n%swant\n%s", got, want)
	}

	must(t, r.missions.Pause(ctx, "m2", ""))
	must(t, r.missions.Delete(ctx, "m2"))
	r.create(t, "m2", "planning") // a new life is not paused
	r.move(t, "m2", "flying")
	if err := r.missions.Pause(ctx, "none", ""); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("an entity that does not exist: %v", err)
	}
}

// TestPausedTimersFireAtResumeInOrder has an entity whose timers and deadline pass while it is
// paused, and one that is not paused and shows that their time has come.
func TestPausedTimersFireAtResumeInOrder(t *testing.T) {
	r := newRig(t, workflow.WithDeadline("landing", "completed", time.Millisecond))
	ctx := testContext(t)
	for _, id := range []string{"paused", "other"} {
		must(t, r.missions.Create(ctx, &Mission{ID: id, State: "planning"},
			workflow.SetTimer(workflow.Timer{Name: "land", After: 300 * time.Millisecond, To: "landing", Keep: true}),
			workflow.SetTimer(workflow.Timer{Name: "go", After: 200 * time.Millisecond, To: "flying", Keep: true}),
			workflow.SetTimer(workflow.Timer{Name: "look", After: 250 * time.Millisecond, Every: time.Hour, Keep: true})))
	}
	must(t, r.missions.Pause(ctx, "paused", ""))
	stop := r.deadlines(t)
	r.awaitPhase(t, "other", "completed")
	if got := r.timers(t, "paused"); got != "land set 0, go set 0, look set 0" {
		t.Errorf("timers of a paused entity: %s", got)
	}
	stop()
	other := rigOn(t, r.b, workflow.WithDeadline("landing", "completed", time.Millisecond)) // the next leader
	other.deadlines(t)
	must(t, r.missions.Resume(ctx, "paused", ""))
	r.awaitPhase(t, "paused", "completed")
	events, err := r.missions.History(ctx, "paused")
	must(t, err)
	got := ""
	for _, e := range events {
		got += e.Pause + " " + e.To + ", "
	}
	if got != " planning, pause planning, resume planning,  flying,  landing,  completed, " {
		t.Errorf("history: %s", got)
	}
}

// TestPausedEntityHoldsItsReactions moves an entity while it is paused, and ends the hooks
// meanwhile. Another entity shows that the hooks run.
func TestPausedEntityHoldsItsReactions(t *testing.T) {
	b := hookServer(t)
	var s seen
	var well atomic.Bool
	r := hooked(t, b, workflow.Hook{Backoff: quick, Attempts: 1 << 20, Replay: true, Do: func(_ context.Context, re workflow.Reaction) error {
		if re.Record.EntityID == "m1" && !well.Load() {
			return errors.New("not yet")
		}
		s.note(re)
		return nil
	}})
	ctx := testContext(t)
	stop := r.hooks(t)
	r.create(t, "m0", "planning")
	s.await(t, "m0", "[>planning]")
	r.create(t, "m1", "planning") // its hook fails
	must(t, r.missions.Pause(ctx, "m1", "the invoice is wrong"))
	must(t, r.missions.Transition(ctx, "m1", "flying", workflow.TransitionSourceOperator, ""))
	r.move(t, "m0", "flying")
	s.await(t, "m0", "[>planning planning>flying]")
	stop()
	well.Store(true)
	r.hooks(t)
	must(t, r.missions.Transition(ctx, "m1", "landing", workflow.TransitionSourceOperator, ""))
	r.move(t, "m0", "landing")
	s.await(t, "m0", "[>planning planning>flying flying>landing]")
	if got := s.of("m1"); got != "[]" {
		t.Errorf("while it is paused: %s", got)
	}
	must(t, r.missions.Resume(ctx, "m1", ""))
	s.await(t, "m1", "[>planning planning>flying flying>landing]")
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.ids {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

// TestPauseIsWatched checks the events of a watch.
func TestPauseIsWatched(t *testing.T) {
	r := rigOn(t, brokertest.Server(t, broker.Config{Buckets: buckets()}))
	ctx := testContext(t)
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	for e := range events {
		if e.Kind == workflow.EventSynced {
			break
		}
	}
	r.create(t, "m1", "planning")
	must(t, r.missions.Pause(ctx, "m1", "stop"))
	must(t, r.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))
	must(t, r.missions.Resume(ctx, "m1", "go"))
	got := ""
	for n := 0; n < 4; {
		select {
		case e := <-events:
			got += fmt.Sprintf("%v %v %q, ", e.Record.Paused, e.Moved, e.Note)
			n++
		case <-ctx.Done():
			t.Fatalf("the watch sent %s", got)
		}
	}
	if want := `false true "", true false "stop", true false "", false false "go", `; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
