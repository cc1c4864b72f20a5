package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

const rule = workflow.TransitionSourceRule

// views are the ways in which a process can know what it moves.
var views = map[string][]workflow.RegisterOption{"view": nil, "without view": {workflow.WithoutView()}}

// moveCases are moves of every outcome, and the phases of their entities, "" for none.
func moveCases() map[string]struct {
	from string
	workflow.Move
} {
	with := func(opts ...workflow.WriteOption) workflow.Move {
		return workflow.Move{To: "flying", Source: rule, Options: opts}
	}
	return map[string]struct {
		from string
		workflow.Move
	}{
		"allowed":      {"planning", workflow.Move{To: "flying", Source: rule, Note: "two\nlines"}},
		"timer":        {"planning", with(workflow.SetTimer(workflow.Timer{Name: "t", At: time.Unix(1<<33, 0)}))},
		"key":          {"planning", with(workflow.Key("k"))},
		"match":        {"planning", with(workflow.IfMatch(1 << 40))},
		"dry":          {"planning", with(workflow.DryRun(nil))},
		"nil-option":   {"planning", with(nil)},
		"wrong-timer":  {"planning", with(workflow.SetTimer(workflow.Timer{}))},
		"no-edge":      {"planning", workflow.Move{To: "completed", Source: rule}},
		"no-phase":     {"planning", workflow.Move{To: "nowhere", Source: rule}},
		"no-source":    {"planning", workflow.Move{To: "flying"}},
		"wrong-source": {"planning", workflow.Move{To: "flying", Source: "me"}},
		"terminal":     {"aborted", workflow.Move{To: "flying", Source: rule}},
		"missing":      {"", workflow.Move{To: "flying", Source: rule}},
		"not a key":    {"", workflow.Move{To: "flying", Source: rule}},
	}
}

// TestManyMovesDoWhatSingleOnesDo makes moves of every outcome in one call, and compares
// each with a Transition of another entity: its error, the record and the history.
func TestManyMovesDoWhatSingleOnesDo(t *testing.T) {
	number := regexp.MustCompile(`revision \d+`)
	for name, opts := range views {
		t.Run(name, func(t *testing.T) {
			r := rigOn(t, brokertest.Server(t, broker.Config{Buckets: buckets()}), opts...)
			ctx := testContext(t)
			cases := moveCases()
			names := slices.Sorted(maps.Keys(cases))
			var moves []workflow.Move
			for _, name := range names {
				c := cases[name]
				for _, prefix := range []string{"many.", "one."} {
					if c.from != "" {
						r.create(t, prefix+name, c.from)
					}
				}
				c.EntityID = "many." + name
				moves = append(moves, c.Move)
			}
			results := r.missions.TransitionMany(ctx, moves)
			told := func(err error, id, name string) string {
				m, failed := r.missions.Get(ctx, id)
				trail, unknown := r.Trail(ctx, survey, id)
				for i := range trail.Events {
					trail.Events[i].At, trail.Events[i].Revision = time.Time{}, 0
				}
				text := fmt.Sprint(err, "\n", m, failed, "\n", trail, unknown)
				return number.ReplaceAllString(strings.ReplaceAll(text, id, name), "revision n")
			}
			moved := 0
			for i, name := range names {
				mv := moves[i]
				var revision uint64
				one := r.missions.Transition(ctx, "one."+name, mv.To, mv.Source, mv.Note, append(slices.Clip(mv.Options), workflow.RevisionTo(&revision))...)
				got, want := told(results[i].Err, "many."+name, name), told(one, "one."+name, name)
				if got != want || (revision == 0) != (results[i].Revision == 0) {
					t.Errorf("%s: %d\n%s\nwant as %d\n%s", name, results[i].Revision, got, revision, want)
				}
				if revision > 0 {
					moved++
					rec, err := r.record(ctx, "many."+name)
					if err != nil || rec.Revision != results[i].Revision {
						t.Errorf("%s: the record is at revision %d, and the move returned %d: %v", name, rec.Revision, results[i].Revision, err)
					}
				}
			}
			if moved != 3 {
				t.Errorf("%d moves were carried out, want 3", moved)
			}
		})
	}
}

