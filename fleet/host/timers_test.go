package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// timed is a handler that does what its message says, one command after the other:
//
//	set NAME DELAY DATA, cancel NAME, list, fail, reject
//
// A message of a timer whose data has commands does them too. It returns what it did.
func timed(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
	timers := engine.TimersOf(s)
	said := string(m.Data)
	if m.Timer != nil {
		said = fmt.Sprintf("timer %s attempt %d: %s", m.Timer.Name, m.Attempt, m.Data)
	}
	for command := range strings.SplitSeq(string(m.Data), ";") {
		words := append(strings.SplitN(strings.TrimSpace(command), " ", 4), "", "", "")
		var err error
		switch words[0] {
		case "set":
			delay, wrong := time.ParseDuration(words[2])
			if wrong != nil {
				return nil, engine.Reject(wrong.Error())
			}
			err = timers.SetTimer(ctx, engine.Timer{Name: words[1], After: delay, Data: []byte(words[3])})
		case "cancel":
			err = timers.CancelTimer(ctx, words[1])
		case "list":
			var all []engine.Timer
			all, err = timers.ListTimers(ctx)
			said += ":"
			for _, t := range all {
				said += " " + t.Name
			}
		case "fail":
			err = errors.New("as told")
		case "reject":
			err = engine.Reject("as told")
		}
		if err != nil {
			return nil, err
		}
	}
	return text(said), nil
}

// say publishes a message with a key.
func (r *rig) say(topic, key, data string) {
	r.t.Helper()
	m := nats.NewMsg(topic)
	m.Header.Set(host.HeaderKey, key)
	m.Data = []byte(data)
	_, err := r.js.PublishMsg(r.t.Context(), m)
	must(r.t, err)
}

// wantTimers waits until a worker has these timers, as KEY/NAME, in any order.
func (r *rig) wantTimers(h *host.Host, id string, want ...string) {
	r.t.Helper()
	var got []string
	r.eventually(fmt.Sprintf("%s has the timers %q", id, want), func() bool {
		got = nil
		for after, more := uint64(0), true; more; more = after != 0 {
			page, next, err := h.Timers(r.t.Context(), id, after, 2)
			must(r.t, err)
			for _, t := range page {
				got = append(got, t.Key+"/"+t.Name)
			}
			after = next
		}
		return slices.Equal(sorted(got), sorted(want))
	})
}

