package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/native"
)

// native creates a worker whose code is a function of this process. It must be
// called before the host is made.
func (r *rig) native(name string, fn native.Func) host.Spec {
	r.funcs[name] = fn
	return host.Spec{ID: name, MIMEType: native.MIMEType, Topic: "work." + name, OutputTopic: "out." + name, Code: []byte(name)}
}

func text(s string) []engine.Output { return []engine.Output{{Data: []byte(s)}} }

// TestRetriesAndDeadLetters checks the retry budget, the reason and the original in
// the dead letter, and that only the one worker handles a redriven message.
func TestRetriesAndDeadLetters(t *testing.T) {
	r := newRig(t)
	var fixed atomic.Bool
	var attempts sync.Map
	fn := func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		n, _ := attempts.LoadOrStore(string(m.Data), new(atomic.Int64))
		if got := n.(*atomic.Int64).Add(1); !fixed.Load() && int(got) != m.Attempt {
			t.Errorf("%s: attempt %d has the number %d", m.Data, got, m.Attempt)
		}
		switch {
		case fixed.Load():
			return text(string(m.Data) + m.Header["K"][0]), nil
		case string(m.Data) == "poison":
			return nil, errors.New("cannot\r\nbe done")
		case string(m.Data) == "rejected":
			return nil, engine.Reject("never")
		case string(m.Data) == "twice" && m.Attempt < 3:
			return nil, errors.New("not yet")
		}
		return text(string(m.Data)), nil
	}
	req, other := r.native("w", fn), r.native("other", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return text("x"), nil })
	other.Topic = req.Topic // two independent workers
	h := r.start("a")
	create(t, h, req)
	create(t, h, other)
	for _, d := range []string{"poison", "rejected", "twice", "good"} {
		m := nats.NewMsg("work.w")
		m.Data = []byte(d)
		m.Header.Set("K", "v")
		m.Header.Set("Nats-Msg-Id", d)
		_, err := r.js.PublishMsg(t.Context(), m)
		must(t, err)
	}
	letters := r.letters(h, "w", 2)
	slices.SortFunc(letters, func(a, b *host.DeadLetter) int { return strings.Compare(string(a.Data), string(b.Data)) })
	for i, want := range []struct {
		data, reason string
		attempts     int
	}{{"poison", "cannot  be done", 4}, {"rejected", "rejected: never", 1}} {
		d := letters[i]
		if string(d.Data) != want.data || d.Reason != want.reason || d.Attempts != want.attempts || d.Topic != "work.w" || d.Worker != "w" ||
			!strings.HasPrefix(d.Message, "WORK:") || d.Header["K"][0] != "v" || d.Header["Nats-Msg-Id"][0] != want.data || d.Digest == "" || d.At.IsZero() {
			t.Errorf("dead letter %+v", d)
		}
	}
	r.eventually("the others are handled", func() bool { return len(r.outputs("out.w")) == 2 && len(r.outputs("out.other")) == 4 })

	fixed.Store(true)
	n, err := h.Redrive(t.Context(), "w", letters[0].Seq)
	if err != nil || n != 1 {
		t.Fatalf("Redrive: %d, %v", n, err)
	}
	r.eventually("it is handled", func() bool { return slices.Contains(r.outputs("out.w"), "poisonv") })
	n, err = h.Redrive(t.Context(), "w")
	if err != nil || n != 1 {
		t.Fatalf("Redrive of the rest: %d, %v", n, err)
	}
	r.eventually("it is handled", func() bool { return slices.Contains(r.outputs("out.w"), "rejectedv") })
	r.letters(h, "w", 0)
	r.eventually("the other worker has seen what was redriven", func() bool {
		c, err := r.js.Consumer(t.Context(), "WORK", "HOST_w-other")
		must(t, err)
		info, err := c.Info(t.Context())
		must(t, err)
		return info.NumPending == 0 && info.NumAckPending == 0
	})
	if got := len(r.outputs("out.other")); got != 4 {
		t.Errorf("a redrive for w made the other worker handle %d messages, want 4", got)
	}
}

