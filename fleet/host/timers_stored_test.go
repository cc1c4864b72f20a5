package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// places returns the places that the timers of a worker have or have had on the server.
func (r *rig) places(h *host.Host, id string) (places []string) {
	r.t.Helper()
	rec, err := h.Get(r.t.Context(), id)
	must(r.t, err)
	stream, err := r.js.Stream(r.t.Context(), "HOST_STATE")
	must(r.t, err)
	prefix := fmt.Sprintf("$host.state.w-%s.tm.%s.%s.", id, id, rec.UID)
	info, err := stream.Info(r.t.Context(), jetstream.WithSubjectFilter(prefix+">"))
	must(r.t, err)
	for subject := range info.State.Subjects {
		places = append(places, strings.TrimPrefix(subject, prefix))
	}
	return sorted(places)
}

// TestTimersStayGone checks that no timer that has fired comes back when its server is
// killed. A server that starts again forgets what it has replaced, and so brought timers
// back whose later mark, that they are gone, had expired.
func TestTimersStayGone(t *testing.T) {
	if testing.Short() {
		t.Skip("the test waits for more than the ten seconds after which marks once expired")
	}
	cluster := brokertest.StartCluster(t, 1)
	r := rigOn(t, brokertest.Connect(t, broker.Config{URL: cluster.URL()}), 1)
	h := r.startWith(r.native("w", timed))
	r.say("work.w", "k", "set a 1h 1; set b 1h 2; set z 3h 3; set gone 3h 4")
	r.wantTimers(h, "w", "k/a", "k/b", "k/z", "k/gone") // they are on the server
	r.say("work.w", "k", "cancel gone")
	h.Advance(2 * time.Hour)
	r.wantTimers(h, "w", "k/z")
	want := r.outputs("out.w")
	time.Sleep(12 * time.Second)
	cluster.Kill(0)
	cluster.Start(0)
	r.eventually("the server answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, _, err := h.Timers(ctx, "w", 0, 1)
		return err == nil
	})
	r.wantTimers(h, "w", "k/z")
	must(t, h.Supersede(t.Context(), "w-w")) // the next holder reads them
	r.say("work.w", "k", "set c 1h 5; list")
	r.wantTimers(h, "w", "k/c", "k/z")
	if got := r.outputs("out.w"); !slices.Equal(got, append(want, "set c 1h 5; list: c z")) {
		t.Errorf("%q", got)
	}
}

// TestTimersUseFewSubjects checks that a worker's timers leave no more subjects on the
// server than there were timers at once, of any names and keys.
func TestTimersUseFewSubjects(t *testing.T) {
	r := newRig(t)
	h := r.startWith(r.native("w", timed))
	r.say("work.w", "other", "set stays 1h x")
	for i := range 20 {
		r.say("work.w", fmt.Sprint("k", i), fmt.Sprintf("set t%d 1h %d; set u%d 1h x", i, i, i))
		r.wantTimers(h, "w", "other/stays", fmt.Sprintf("k%d/t%d", i, i), fmt.Sprintf("k%d/u%d", i, i))
		if i%2 == 0 {
			must(t, h.Supersede(t.Context(), "w-w"))
		}
		r.say("work.w", fmt.Sprint("k", i), fmt.Sprintf("cancel t%d; cancel u%d", i, i))
		r.wantTimers(h, "w", "other/stays")
	}
	if got := r.places(h, "w"); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("the places %q", got)
	}
}

// TestCancelledTimersStayCancelled checks that a timer which an operator has cancelled does
// not fire when another host takes over, at the place of one that was cancelled before.
func TestCancelledTimersStayCancelled(t *testing.T) {
	r := newRig(t)
	h := r.startWith(r.native("w", timed))
	r.say("work.w", "k", "set a 1h 1")
	r.wantTimers(h, "w", "k/a")
	must(t, h.CancelTimer(t.Context(), "w", "k", "a"))
	h.Advance(2 * time.Hour)
	r.say("work.w", "k", "list") // the worker has none any more once it was due
	r.eventually("the first is gone", func() bool {
		r.say("work.w", "k", "list")
		got := r.outputs("out.w")
		return len(got) > 0 && got[len(got)-1] == "list:"
	})
	r.say("work.w", "other", "set b 1h 2")
	r.wantTimers(h, "w", "other/b")
	if got := r.places(h, "w"); !slices.Equal(got, []string{"0"}) {
		t.Fatalf("the places %q", got)
	}
	must(t, h.CancelTimer(t.Context(), "w", "other", "b"))
	must(t, h.Supersede(t.Context(), "w-w"))
	r.say("work.w", "k", "set c 2h 3") // the next holder is there
	r.wantTimers(h, "w", "k/c")
	h.Advance(3 * time.Hour)
	r.eventually("the last has fired", func() bool { return slices.Contains(r.outputs("out.w"), "timer c attempt 1: 3") })
	r.wantTimers(h, "w")
	if got := r.outputs("out.w"); slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "timer b") }) {
		t.Errorf("a cancelled timer has fired: %q", got)
	}
}