// TestManyMovesOfOneEntityKeepTheirOrder mixes moves of a few entities.
func TestManyMovesOfOneEntityKeepTheirOrder(t *testing.T) {
	for name, opts := range views {
		t.Run(name, func(t *testing.T) {
			r := rigOn(t, brokertest.Server(t, broker.Config{Buckets: buckets()}), opts...)
			ctx := testContext(t)
			var moves []workflow.Move
			for _, id := range []string{"a", "b", "c"} {
				r.create(t, id, "flying")
			}
			for n := range 10 {
				for _, id := range []string{"a", "b", "c"} {
					moves = append(moves, workflow.Move{EntityID: id, To: []string{"capturing", "flying"}[n%2], Source: rule, Note: fmt.Sprint(n)})
				}
			}
			for i, moved := range r.missions.TransitionMany(ctx, moves) {
				must(t, moved.Err)
				if i >= 3 && moved.Revision == 0 {
					t.Errorf("move %d has no revision", i)
				}
			}
			for _, id := range []string{"a", "b", "c"} {
				events, err := r.missions.History(ctx, id)
				must(t, err)
				for n, e := range events[1:] {
					if e.Note != fmt.Sprint(n) {
						t.Errorf("%s: move %d is %+v", id, n, e)
					}
				}
				if len(events) != 11 {
					t.Errorf("%s has %d events, want 11", id, len(events))
				}
			}
		})
	}
}