// TestMisbehaviour checks that a worker that breaks a limit or a rule harms no other
// worker, and that its message becomes a dead letter with the reason.
func TestMisbehaviour(t *testing.T) {
	r := newRig(t)
	release := make(chan struct{})
	var calls atomic.Int64
	stuck := r.native("stuck", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		if string(m.Data) == "good" {
			return text("good"), nil
		}
		calls.Add(1)
		<-release // it ignores its context
		return text("late"), s.Put(context.Background(), "late", nil)
	})
	stuck.Limits.Time = time.Second
	panics := r.native("panics", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { panic("out") })
	nowhere := r.native("nowhere", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
		return []engine.Output{{Topic: "no.stream.has.this"}}, nil
	})
	large := r.native("large", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return nil, nil })
	r.tune = func(c *host.Config) { c.MaxRetries, c.MaxMessage, c.OutputPatience = 1, 1000, time.Second }
	h := r.start("a")
	loop := host.Spec{ID: "loop", MIMEType: "text/x-starlark", Topic: "work.loop", Code: []byte("def handle(message):\n    while True: pass"), Limits: engine.Limits{Time: 100 * time.Millisecond}}
	for _, req := range []host.Spec{stuck, panics, nowhere, large, loop} {
		create(t, h, req)
	}
	t.Cleanup(func() { close(release) })
	for _, id := range []string{"panics", "nowhere", "loop"} {
		r.publish("work."+id, "x")
	}
	r.publish("work.large", strings.Repeat("x", 1001))
	for id, want := range map[string]string{
		"panics": "panics: panic: out", "nowhere": "publish output to no.stream.has.this",
		"large": "the message has 1001 bytes", "loop": "time limit of 100ms exceeded",
	} {
		if d := r.letters(h, id, 1)[0]; !strings.Contains(d.Reason, want) {
			t.Errorf("%s: %q, want %q", id, d.Reason, want)
		}
	}
	r.publish("work.stuck", "bad", "good")
	if d := r.letters(h, "stuck", 1)[0]; !strings.Contains(d.Reason, "does not return") || d.Attempts != 2 {
		t.Errorf("stuck: %+v", d)
	}
	r.wantOutputs("out.stuck", "good")
	if n := calls.Load(); n != 2 {
		t.Errorf("the stuck worker was called %d times, want 2", n)
	}
}

// A message that is larger than max_message is a dead letter at once: it waits for no place and no
// memory.
func TestLargeMessageWaitsForNothing(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) {
		c.MaxMessage, c.MaxHandlers, c.DrainTimeout = 1000, 1, time.Second
		c.Limits.Time = 10 * bound // otherwise the first message ends, and the large one gets its place
	}
	h := r.start("a")
	create(t, h, host.Spec{ID: "busy", Topic: "work.busy", Code: []byte("def handle(message):\n    while True: pass")})
	create(t, h, host.Spec{ID: "large", Topic: "work.large", Code: prefix("")})
	r.publish("work.busy", "x")
	r.eventually("the only place is taken", func() bool { return h.Waits().TakenPlaces == 1 })
	r.publish("work.large", strings.Repeat("x", 1001))
	if d := r.letters(h, "large", 1)[0]; !strings.Contains(d.Reason, "the message has 1001 bytes") {
		t.Errorf("%q", d.Reason)
	}
}

// TestChangesWhileAMessageRuns updates a worker whose message runs long. While the update waits for the
// end of the message, the worker can be stopped and deleted, and the host can stop and drain: the message
// ends within the drain timeout.
func TestChangesWhileAMessageRuns(t *testing.T) {
	for what, change := range map[string]func(context.Context, *host.Host) error{
		"stop of the worker": func(ctx context.Context, h *host.Host) error { return h.StopWorker(ctx, "w") },
		"deletion":           func(ctx context.Context, h *host.Host) error { return h.Delete(ctx, "w") },
		"stop of the host":   func(ctx context.Context, h *host.Host) error { return h.Stop(ctx) },
		"drain":              func(ctx context.Context, h *host.Host) error { return h.Drain(ctx) },
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.tune = func(c *host.Config) { c.DrainTimeout = time.Second }
			entered, ended := make(chan struct{}, 10), make(chan error, 10)
			h := r.startWith(r.native("w", func(ctx context.Context, _ *engine.Message, _ engine.State) ([]engine.Output, error) {
				entered <- struct{}{}
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil, context.Cause(ctx)
			}))
			r.publish("work.w", "x")
			<-entered
			ctx, cancel := context.WithTimeout(t.Context(), bound)
			defer cancel()
			updated := make(chan struct{})
			go func() {
				defer close(updated)
				_ = h.LoadCodeFromContent(ctx, "w", []byte("w ")) // waits for the end of the message
			}()
			r.eventually("the update is stored", func() bool {
				rec, err := h.Get(ctx, "w")
				return err == nil && rec.Generation == 2
			})
			time.Sleep(300 * time.Millisecond) // so that the slot most likely waits for the message
			must(t, change(ctx, h))
			if err := <-ended; !errors.Is(err, host.ErrDetached) {
				t.Errorf("the message ended with %v", err)
			}
			cancel()
			<-updated
		})
	}
}

