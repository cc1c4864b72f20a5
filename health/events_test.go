package health

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

func TestTransitionsComeOnceAndInOrder(t *testing.T) {
	d := new(fsm.Dispatcher)
	r, f := NewRegistry(WithEvents(d)), new(fake)
	if r.Events() != d {
		t.Error("Events is not the dispatcher that was given")
	}
	sub := d.Subscribe(64)
	must(t, r.RegisterReadiness("db", f))
	for _, err := range []error{nil, nil, errDown, errDown, ErrUnknown, nil} {
		f.set(err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { get(t, r, "/readyz") })
		}
		wg.Wait()
	}
	ownerOf(r).SetDraining(true)
	ownerOf(r).SetDraining(true)
	want := []string{
		"probe readiness/db 1 unknown>up <nil>",
		"probe readiness/db 2 up>down connection refused",
		"probe readiness/db 3 down>unknown state unknown",
		"probe readiness/db 4 unknown>up <nil>",
		"probe readiness/lifecycle 1 up>down draining",
	}
	sub.Close()
	var got []string
	for e := range sub.All(t.Context()) {
		got = append(got, fmt.Sprintf("%s %s %d %s>%s %v", e.Kind, e.Name, e.Seq, e.From, e.To, e.Cause))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The owner of the given dispatcher is the parent of the events.
func TestEventsBelongToTheOwnerOfTheDispatcher(t *testing.T) {
	d := new(fsm.Dispatcher)
	d.SetOwner(42)
	r, own := NewOwned(WithEvents(d))
	sub := d.Subscribe(4)
	must(t, r.RegisterReadiness("db", ProbeFunc(passing)))
	expect(t, r, "/readyz", 200, "")
	own.SetDraining(true)
	sub.Close()
	ids := make(map[uint64]string)
	for e := range sub.All(t.Context()) {
		if e.Parent != 42 {
			t.Errorf("%s has the parent %d, want 42", e.Name, e.Parent)
		}
		ids[e.ID] = e.Name
	}
	if len(ids) != 2 {
		t.Errorf("the lives are %v, want one for the check and one for the condition", ids)
	}
}

func TestSlowListenerDoesNotBlockTheRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		must(t, r.RegisterReadiness("db", f))
		release := make(chan struct{})
		var seen []fsm.Event
		stop := r.Events().Listen(2, func(e fsm.Event) {
			seen = append(seen, e)
			<-release
		})
		began := time.Now()
		for i := range 10 {
			f.set(nil)
			if i%2 == 1 {
				f.set(errDown)
			}
			get(t, r, "/readyz")
			synctest.Wait()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("ten probes took %v behind a listener that hangs", took)
		}
		close(release)
		stop()
		// The listener holds the first event. Of the nine after it, the reader
		// keeps two.
		if len(seen) != 4 || !seen[1].IsGap() || seen[1].Seq != 7 || seen[2].Seq != 9 || seen[3].Seq != 10 {
			t.Errorf("the listener saw %v, want event 1, a gap of 7, events 9 and 10", seen)
		}
	})
}

// onceError allows the calls of its methods while the check runs, and none after it.
type onceError struct {
	t    *testing.T
	over *atomic.Bool
}

func (e onceError) Error() string {
	if e.over.Load() {
		e.t.Error("a method of the check's error ran after the check had returned")
	}
	return "foreign"
}

func (e onceError) Is(target error) bool { return e.Error() == "" && target == nil }

func TestListenersRunNoForeignCode(t *testing.T) {
	var over atomic.Bool
	r := NewRegistry()
	sub := r.Events().Subscribe(4)
	must(t, r.RegisterReadiness("db", ProbeFunc(func(context.Context) error {
		return fmt.Errorf("dial: %w", onceError{t, &over})
	})))
	get(t, r, "/readyz")
	over.Store(true)
	sub.Close()
	for e := range sub.All(t.Context()) {
		if e.Cause.Error() != "dial: foreign" {
			t.Errorf("the cause is %v", e.Cause)
		}
	}
}