// TestManyMovesOfSeveralProcessesHappenOnce lets two processes move the same entities
// back and forth, beside updates. Every move that was acknowledged is in the history
// once, with its revision, and no update is lost.
func TestManyMovesOfSeveralProcessesHappenOnce(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	ctx := testContext(t)
	rigs := []*rig{rigOn(t, b), rigOn(t, b, workflow.WithoutView())}
	const entities, rounds = 20, 6
	for n := range entities {
		rigs[0].create(t, fmt.Sprint("m", n), "flying")
	}
	var mu sync.Mutex
	acknowledged := make(map[string][]string) // notes, by entity
	var all sync.WaitGroup
	for i, r := range rigs {
		all.Go(func() {
			for round := range rounds {
				var moves []workflow.Move
				for n := range entities {
					to := []string{"capturing", "flying"}[(round+i)%2]
					moves = append(moves, workflow.Move{EntityID: fmt.Sprint("m", n), To: to, Source: rule, Note: fmt.Sprint(i, "-", round)})
				}
				for k, moved := range r.missions.TransitionMany(ctx, moves) {
					switch {
					case moved.Err == nil:
						mu.Lock()
						acknowledged[moves[k].EntityID] = append(acknowledged[moves[k].EntityID], moves[k].Note)
						mu.Unlock()
					case !errors.Is(moved.Err, workflow.ErrInvalidTransition): // the other one was faster
						t.Error(moved.Err)
					}
				}
			}
		})
		all.Go(func() {
			for n := range entities {
				if err := r.missions.Update(ctx, fmt.Sprint("m", n), func(m *Mission) error { m.Count++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for id, notes := range acknowledged {
		events, err := rigs[0].missions.History(ctx, id)
		must(t, err)
		var stored []string
		for _, e := range events[1:] {
			stored = append(stored, e.Note)
		}
		slices.Sort(stored)
		slices.Sort(notes)
		if !slices.Equal(stored, notes) {
			t.Errorf("%s: stored are %v, acknowledged %v", id, stored, notes)
		}
		m, err := rigs[0].missions.Get(ctx, id)
		must(t, err)
		if m.Count != len(rigs) {
			t.Errorf("%s: %d updates, want %d", id, m.Count, len(rigs))
		}
	}
}

// TestOneOfManyMovesThatWaitsDelaysNoOther blocks an entity in this process.
func TestOneOfManyMovesThatWaitsDelaysNoOther(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	var moves []workflow.Move
	for n := range 600 { // more than are under way at once
		moves = append(moves, workflow.Move{EntityID: fmt.Sprint("m", n), To: "flying", Source: rule})
		r.create(t, fmt.Sprint("m", n), "planning")
	}
	blocked, release := make(chan struct{}), make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		if err := r.missions.Update(ctx, "m0", func(*Mission) error { close(blocked); <-release; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-blocked
	others.Go(func() {
		for i, moved := range r.missions.TransitionMany(ctx, moves) {
			if moved.Err != nil {
				t.Errorf("%d: %v", i, moved.Err)
			}
		}
	})
	brokertest.Await(t, "the others to be moved", func() bool {
		page, err := r.Query(ctx, survey, workflow.ListOptions{Phase: "flying", Limit: 1})
		return err == nil && page.Total == len(moves)-1
	})
	close(release)
	others.Wait()
}

// lossy returns a process, another one whose answers p may drop, and 300 moves of
// missions.
func lossy(t *testing.T) (here, there *rig, p *muffler, moves []workflow.Move) {
	t.Helper()
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	p = muffle(t, srv.ClientURL())
	here = rigOn(t, srv)
	there = rigOn(t, brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}))
	for n := range 300 {
		moves = append(moves, workflow.Move{EntityID: fmt.Sprint("m", n), To: "flying", Source: rule})
		here.create(t, fmt.Sprint("m", n), "planning")
	}
	_, err := there.missions.List(testContext(t), workflow.ListOptions{Fresh: true})
	must(t, err)
	return here, there, p, moves
}

// TestManyMovesWhoseAnswersAreLostAreFound drops the answers of a server that carries
// the moves out. No more than a bounded number are sent then. When the connection is
// back, each has happened once.
func TestManyMovesWhoseAnswersAreLostAreFound(t *testing.T) {
	ctx := testContext(t)
	here, there, p, moves := lossy(t)
	flying := func() int {
		page, err := here.Query(ctx, survey, workflow.ListOptions{Phase: "flying", Limit: 1, Fresh: true})
		must(t, err)
		return page.Total
	}
	p.mute.Store(true)
	done := make(chan []workflow.Moved, 1)
	go func() { done <- there.missions.TransitionMany(ctx, moves) }()
	brokertest.Await(t, "as many as may be under way to be carried out", func() bool { return flying() >= 256 })
	if n := flying(); n > 256 {
		t.Errorf("%d were sent without an answer, want 256 at most", n)
	}
	p.mute.Store(false)
	p.cut()
	for i, moved := range <-done {
		if moved.Err != nil || moved.Revision == 0 {
			t.Errorf("%d: %+v", i, moved)
		}
	}
	for _, mv := range moves {
		events, err := here.missions.History(ctx, mv.EntityID)
		must(t, err)
		if len(events) != 2 {
			t.Errorf("%s: %+v", mv.EntityID, events)
		}
	}
}

// TestManyMovesEndWithTheirContext ends the context of moves that get no answer: those
// that were sent have an unknown outcome, the others were not begun.
func TestManyMovesEndWithTheirContext(t *testing.T) {
	ctx := testContext(t)
	here, there, p, moves := lossy(t)
	p.mute.Store(true)
	short, cancel := context.WithCancelCause(ctx)
	done := make(chan []workflow.Moved, 1)
	go func() { done <- there.missions.TransitionMany(short, moves) }()
	brokertest.Await(t, "moves to be carried out", func() bool {
		page, err := here.Query(ctx, survey, workflow.ListOptions{Phase: "flying", Limit: 1, Fresh: true})
		return err == nil && page.Total == 256
	})
	why := errors.New("enough")
	cancel(why)
	sent := 0
	for i, moved := range <-done {
		if !errors.Is(moved.Err, why) || !strings.Contains(moved.Err.Error(), moves[i].EntityID) {
			t.Errorf("%d: %v", i, moved.Err)
		}
		if errors.Is(moved.Err, workflow.ErrOutcomeUnknown) {
			sent++
		}
	}
	if sent != 256 {
		t.Errorf("%d have an unknown outcome, want the 256 that were sent", sent)
	}
	p.mute.Store(false)
	p.cut()
}

func TestManyMovesOfNothing(t *testing.T) {
	r := newRig(t)
	if got := r.missions.TransitionMany(testContext(t), nil); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	for _, moved := range r.TransitionMany(testContext(t), "none", make([]workflow.Move, 2)) {
		if !errors.Is(moved.Err, workflow.ErrWorkflowNotRegistered) {
			t.Error(moved.Err)
		}
	}
	must(t, r.Close())
	for _, moved := range r.missions.TransitionMany(testContext(t), make([]workflow.Move, 2)) {
		if !errors.Is(moved.Err, workflow.ErrClosed) {
			t.Error(moved.Err)
		}
	}
}
