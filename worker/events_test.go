package worker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// drained returns every event of a subscription and closes it.
func drained(t *testing.T, sub *fsm.Subscription) (events []fsm.Event) {
	t.Helper()
	sub.Close()
	for e := range sub.All(t.Context()) {
		if e.IsGap() {
			t.Fatalf("%d events were lost", e.Seq)
		}
		events = append(events, e)
	}
	return events
}

// wantWholeLives fails the test unless the events of each life are numbered 1, 2,
// 3, …, and each event of an attempt leaves the state that the event before it
// entered.
func wantWholeLives(t *testing.T, events []fsm.Event) {
	t.Helper()
	type run struct {
		id      uint64
		attempt int
	}
	seq, state := map[uint64]uint64{}, map[run]string{}
	for _, e := range events {
		if e.ID == 0 || e.Seq != seq[e.ID]+1 {
			t.Errorf("%s: event %d of life %d after event %d", e.Name, e.Seq, e.ID, seq[e.ID])
		}
		before, known := state[run{e.ID, e.Attempt}]
		if !known {
			before = string(worker.StatusCreated)
		}
		if e.From != before {
			t.Errorf("%s: life %d, attempt %d left %s, but had entered %s", e.Name, e.ID, e.Attempt, e.From, before)
		}
		seq[e.ID], state[run{e.ID, e.Attempt}] = e.Seq, e.To
	}
}

func TestRestarterIsOneLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		r := worker.NewRestarter("poller", func(context.Context) error {
			if runs++; runs <= 2 {
				return errBoom
			}
			return nil
		}, steady())
		sub := r.Watch(64)
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-r.Done()
		synctest.Wait()
		events := drained(t, sub)
		wantWholeLives(t, events)
		of := map[int]string{}
		for _, e := range events {
			if e.ID != r.ID() || e.Parent != 0 || e.Name != "poller" {
				t.Errorf("%+v is not of life %d", e, r.ID())
			}
			of[e.Attempt] += " " + e.To
		}
		want := map[int]string{
			0: " Starting Running Finished",
			1: " Starting Running Failed",
			2: " Pending Starting Running Failed",
			3: " Pending Starting Running Finished",
		}
		if fmt.Sprint(of) != fmt.Sprint(want) {
			t.Errorf("by attempt it was %v, want %v", of, want)
		}
	})
}

func TestEachInstanceOfAChildIsALifeOfItsSupervisor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		failing := func(ctx context.Context) error {
			if runs++; runs <= 2 {
				return errBoom
			}
			<-ctx.Done()
			return nil
		}
		inner := worker.NewSupervisor("inner", worker.SupervisorConfig{Backoff: steady(), Children: []worker.Spec{worker.FuncSpec("w", failing)}})
		outer := worker.NewSupervisor("outer", worker.SupervisorConfig{Children: []worker.Spec{
			{Name: "inner", New: func(string) (worker.Worker, error) { return inner, nil }},
			worker.FuncSpec("w", func(ctx context.Context) error { <-ctx.Done(); return nil }),
		}})
		sub := outer.Watch(256)
		if err := outer.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		stop(t, outer)
		events := drained(t, sub)
		wantWholeLives(t, events)

		lives := map[uint64]string{} // the changes of each of inner's children
		parents := map[uint64]uint64{outer.ID(): 0, inner.ID(): outer.ID()}
		other := 0
		for _, e := range events {
			switch {
			case e.Name == "w" && e.Parent == inner.ID():
				lives[e.ID] += " " + e.To
			case e.Name == "w" && e.Parent == outer.ID():
				other++
			case e.Parent != parents[e.ID]:
				t.Errorf("%s has the parent %d, want %d", e.Name, e.Parent, parents[e.ID])
			}
		}
		if len(lives) != 3 || other != 4 {
			t.Errorf("inner has had the children %v, and outer's own has made %d events", lives, other)
		}
		count := map[string]int{}
		for _, did := range lives {
			count[did]++
		}
		for _, want := range []string{
			" Starting Running Failed",
			" Pending Starting Running Failed", // an instance continues the life that waited in its place
			" Pending Starting Running Stopping Stopped",
		} {
			if count[want] != 1 {
				t.Errorf("%d instances did%s, want 1; all: %v", count[want], want, lives)
			}
		}
	})
}

// TestPendingChildOfAnAbandonedOneStaysOneLife changes the reason of a pending
// child. The child waits for its backoff first, and then for the previous
// instance.
func TestPendingChildOfAnAbandonedOneStaysOneLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, failures, release := 0, 0, make(chan struct{})
		s := worker.NewSupervisor("s", worker.SupervisorConfig{Backoff: steady(), Strategy: worker.OneForAll, Children: []worker.Spec{
			{Name: "stubborn", StopTimeout: time.Second, New: worker.FuncSpec("", func(ctx context.Context) error {
				if calls++; calls == 1 {
					<-release
				}
				<-ctx.Done()
				return nil
			}).New},
			worker.FuncSpec("fails", func(ctx context.Context) error {
				if failures++; failures == 1 {
					return errBoom
				}
				<-ctx.Done()
				return nil
			}),
		}})
		sub := s.Watch(64)
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := s.State().Children[0]; got.Status != worker.StatusPending {
			t.Fatalf("it is %+v", got)
		}
		close(release)
		time.Sleep(time.Minute)
		stop(t, s)
		events := drained(t, sub)
		wantWholeLives(t, events)
		lives := map[uint64]string{}
		for _, e := range events {
			if e.Name == "stubborn" {
				lives[e.ID] += " " + e.To
			}
		}
		if len(lives) != 2 {
			t.Errorf("%d lives of the stubborn child, want 2: %v", len(lives), lives)
		}
	})
}

// A restarted supervisor continues the life that was pending in its place, and
// its children belong to that life.
func TestChildrenOfARestartedSupervisorBelongToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		outer := worker.NewSupervisor("outer", worker.SupervisorConfig{Backoff: steady(), Children: []worker.Spec{
			{Name: "inner", New: func(name string) (worker.Worker, error) {
				made++
				first := made == 1
				return worker.NewSupervisor(name, worker.SupervisorConfig{Backoff: worker.Backoff{MaxRestarts: 1}, Children: []worker.Spec{worker.FuncSpec("w", func(ctx context.Context) error {
					if first {
						return errBoom // more often than inner restarts it
					}
					<-ctx.Done()
					return nil
				})}}), nil
			}},
		}})
		sub := outer.Watch(64)
		if err := outer.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		stop(t, outer)
		events := drained(t, sub)
		wantWholeLives(t, events)
		inner := map[uint64]int{} // lives of inner, and the events of their children
		for _, e := range events {
			if e.Name == "inner" {
				inner[e.ID] += 0
				if e.Parent != outer.ID() {
					t.Errorf("%+v: want the parent %d", e, outer.ID())
				}
			}
		}
		for _, e := range events {
			if e.Name == "w" {
				inner[e.Parent]++
			}
		}
		if made != 2 || len(inner) != 2 {
			t.Errorf("inner was made %d times, and the children belong to %v, want two lives", made, inner)
		}
	})
}