// TestUpdateWhileMessagesFlow checks that one version handles each message as a whole,
// that the versions follow each other in the order of the updates, and that no message
// is lost or handled twice.
func TestUpdateWhileMessagesFlow(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	version := func(n int) []byte {
		return fmt.Appendf(nil, "v = %d\ndef handle(message): return [\"%%d %%s\" %% (v, message.text), \"%%d %%s\" %% (v, message.text)]", n)
	}
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: version(0)})
	const n, updates = 400, 8
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			r.publish("work.w", strconv.Itoa(i))
		}
	})
	for v := 1; v <= updates; v++ {
		must(t, h.LoadCodeFromContent(t.Context(), "w", version(v)))
	}
	wg.Wait()
	r.publish("work.w", "last")
	r.eventually("all is handled", func() bool {
		s, err := r.js.Stream(t.Context(), "WORK")
		must(t, err)
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("out.w"))
		must(t, err)
		return info.State.Subjects["out.w"] >= 2*(n+1)
	})
	out := r.outputs("out.w")
	if len(out) != 2*(n+1) {
		t.Fatalf("%d outputs of %d messages", len(out), n+1)
	}
	newest := 0
	seen := make(map[string]bool)
	for i := 0; i < len(out); i += 2 {
		var v int
		var what string
		_, err := fmt.Sscan(out[i], &v, &what)
		must(t, err)
		if out[i] != out[i+1] || v < newest || seen[what] {
			t.Fatalf("output %d: %q and %q, after version %d", i, out[i], out[i+1], newest)
		}
		seen[what] = true
		newest = v
	}
	if newest != updates {
		t.Errorf("the last message was handled by version %d, want %d", newest, updates)
	}
}

