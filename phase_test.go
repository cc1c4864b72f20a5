package lifecycle_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

func untilDone(ctx context.Context) error { <-ctx.Done(); return nil }

// TestPhaseHasItsTimeAndItsChannel reads an App's phase from another goroutine
// during its whole life. When a phase is visible, its time is set and its channel
// is closed.
func TestPhaseHasItsTimeAndItsChannel(t *testing.T) {
	var looks, untimed, open atomic.Int64
	for range 300 {
		app := newRig(t, lifecycle.Config{}).App
		app.Go("work", func(context.Context) error { app.Stop(nil); return nil })
		ended := make(chan struct{})
		var readers sync.WaitGroup
		readers.Go(func() {
			for {
				phase := app.Phase()
				looks.Add(1)
				if app.EnteredAt(phase).IsZero() {
					untimed.Add(1)
				}
				select {
				case <-app.Reached(phase):
				default:
					open.Add(1)
				}
				select {
				case <-ended:
					return
				default:
				}
			}
		})
		if err := app.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(ended)
		readers.Wait()
	}
	if untimed.Load()+open.Load() > 0 {
		t.Errorf("of %d looks, %d saw a phase without its time and %d one whose channel was open", looks.Load(), untimed.Load(), open.Load())
	}
}

func TestReachedAndEnteredAtOfPhasesThatAreNotEntered(t *testing.T) {
	app := newRig(t, lifecycle.Config{}).App
	if at := app.EnteredAt(lifecycle.PhaseCreated); at.IsZero() {
		t.Error("the phase created has no time")
	}
	if at := app.EnteredAt(lifecycle.PhaseRunning); !at.IsZero() {
		t.Errorf("the App entered running at %v", at)
	}
	if app.Reached("napping") != nil || !app.EnteredAt("napping").IsZero() {
		t.Error("a word that is not a phase has a channel or a time")
	}
	select {
	case <-app.Reached(lifecycle.PhaseRunning):
		t.Error("the App has reached running")
	default:
	}
}

// TestEventsTellEachLife runs an App with one part of every kind. The events of
// each life are numbered 1, 2, 3, …, and each life but the App's names its parent.
func TestEventsTellEachLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := newRig(t, lifecycle.Config{}).App
		sub := app.Events().Subscribe(1024)
		runs := 0
		app.Supervise("poller", func(ctx context.Context) error {
			if runs++; runs <= 2 {
				return errBoom
			}
			return untilDone(ctx)
		}, worker.Backoff{Min: time.Second, Max: time.Second}).
			Go("work", untilDone).
			Lead("leader", &candidate{row: &leaseRow{}, id: "me"}, untilDone).
			Probe("db", lifecycle.ProbeFunc(func(context.Context) error { return nil })).
			OnDrain("streams", lifecycle.DrainFunc(func(context.Context) error { return nil })).
			OnReload("level", func(context.Context) error { return nil }).
			OnShutdown("db", func(context.Context) error { return nil })
		go func() {
			time.Sleep(time.Minute)
			_ = app.Reload(t.Context())
			_ = app.Reload(t.Context())
			app.Stop(nil)
		}()
		if err := app.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		sub.Close()
		seq, names, parents := map[uint64]uint64{}, map[uint64]string{}, map[uint64]uint64{}
		lives, attempts := map[string]int{}, 0
		for e := range sub.All(t.Context()) {
			if e.ID == 0 || e.Seq != seq[e.ID]+1 {
				t.Errorf("%s %s: event %d of life %d after event %d", e.Kind, e.Name, e.Seq, e.ID, seq[e.ID])
			}
			name := e.Kind + " " + e.Name
			if seq[e.ID] == 0 {
				lives[name]++
			} else if names[e.ID] != name || parents[e.ID] != e.Parent {
				t.Errorf("life %d is %s of %d and %s of %d", e.ID, names[e.ID], parents[e.ID], name, e.Parent)
			}
			seq[e.ID], names[e.ID], parents[e.ID] = e.Seq, name, e.Parent
			attempts = max(attempts, e.Attempt)
		}
		ids := map[string]uint64{}
		for id, name := range names {
			ids[name] = id
		}
		for name, want := range map[string]struct {
			lives  int
			parent string
		}{
			"app rig": {1, ""}, "worker poller": {1, "app rig"}, "worker work": {1, "app rig"},
			"worker leader": {1, "app rig"}, "worker leader/term": {1, "worker leader"},
			"probe readiness/db": {1, "app rig"}, "drainer streams": {1, "app rig"}, "reload level": {2, "app rig"}, "hook db": {1, "app rig"},
		} {
			if lives[name] != want.lives || parents[ids[name]] != ids[want.parent] {
				t.Errorf("%s: %d lives with the parent %q, want %d with %q", name, lives[name], names[parents[ids[name]]], want.lives, want.parent)
			}
		}
		if attempts != 3 {
			t.Errorf("%d attempts of the poller were seen, want 3", attempts)
		}
	})
}

// A process may be ended by force in every phase, also while Run refuses its registrations and
// a hook hangs: then the phase is still created.
func TestEveryPhaseThatIsNotTheLastMayBeKilled(t *testing.T) {
	for phase, next := range lifecycle.Phases() {
		if len(next) > 0 && !slices.Contains(next, lifecycle.PhaseKilled) {
			t.Errorf("from %s no way leads to %s", phase, lifecycle.PhaseKilled)
		}
	}
}