// TestTimers checks that timers fire for their key, once, in the order in which they are
// due and with their data, that they can be cancelled, replaced, listed and set again by
// themselves, and that a message that fails sets and cancels none.
func TestTimers(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.MaxRetries = host.NoRetry }
	h := r.startWith(r.native("w", timed))
	r.say("work.w", "a", "set later 2h two; set sooner 1h one; set never 1h x; cancel never; set sooner 90m more; list")
	r.say("work.w", "b", "list; set later 3h three; list")
	r.say("work.w", "a", "set lost 1h x; cancel sooner; fail")
	r.say("work.w", "a", "set lost 1h x; reject")
	r.say("work.w", "a", "set now 0s at once")
	r.eventually("it has handled these", func() bool { return len(r.outputs("out.w")) == 4 && len(r.letters(h, "w", 2)) == 2 })
	if got := r.outputs("out.w"); !slices.ContainsFunc(got, func(s string) bool { return strings.HasSuffix(s, "list: later sooner") }) ||
		!slices.ContainsFunc(got, func(s string) bool {
			return strings.HasSuffix(s, "list;:: later") || strings.HasSuffix(s, "list:: later")
		}) ||
		!slices.Contains(got, "timer now attempt 1: at once") {
		t.Errorf("%q", got)
	}
	r.wantTimers(h, "w", "a/sooner", "a/later", "b/later")
	h.Advance(time.Hour)
	h.Advance(45 * time.Minute)
	r.eventually("one is due", func() bool { return len(r.outputs("out.w")) == 5 })
	h.Advance(90 * time.Minute)
	r.eventually("all are due", func() bool { return len(r.outputs("out.w")) == 7 })
	// The last two have keys of their own, and no order.
	if got, want := r.outputs("out.w"), []string{"timer later attempt 1: three", "timer later attempt 1: two"}; got[4] != "timer sooner attempt 1: more" || !slices.Equal(sorted(got[5:7]), want) {
		t.Errorf("%q, want the timer sooner, and then %q", got[4:], want)
	}
	r.wantTimers(h, "w")
	r.say("work.w", "a", "set again 1h set again 1h list; list")
	r.eventually("it is set", func() bool { return len(r.outputs("out.w")) == 8 })
	h.Advance(time.Hour)
	r.eventually("it has fired", func() bool { return len(r.outputs("out.w")) == 9 })
	r.wantTimers(h, "w", "a/again")
	must(t, h.Delete(t.Context(), "w"))
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestTimersOutliveHosts checks that timers survive the end of their host, a stop and
// new code, that they then fire late and once, and that a timer of a stopped member waits
// while its group goes on.
func TestTimersOutliveHosts(t *testing.T) {
	r := newRig(t)
	w, other := r.native("w", timed), r.native("other", timed)
	member := r.native("member", timed)
	other.Group, member.Group = "g", "g"
	h := r.startWith(w, other, member)
	for _, id := range []string{"w", "other", "member"} {
		r.say("work."+id, "k", "set late 1h of "+id)
		r.wantOutputs("out."+id, "set late 1h of "+id)
		r.wantTimers(h, id, "k/late")
	}
	must(t, h.StopWorker(t.Context(), "w"))
	must(t, h.StopWorker(t.Context(), "member"))
	must(t, h.LoadCodeFromContent(t.Context(), "w", []byte("other")))
	r.stop(h)
	next := r.host("b")
	_, err := next.List(t.Context()) // it knows the server now
	must(t, err)
	next.Advance(2 * time.Hour)
	must(t, next.Start(context.Background()))
	r.wantOutputs("out.other", "set late 1h of other", "timer late attempt 1: of other")
	r.say("work.other", "k", "goes on")
	r.wantOutputs("out.other", "set late 1h of other", "timer late attempt 1: of other", "goes on")
	for _, id := range []string{"w", "member"} {
		r.wantTimers(next, id, "k/late")
		must(t, next.StartWorker(t.Context(), id))
		r.wantOutputs("out."+id, "set late 1h of "+id, "timer late attempt 1: of "+id)
		r.wantTimers(next, id)
	}
}

// TestTimerFails checks the attempts of a timer that fails: they hold its key, end in a
// dead letter, and a redrive gives the handler the same timer again.
func TestTimerFails(t *testing.T) {
	r := newRig(t)
	var mended atomic.Bool
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		switch {
		case m.Timer == nil || mended.Load():
			return timed(ctx, m, s)
		case m.Timer.Name == "third" && m.Attempt < 3:
			return nil, errors.New("not yet")
		case m.Timer.Name == "poison":
			return nil, errors.Join(engine.TimersOf(s).SetTimer(ctx, engine.Timer{Name: "by poison"}), engine.Reject("poison"))
		}
		return timed(ctx, m, s)
	}))
	r.say("work.w", "k", "set third 1h x; set poison 2h y")
	r.wantTimers(h, "w", "k/third", "k/poison")
	h.Advance(90 * time.Minute)
	r.eventually("the third attempt", func() bool { return slices.Contains(r.outputs("out.w"), "timer third attempt 3: x") })
	h.Advance(time.Hour)
	letter := r.letters(h, "w", 1)[0]
	if letter.Reason != "rejected: poison" || letter.Attempts != 1 || letter.Topic != "work.w" || letter.Header[host.HeaderTimer][0] != "poison" || string(letter.Data) != "y" {
		t.Errorf("%+v", letter)
	}
	r.wantTimers(h, "w")
	mended.Store(true)
	n, err := h.Redrive(t.Context(), "w")
	if n != 1 || err != nil {
		t.Fatalf("%d redriven, %v", n, err)
	}
	r.wantOutputs("out.w", "set third 1h x; set poison 2h y", "timer third attempt 3: x", "timer poison attempt 1: y")
	// The headers alone make no timer of a message.
	m := nats.NewMsg("work.w")
	m.Header.Set(host.HeaderTimer, "false")
	_, err = r.js.PublishMsg(t.Context(), m)
	must(t, err)
	r.eventually("it is a message", func() bool { return slices.Contains(r.outputs("out.w"), "") })
}