// TestUpdateBetweenMessages checks that new code waits until the current message is
// done.
func TestUpdateBetweenMessages(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan struct{}), make(chan struct{})
	r.native("new", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return text("new"), nil })
	h := r.startWith(r.native("w", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
		close(entered)
		<-release
		return text("old"), nil
	}))
	r.publish("work.w", "a")
	<-entered
	loaded := make(chan error, 1)
	go func() { loaded <- h.LoadCodeFromContent(t.Context(), "w", []byte("new")) }()
	r.eventually("the update is stored", func() bool {
		rec, err := h.Get(t.Context(), "w")
		return err == nil && rec.Generation == 2
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := h.Recover(ctx); err == nil || len(loaded) > 0 {
		t.Errorf("the code was changed while a message was handled: %v", err)
	}
	close(release)
	must(t, <-loaded)
	r.publish("work.w", "b")
	r.wantOutputs("out.w", "old", "new")
}

// TestLongHandler checks that a handler that takes longer than AckWait keeps its
// message.
func TestLongHandler(t *testing.T) {
	// On a busy machine, a host that gets no processor time for most of AckWait
	// gives up the message, as it should. The test then tries a longer AckWait.
	for wait := time.Second; ; wait *= 4 {
		r := newRig(t)
		r.tune = func(c *host.Config) { c.AckWait = wait }
		var calls atomic.Int64
		h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
			calls.Add(1)
			select {
			case <-time.After(2 * wait):
				return text(string(m.Data)), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
		r.publish("work.w", "x")
		r.eventually("it is handled, or given to another host", func() bool { return calls.Load() > 1 || len(r.outputs("out.w")) > 0 })
		r.eventually("it is answered", func() bool {
			return calls.Load() > 1 || len(h.Tallies()) == 1 && h.Tallies()[0].Succeeded == 1
		})
		n := calls.Load()
		if n == 1 {
			return
		}
		t.Logf("with an AckWait of %v it was handled %d times", wait, n)
		if wait > 10*time.Second {
			t.Fatal("a handler that takes longer than AckWait loses its message")
		}
		r.stop(h)
	}
}

// TestDeleteWhileHandling checks that Delete waits until the worker has finished its
// current message.
func TestDeleteWhileHandling(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan struct{}), make(chan struct{})
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		close(entered)
		<-release
		return text("done"), s.Put(ctx, "k", []byte("v"))
	}))
	r.publish("work.w", "x")
	<-entered
	deleted := make(chan error, 1)
	go func() { deleted <- h.Delete(t.Context(), "w") }()
	r.eventually("it is being deleted", func() bool {
		rec, err := h.Get(t.Context(), "w")
		return err == nil && rec.State == host.StateDeleting
	})
	select {
	case err := <-deleted:
		t.Errorf("Delete returned while a message was handled: %v", err)
	default:
	}
	close(release)
	must(t, <-deleted)
	r.wantOutputs("out.w", "done")
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestUnansweredDeliveries checks that a message whose hosts keep dying becomes a dead
// letter, and keeps all its attempts until then. The test does not kill a host: the
// host abandons its handler and sends no answer for the message.
func TestUnansweredDeliveries(t *testing.T) {
	survived := 2 // deaths that a message may see
	if testing.Short() {
		survived = 1
	}
	r := newRig(t)
	r.tune = func(c *host.Config) {
		c.MaxUnanswered = survived
		c.AckWait, c.DrainTimeout = 3*time.Second, 50*time.Millisecond // each death takes this long
	}
	entered, release := make(chan int, 10), make(chan struct{})
	var deaths atomic.Int64
	h := r.startWith(r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		entered <- m.Attempt
		if deaths.Add(-1) >= 0 {
			<-release
			return nil, nil
		}
		return text(string(m.Data)), nil
	}))
	t.Cleanup(func() { close(release) })
	for _, x := range []struct {
		data    string
		deaths  int
		handled bool
	}{{"lucky", survived, true}, {"killer", survived + 1, false}} {
		deaths.Store(int64(x.deaths))
		r.publish("work.w", x.data)
		for range x.deaths {
			if n := <-entered; n != 1 {
				t.Errorf("%s is at attempt %d", x.data, n)
			}
			must(t, h.StopWorker(t.Context(), "w"))
			must(t, h.StartWorker(t.Context(), "w"))
		}
		if x.handled {
			r.wantOutputs("out.w", x.data)
			if n := <-entered; n != 1 {
				t.Errorf("%s is at attempt %d", x.data, n)
			}
			continue
		}
		if d := r.letters(h, "w", 1)[0]; string(d.Data) != x.data || !strings.Contains(d.Reason, fmt.Sprintf("begun %d times and answered 0 times", survived+1)) {
			t.Errorf("dead letter %+v", d)
		}
	}
}

// TestWaitingIsNotAnAttempt checks that a message that only waits in hosts and is given
// back loses no attempt and becomes no dead letter, however often that happens.
func TestWaitingIsNotAnAttempt(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.MaxUnanswered = 1 }
	var attempts sync.Map
	h := r.startWith(r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		attempts.Store(string(m.Data), m.Attempt)
		return text(string(m.Data)), nil
	}))
	must(t, h.StopWorker(t.Context(), "w"))
	r.publish("work.w", "a", "b")
	c, err := r.js.Consumer(t.Context(), "WORK", "HOST_w-w")
	must(t, err)
	for range 2 * 5 {
		m, err := c.Next(jetstream.FetchMaxWait(bound))
		must(t, err)
		must(t, m.Nak()) // as a host that stops does with the messages that wait in it
	}
	must(t, h.StartWorker(t.Context(), "w"))
	r.eventually("both are handled", func() bool { return len(r.outputs("out.w")) == 2 })
	attempts.Range(func(data, n any) bool {
		if n != 1 {
			t.Errorf("%v is at attempt %v", data, n)
		}
		return true
	})
}
