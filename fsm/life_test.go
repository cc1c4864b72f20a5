package fsm_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

func TestLivesOfOneNameHaveIDsOfTheirOwn(t *testing.T) {
	var events fsm.Dispatcher
	sub := events.Subscribe(8)
	a := fsm.MustNew("door", "front", door, "open", &events)
	b := fsm.MustNew("door", "front", door, "open", &events)
	if a.ID() == 0 || a.ID() == b.ID() {
		t.Fatalf("the IDs are %d and %d", a.ID(), b.ID())
	}
	_, _, _ = a.To("closed", nil), b.To("closed", nil), a.To("locked", nil)
	sub.Close()
	seq := map[uint64]uint64{}
	for e := range sub.All(t.Context()) {
		if seq[e.ID]++; e.Seq != seq[e.ID] || e.Parent != 0 || e.Attempt != 0 {
			t.Errorf("got %+v", e)
		}
	}
	if seq[a.ID()] != 2 || seq[b.ID()] != 1 {
		t.Errorf("the changes by life are %v", seq)
	}
}

func TestEventsOfAPartHaveTheWholeAsParent(t *testing.T) {
	var app, house, own fsm.Dispatcher
	whole := fsm.MustNew("house", "no 7", door, "open", &house)
	house.SetOwner(whole.ID())
	house.Forward(&app)
	part := fsm.MustNew("door", "front", door, "open", &own)
	own.SetOwner(part.ID())
	alone := own.Subscribe(8)
	_ = part.To("closed", nil) // it has no parent yet
	own.Forward(&house)
	sub := app.Subscribe(8)
	_, _ = whole.To("closed", nil), part.To("open", nil)
	for _, want := range []struct{ id, parent uint64 }{{whole.ID(), 0}, {part.ID(), whole.ID()}} {
		if e, _ := sub.Next(t.Context()); e.ID != want.id || e.Parent != want.parent {
			t.Errorf("got %+v, want life %d of %d", e, want.id, want.parent)
		}
	}
	for _, want := range []uint64{0, whole.ID()} { // every reader sees the same event
		if e, _ := alone.Next(t.Context()); e.Parent != want {
			t.Errorf("got %+v, want the parent %d", e, want)
		}
	}
}

func TestAttemptsAreOneLife(t *testing.T) {
	var events fsm.Dispatcher
	sub := events.Subscribe(8)
	whole := fsm.MustNew("door", "front", door, "open", &events)
	first, second := new(fsm.Machine[phase]), new(fsm.Machine[phase])
	whole.BeginAttempt(first, 1, "closed")
	whole.BeginAttempt(second, 2, "closed")
	_, _, _, _ = whole.To("closed", nil), first.To("locked", nil), second.To("open", nil), whole.To("open", nil)
	if whole.State() != "open" || first.State() != "locked" || second.State() != "open" {
		t.Error("each attempt has a state of its own")
	}
	for i, attempt := range []int{0, 1, 2, 0} {
		e, _ := sub.Next(t.Context())
		if e.ID != whole.ID() || e.ID != first.ID() || e.Seq != uint64(i+1) || e.Attempt != attempt {
			t.Errorf("event %d is %+v, want attempt %d of life %d", i+1, e, attempt, whole.ID())
		}
	}
}

func TestContinueGoesOnWithALife(t *testing.T) {
	var events fsm.Dispatcher
	sub := events.Subscribe(8)
	before := fsm.MustNew("door", "front", door, "open", &events)
	_ = before.To("closed", nil)
	m := fsm.MustNew("door", "front", door, "open", &events)
	if !m.Continue(before) || m.ID() != before.ID() || m.State() != "closed" {
		t.Errorf("it is life %d in %q, want %d in closed", m.ID(), m.State(), before.ID())
	}
	if before.To("open", nil) == nil || m.To("locked", nil) != nil {
		t.Error("the new machine must change, and the old one must not")
	}
	for want := uint64(1); want <= 2; want++ {
		if e, _ := sub.Next(t.Context()); e.ID != m.ID() || e.Seq != want {
			t.Errorf("got %+v", e)
		}
	}
	if fsm.MustNew("door", "back", door, "open", nil).Continue(m) {
		t.Error("a life that has ended was continued")
	}
}