// TestTimerOfASupersededAttempt checks that an attempt whose host was replaced sets no
// timer, and that the timer which fires when its host is replaced fires again and has
// one effect.
func TestTimerOfASupersededAttempt(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan string, 10), make(chan struct{}, 10)
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		entered <- string(m.Data)
		<-release
		if m.Timer == nil {
			return nil, engine.TimersOf(s).SetTimer(ctx, engine.Timer{Name: fmt.Sprint("of-", m.Fence), After: time.Hour, Data: fmt.Append(nil, m.Fence)})
		}
		return text("fired"), nil
	}))
	r.say("work.w", "k", "x")
	<-entered
	must(t, h.Supersede(t.Context(), "w-w"))
	release <- struct{}{}
	<-entered // by the new holder
	release <- struct{}{}
	var found []host.Timer
	r.eventually("a timer is there", func() bool {
		var err error
		found, _, err = h.Timers(t.Context(), "w", 0, 10)
		must(t, err)
		return len(found) > 0
	})
	if len(found) != 1 || found[0].Name != "of-"+string(found[0].Data) {
		t.Errorf("%+v", found)
	}
	h.Advance(time.Hour)
	<-entered
	must(t, h.Supersede(t.Context(), "w-w"))
	release <- struct{}{}
	if again := <-entered; again != string(found[0].Data) {
		t.Errorf("the timer has the data %q", again)
	}
	release <- struct{}{}
	r.wantOutputs("out.w", "fired")
	r.wantTimers(h, "w")
	r.wantOutputs("out.w", "fired")
}

// TestCancelTimer checks that an operator cancels a timer of a worker that runs, and of
// one that is stopped, and that the worker may set it again.
func TestCancelTimer(t *testing.T) {
	r := newRig(t)
	h := r.startWith(r.native("w", timed))
	cancel := func(key, name string, want error) {
		t.Helper()
		if err := h.CancelTimer(t.Context(), "w", key, name); !errors.Is(err, want) {
			t.Errorf("cancel %s/%s: %v, want %v", key, name, err, want)
		}
	}
	cancel("k", "a", host.ErrNoTimer)
	cancel("k", "", host.ErrInvalid)
	r.say("work.w", "k", "set a 1h 1; set b 1h 2; set c 2h 3")
	r.wantTimers(h, "w", "k/a", "k/b", "k/c")
	cancel("k", "a", nil)
	cancel("other", "b", host.ErrNoTimer)
	cancel("k", "a", host.ErrNoTimer)
	must(t, h.StopWorker(t.Context(), "w"))
	cancel("k", "b", nil)
	r.wantTimers(h, "w", "k/c")
	must(t, h.StartWorker(t.Context(), "w"))
	r.say("work.w", "k", "set a 1h again")
	r.wantTimers(h, "w", "k/a", "k/c")
	h.Advance(90 * time.Minute)
	r.eventually("the second one has fired", func() bool { return len(r.outputs("out.w")) >= 3 })
	h.Advance(time.Hour)
	r.wantOutputs("out.w", "set a 1h 1; set b 1h 2; set c 2h 3", "set a 1h again", "timer a attempt 1: again", "timer c attempt 1: 3")
	if err := h.CancelTimer(t.Context(), "unknown", "k", "a"); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("a worker that does not exist: %v", err)
	}
	must(t, h.Delete(t.Context(), "w"))
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestTimersOfATrial checks that a test of code shows the timers that it would set and
// cancel, and sets none.
func TestTimersOfATrial(t *testing.T) {
	r := newRig(t)
	h := r.startWith(r.native("w", timed))
	r.say("work.w", "k", "set a 1h 1; set b 1h 2")
	r.wantTimers(h, "w", "k/a", "k/b")
	trial, err := h.Test(t.Context(), "w", host.TestRequest{Header: map[string][]string{host.HeaderKey: {"k"}}, Data: []byte("cancel a; set c 2h 3; set d 0s 4; cancel d; list")})
	must(t, err)
	if len(trial.Timers) != 2 || trial.Timers[0].Name != "a" || !trial.Timers[0].Cancelled || trial.Timers[1].Name != "c" || string(trial.Timers[1].Data) != "3" || time.Until(trial.Timers[1].Due) < time.Hour {
		t.Errorf("%+v", trial.Timers)
	}
	if got := string(trial.Outputs[0].Data); !strings.HasSuffix(got, "list: b c") {
		t.Errorf("%q", got)
	}
	r.wantTimers(h, "w", "k/a", "k/b")
}