func TestTimelineKeepsTheFirstEntryOfEachState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fsm.MustNew("door", "front", door, "open", nil, fsm.WithTimeline())
		began, closed := time.Now(), m.Reached("closed")
		select {
		case <-m.Reached("open"):
		default:
			t.Error("a machine has reached its initial state")
		}
		for range 3 { // closed after 1s, 3s and 5s
			time.Sleep(time.Second)
			_ = m.To("closed", nil)
			time.Sleep(time.Second)
			_ = m.To("open", nil)
		}
		<-closed
		if got := m.EnteredAt("closed").Sub(began); got != time.Second {
			t.Errorf("it was first closed after %v, want 1s", got)
		}
		if !m.EnteredAt("open").Equal(began) || !m.EnteredAt("locked").IsZero() || !m.EnteredAt("ajar").IsZero() {
			t.Error("only the initial state, open, may have a time")
		}
		select {
		case <-m.Reached("locked"):
			t.Error("it was never locked")
		case <-m.Reached("ajar"):
			t.Error("there is no such state")
		default:
		}
	})
}

// TestTimelineAnswersWhileTheMachineIsHeld uses a predicate that does not return
// and so holds the machine's lock.
func TestTimelineAnswersWhileTheMachineIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fsm.MustNew("door", "front", door, "open", nil, fsm.WithTimeline())
		release := make(chan struct{})
		go func() {
			_, _ = m.Wait(context.Background(), func(s phase) bool { <-release; return true })
		}()
		synctest.Wait()
		<-m.Reached("open")
		if m.EnteredAt("open").IsZero() {
			t.Error("it is open")
		}
		close(release)
	})
}

func TestTimelineIsNeededForItsMethods(t *testing.T) {
	m := fsm.MustNew("door", "front", door, "open", nil)
	for name, call := range map[string]func(){
		"EnteredAt": func() { m.EnteredAt("open") },
		"Reached":   func() { m.Reached("open") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", name)
				}
			}()
			call()
		}()
	}
}

// TestStateThatIsSeenHasItsTime reads a machine while it changes.
func TestStateThatIsSeenHasItsTime(t *testing.T) {
	for range 2000 {
		m := fsm.MustNew("door", "front", door, "open", nil, fsm.WithTimeline())
		go func() {
			_ = m.To("closed", nil)
			_ = m.To("locked", nil)
		}()
		for s := phase(""); s != "locked"; {
			if s = m.State(); m.EnteredAt(s).IsZero() {
				t.Fatalf("the state %s has no time", s)
			}
			select {
			case <-m.Reached(s):
			default:
				t.Fatalf("the channel of the state %s is open", s)
			}
		}
	}
}

// TestConditionThatPanicsPanicsInItsWait checks a panic in the function of one
// waiter, at the beginning of its wait and later.
func TestConditionThatPanicsPanicsInItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fsm.MustNew("door", "front", door, "open", nil)
		wait := func(until func(phase) bool) (panicked any) {
			defer func() { panicked = recover() }()
			_, _ = m.Wait(t.Context(), until)
			return nil
		}
		if v := wait(func(phase) bool { panic("at once") }); v != "at once" {
			t.Errorf("Wait has panicked with %v", v)
		}
		later, other := make(chan any), make(chan any)
		go func() { other <- wait(func(s phase) bool { return s == "closed" }) }()
		synctest.Wait()
		go func() {
			later <- wait(func(s phase) bool {
				if s == "closed" {
					panic("later")
				}
				return false
			})
		}()
		synctest.Wait()
		if err := m.To("closed", nil); err != nil {
			t.Error(err)
		}
		if v := <-later; v != "later" {
			t.Errorf("Wait has panicked with %v", v)
		}
		if v := <-other; v != nil {
			t.Errorf("the other waiter has panicked with %v", v)
		}
		if err := m.To("locked", nil); err != nil || m.State() != "locked" {
			t.Errorf("it is %s: %v", m.State(), err)
		}
	})
}
