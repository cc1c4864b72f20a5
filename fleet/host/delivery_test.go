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
func (r *rig) native(name string, fn native.Func) host.CreateRequest {
	r.funcs[name] = fn
	return host.CreateRequest{ID: name, MIMEType: native.MIMEType, Topic: "work." + name, OutputTopic: "out." + name, Code: []byte(name)}
}

func text(s string) []engine.Output { return []engine.Output{{Data: []byte(s)}} }

func (r *rig) letters(h *host.Host, id string, n int) []*host.DeadLetter {
	r.t.Helper()
	var found []*host.DeadLetter
	r.eventually(fmt.Sprint(id, " has ", n, " dead letters"), func() bool {
		var err error
		found, err = h.DeadLetters(r.t.Context(), id, 0, 100)
		must(r.t, err)
		return len(found) >= n
	})
	if len(found) != n {
		r.t.Fatalf("%s has %d dead letters, want %d", id, len(found), n)
	}
	return found
}

// TestRetriesAndDeadLetters holds the budget, the reason, the original, and that
// a redrive goes to the one worker alone.
func TestRetriesAndDeadLetters(t *testing.T) {
	r := newRig(t)
	var fixed atomic.Bool
	var attempts sync.Map
	fn := func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		n, _ := attempts.LoadOrStore(string(m.Data), new(atomic.Int64))
		if got := n.(*atomic.Int64).Add(1); !fixed.Load() && int(got) != m.Attempt {
			t.Errorf("%s: attempt %d is said to be %d", m.Data, got, m.Attempt)
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
	other.Topic = req.Topic // two workers that have nothing to do with each other
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
	r.publish("work.w") // nothing
	r.eventually("the other worker has seen what was redriven", func() bool {
		c, err := r.js.Consumer(t.Context(), "WORK", "w-other")
		must(t, err)
		info, err := c.Info(t.Context())
		must(t, err)
		return info.NumPending == 0 && info.NumAckPending == 0
	})
	if got := len(r.outputs("out.other")); got != 4 {
		t.Errorf("a redrive for w made the other worker handle %d messages, want 4", got)
	}
}

// TestMisbehaviour holds that a worker which breaks a limit, or a rule, fails
// alone, and that its message ends in the dead letters with the reason.
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
	homeless := r.native("homeless", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return text("x"), nil })
	homeless.OutputTopic = ""
	large := r.native("large", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return nil, nil })
	r.tune = func(c *host.Config) { c.MaxRetries = 1; c.MaxMessage = 1000 }
	h := r.start("a")
	loop := host.CreateRequest{ID: "loop", MIMEType: "text/x-starlark", Topic: "work.loop", Code: []byte("def handle(message):\n    while True: pass"), Limits: engine.Limits{Time: 100 * time.Millisecond}}
	for _, req := range []host.CreateRequest{stuck, panics, nowhere, homeless, large, loop} {
		create(t, h, req)
	}
	t.Cleanup(func() { close(release) })
	for _, id := range []string{"panics", "nowhere", "homeless", "loop"} {
		r.publish("work."+id, "x")
	}
	r.publish("work.large", strings.Repeat("x", 1001))
	for id, want := range map[string]string{
		"panics": "panics: panic: out", "nowhere": "publish output 0 to no.stream.has.this", "homeless": "no topic",
		"large": "it has 1001 bytes", "loop": "time limit of 100ms exceeded",
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

// TestUpdateWhileMessagesFlow holds that every message is handled by one version
// as a whole, that versions follow each other as the updates did, and that no
// message is lost or handled twice.
func TestUpdateWhileMessagesFlow(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	version := func(n int) []byte {
		return fmt.Appendf(nil, "v = %d\ndef handle(message): return [\"%%d %%s\" %% (v, message.text), \"%%d %%s\" %% (v, message.text)]", n)
	}
	create(t, h, host.CreateRequest{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: version(0)})
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

// TestUpdateBetweenMessages holds that new code waits for the message in hand.
func TestUpdateBetweenMessages(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan struct{}), make(chan struct{})
	r.native("new", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return text("new"), nil })
	h := r.start2(r.native("w", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
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

// noLetters is a JetStream that refuses dead letters a few times.
type noLetters struct {
	jetstream.JetStream
	left atomic.Int64
}

func (n *noLetters) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if strings.Contains(m.Subject, ".dead.") && n.left.Add(-1) >= 0 {
		return nil, errors.New("not now")
	}
	return n.JetStream.PublishMsg(ctx, m, opts...)
}

// TestLetterBeforeTheEnd holds that a message ends only once its letter is
// stored: until then it comes again.
func TestLetterBeforeTheEnd(t *testing.T) {
	r := newRig(t)
	refusing := &noLetters{JetStream: r.js}
	refusing.left.Store(3)
	r.js = refusing
	h := r.start2(r.native("w", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
		return nil, engine.Reject("never")
	}))
	r.publish("work.w", "x")
	if d := r.letters(h, "w", 1)[0]; string(d.Data) != "x" || d.Attempts != 1 || refusing.left.Load() >= 0 {
		t.Errorf("dead letter %+v, %d refusals left", d, refusing.left.Load())
	}
}

// TestGroups holds that one message is handled at a time in a group, across
// hosts and topics, that members take turns, and that stopping one loses
// nothing and holds nobody up.
func TestGroups(t *testing.T) {
	r := newRig(t)
	var inside, most, fenceLast atomic.Int64
	var mu sync.Mutex
	handled := make(map[string]int)
	fn := func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		if now := inside.Add(1); now > most.Load() {
			most.Store(now)
		}
		defer inside.Add(-1)
		if last := fenceLast.Swap(int64(m.Fence)); last > int64(m.Fence) {
			t.Errorf("fencing token %d after %d", m.Fence, last)
		}
		time.Sleep(time.Millisecond)
		mu.Lock()
		handled[m.Worker+" "+m.Topic]++
		mu.Unlock()
		return nil, nil
	}
	one, two, three := r.native("one", fn), r.native("two", fn), r.native("three", fn)
	one.Topic, two.Topic, three.Topic = "work.shared", "work.shared", "work.other"
	a := r.start("a")
	b := r.start("b")
	for i, req := range []host.CreateRequest{one, two, three} {
		req.Group = "g"
		create(t, []*host.Host{a, b}[i%2], req)
	}
	sum := func() int {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, c := range handled {
			n += c
		}
		return n
	}
	for i := range 60 {
		r.publish("work.shared", strconv.Itoa(i))
		r.publish("work.other", strconv.Itoa(i))
	}
	r.eventually("all is handled", func() bool { return sum() >= 120 })
	mu.Lock()
	if fmt.Sprint(handled) != "map[one work.shared:30 three work.other:60 two work.shared:30]" {
		t.Errorf("handled: %v", handled)
	}
	mu.Unlock()
	if most.Load() != 1 {
		t.Errorf("%d messages at a time in the group", most.Load())
	}

	// Nobody is there for work.other: its messages wait, those of work.shared
	// do not.
	owner := a
	if len(b.Local()) > 0 {
		owner = b
	}
	must(t, owner.StopWorker(t.Context(), "three"))
	r.publish("work.other", "held")
	r.publish("work.shared", "free")
	r.eventually("the group goes on", func() bool { return sum() == 121 })
	must(t, a.StartWorker(t.Context(), "three"))
	r.eventually("what was held is handled", func() bool { return sum() == 122 })

	// The group moves when its host goes.
	r.stop(owner)
	r.publish("work.shared", "moved")
	r.eventually("the other host has the group", func() bool { return sum() == 123 })
	if most.Load() != 1 {
		t.Errorf("%d messages at a time in the group", most.Load())
	}
	last := a
	if owner == a {
		last = b
	}
	for _, id := range []string{"one", "three", "two"} {
		must(t, last.Delete(t.Context(), id))
	}
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestStateTakesEffectOnce holds that state is written once for each message,
// however often it is delivered, and not at all by an attempt that fails.
func TestStateTakesEffectOnce(t *testing.T) {
	r := newRig(t)
	var smooth atomic.Bool
	fn := func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		v, _, err := s.Get(ctx, "n")
		if err != nil {
			return nil, err
		}
		n, _ := strconv.Atoi(string(v))
		if err := s.Put(ctx, "n", []byte(strconv.Itoa(n+1))); err != nil {
			return nil, err
		}
		if m.Attempt == 1 && !smooth.Load() {
			return nil, errors.New("after the write") // which has not happened then
		}
		return text(strconv.Itoa(n + 1)), nil
	}
	h := r.start2(r.native("w", fn))
	for range 20 {
		r.publish("work.w", "x")
	}
	r.eventually("all are handled", func() bool { return len(r.outputs("out.w")) >= 20 })
	out := r.outputs("out.w")
	for i, v := range out {
		if v != strconv.Itoa(i+1) {
			t.Fatalf("outputs %q", out)
		}
	}
	smooth.Store(true)
	// The consumer is set back to the beginning: everything comes again.
	must(t, h.StopWorker(t.Context(), "w"))
	c, err := r.js.Consumer(t.Context(), "WORK", "w-w")
	must(t, err)
	cfg := c.CachedInfo().Config
	must(t, r.js.DeleteConsumer(t.Context(), "WORK", "w-w"))
	cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, 1
	_, err = r.js.CreateConsumer(t.Context(), "WORK", cfg)
	must(t, err)
	must(t, h.StartWorker(t.Context(), "w"))
	r.publish("work.w", "new")
	r.eventually("the new one is handled", func() bool { return slices.Contains(r.outputs("out.w"), "21") })
	if out := r.outputs("out.w"); out[len(out)-1] != "21" {
		t.Errorf("outputs %q", out)
	}
}

// start2 starts a host and creates workers on it.
func (r *rig) start2(reqs ...host.CreateRequest) *host.Host {
	r.t.Helper()
	h := r.start("a")
	for _, req := range reqs {
		create(r.t, h, req)
	}
	return h
}

// TestStaleHolder holds that the server refuses the state of a host that was
// replaced while its handler ran: the message is handled again by who came
// after, and only that counts.
func TestStaleHolder(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan struct{}, 10), make(chan struct{})
	var calls atomic.Int64
	var tokens []uint64
	var mu sync.Mutex
	fn := func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		n := calls.Add(1)
		mu.Lock()
		tokens = append(tokens, m.Fence)
		mu.Unlock()
		if n == 1 {
			entered <- struct{}{}
			<-release
		}
		return nil, s.Put(ctx, "by", []byte(strconv.FormatInt(n, 10)))
	}
	h := r.start2(r.native("w", fn))
	r.publish("work.w", "x")
	<-entered
	// Somebody else claims the fence, as the host does that takes over.
	_, err := r.js.Publish(t.Context(), "host.state.w-w.fence", []byte("somebody"))
	must(t, err)
	close(release)
	stream, err := r.js.Stream(t.Context(), "HOST_STATE")
	must(t, err)
	rec, err := h.Get(t.Context(), "w")
	must(t, err)
	r.eventually("the second one's write is there", func() bool {
		m, err := stream.GetLastMsgForSubject(t.Context(), "host.state.w-w.kv."+rec.UID+".by")
		return err == nil && string(m.Data) == "2"
	})
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("host.state.w-w.>"))
	must(t, err)
	mu.Lock()
	defer mu.Unlock()
	if len(tokens) != 2 || tokens[1] <= tokens[0] || calls.Load() != 2 {
		t.Errorf("tokens %v, %d calls, %v", tokens, calls.Load(), info.State.Subjects)
	}
	if letters, err := h.DeadLetters(t.Context(), "w", 0, 10); err != nil || len(letters) > 0 {
		t.Errorf("dead letters: %v, %v", letters, err)
	}
}

// TestLongHandler holds that a handler which takes longer than AckWait keeps its
// message.
func TestLongHandler(t *testing.T) {
	// A host that gets no processor for most of AckWait lets go of the message, as
	// it should, and the next, longer one tells.
	for wait := time.Second; ; wait *= 4 {
		r := newRig(t)
		r.tune = func(c *host.Config) { c.AckWait = wait }
		var calls atomic.Int64
		h := r.start2(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
			calls.Add(1)
			select {
			case <-time.After(2 * wait):
				return text(string(m.Data)), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
		r.publish("work.w", "x")
		r.eventually("it is handled, or given to somebody else", func() bool { return calls.Load() > 1 || len(r.outputs("out.w")) > 0 })
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

// TestDeleteWhileHandling holds that the message in hand is finished first.
func TestDeleteWhileHandling(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan struct{}), make(chan struct{})
	h := r.start2(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
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

// TestHostsShare holds that each worker is loaded on one host alone, that a
// second host takes its share, and gives it back, and that no message is lost
// on the way.
func TestHostsShare(t *testing.T) {
	r := newRig(t)
	a := r.start("a")
	const n = 12
	for i := range n {
		create(t, a, host.CreateRequest{ID: fmt.Sprint("w", i), Topic: fmt.Sprint("work.", i), OutputTopic: fmt.Sprint("out.", i), Code: prefix("")})
	}
	b := r.start("b")
	shared := func() bool {
		la, lb := a.Local(), b.Local()
		for _, id := range la {
			if slices.Contains(lb, id) {
				return false
			}
		}
		return len(la) > 0 && len(lb) > 0 && len(la)+len(lb) == n
	}
	r.eventually("the hosts share", shared)
	for i := range n {
		r.publish(fmt.Sprint("work.", i), "1")
	}
	r.stop(a)
	for i := range n {
		r.publish(fmt.Sprint("work.", i), "2")
	}
	for i := range n {
		// In whichever order: the first may have been on its way to the host that
		// went, and is asked for again then. Order is what groups are for.
		subject := fmt.Sprint("out.", i)
		r.eventually(subject+" has both", func() bool { return len(r.outputs(subject)) >= 2 })
		if got := slices.Sorted(slices.Values(r.outputs(subject))); !slices.Equal(got, []string{"1", "2"}) {
			t.Errorf("%s has %q", subject, got)
		}
	}
	if got := len(b.Local()); got != n {
		t.Errorf("the host that is left has %d workers, want %d", got, n)
	}
}

// TestLetterThatIsTooLarge holds that a message which fits into the server's
// limits alone, and not together with the reason, is a whole letter all the same,
// also when its stream keeps nothing that was answered; and that it can be
// redriven, fail again, be redriven again, and leaves nothing behind.
func TestLetterThatIsTooLarge(t *testing.T) {
	for what, m := range map[string]*nats.Msg{
		"body":    {Subject: "queue.w", Data: []byte(strings.Repeat("x", 1<<20-60)), Header: nats.Header{"K": {"v"}}},
		"headers": {Subject: "queue.w", Data: []byte("x"), Header: nats.Header{"K": {"v"}, "Long": {strings.Repeat("y", 64<<10-60)}}},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "QUEUE", Subjects: []string{"queue.>"}, Retention: jetstream.WorkQueuePolicy})
			must(t, err)
			var fixed atomic.Bool
			fn := func(_ context.Context, got *engine.Message, _ engine.State) ([]engine.Output, error) {
				if !fixed.Load() {
					return nil, engine.Reject("too much")
				}
				if string(got.Data) != string(m.Data) || strings.Join(got.Header["Long"], "") != m.Header.Get("Long") {
					t.Errorf("a handler got %d bytes and %d headers", len(got.Data), len(got.Header))
				}
				return text(got.Header["K"][0]), nil
			}
			var held atomic.Int64 // bytes
			w, member := r.native("w", fn), r.native("member", func(_ context.Context, got *engine.Message, _ engine.State) ([]engine.Output, error) {
				held.Add(int64(len(got.Data) + len(strings.Join(got.Header["Long"], ""))))
				return nil, nil
			})
			w.Topic, member.Topic, member.Group = "queue.w", "queue.member", "g"
			h := r.start2(w, member)
			stored := func() uint64 {
				s, err := r.js.Stream(t.Context(), "HOST_DEAD")
				must(t, err)
				info, err := s.Info(t.Context())
				must(t, err)
				return info.State.Msgs
			}
			_, err = r.js.PublishMsg(t.Context(), m)
			must(t, err)
			for range 2 { // the second time it fails after it was redriven
				d := r.letters(h, "w", 1)[0]
				if string(d.Data) != string(m.Data) || d.Header["K"][0] != "v" || d.Header[host.HeaderFor] != nil || d.Reason != "rejected: too much" || !strings.HasPrefix(d.Message, "QUEUE:") || d.Attempts != 1 {
					t.Errorf("dead letter with %d bytes, %d headers: %q, %s", len(d.Data), len(d.Header), d.Reason, d.Message)
				}
				if n, err := h.Redrive(t.Context(), "w", d.Seq); err != nil || n != 1 {
					t.Fatalf("redrive: %d, %v", n, err)
				}
				r.eventually("it is a letter again", func() bool {
					again, err := h.DeadLetters(t.Context(), "w", d.Seq+1, 10)
					must(t, err)
					return len(again) == 1
				})
			}
			fixed.Store(true)
			if n, err := h.Redrive(t.Context(), "w"); err != nil || n != 1 {
				t.Fatalf("redrive: %d, %v", n, err)
			}
			r.wantOutputs("out.w", "v")

			// The same for what is held for a member of a group that is stopped.
			must(t, h.StopWorker(t.Context(), "member"))
			other := member
			other.ID, other.Topic = "other", "queue.other"
			create(t, h, other)
			m.Subject = "queue.member"
			_, err = r.js.PublishMsg(t.Context(), m)
			must(t, err)
			r.publish("queue.member", "z") // behind the large one
			r.eventually("both are held", func() bool { return stored() >= 3 })
			must(t, h.StartWorker(t.Context(), "member"))
			want := int64(len(m.Data) + len(m.Header.Get("Long")) + 1)
			r.eventually("both are handled", func() bool { return held.Load() == want })
			r.eventually("nothing is left behind", func() bool { return stored() == 0 })
		})
	}
}

// TestDrainGivesWorkersAway holds that a host which drains lets go of its workers
// and still answers its verbs.
func TestDrainGivesWorkersAway(t *testing.T) {
	r := newRig(t)
	a := r.start("a")
	create(t, a, host.CreateRequest{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: prefix("")})
	must(t, a.Drain(t.Context()))
	if got := a.Local(); len(got) > 0 {
		t.Errorf("after the drain there is %v", got)
	}
	r.publish("work.w", "1")
	must(t, a.LoadCodeFromContent(t.Context(), "w", prefix("new ")))
	r.stop(a)
	r.start("b")
	r.wantOutputs("out.w", "new 1")
}

// TestUnansweredDeliveries holds that a message whose hosts keep dying ends as a
// dead letter, and up to then keeps all its attempts. A host that dies is played
// by one that has to leave its handler behind: nobody answers for it.
func TestUnansweredDeliveries(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) {
		c.MaxUnanswered = 2
		c.AckWait, c.DrainTimeout = 3*time.Second, 50*time.Millisecond // which is what each death takes
	}
	entered, release := make(chan int, 10), make(chan struct{})
	var deaths atomic.Int64
	h := r.start2(r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
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
	}{{"lucky", 2, true}, {"killer", 3, false}} {
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
		if d := r.letters(h, "w", 1)[0]; string(d.Data) != x.data || !strings.Contains(d.Reason, "begun 3 times and answered 0 times") {
			t.Errorf("dead letter %+v", d)
		}
	}
}

// TestWaitingIsNoAttempt holds that a message which waited in hosts and was
// given back, however often, was not handled by any of them: it loses no
// attempt, and is no dead letter.
func TestWaitingIsNoAttempt(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.MaxUnanswered = 1 }
	var attempts sync.Map
	h := r.start2(r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		attempts.Store(string(m.Data), m.Attempt)
		return text(string(m.Data)), nil
	}))
	must(t, h.StopWorker(t.Context(), "w"))
	r.publish("work.w", "a", "b")
	c, err := r.js.Consumer(t.Context(), "WORK", "w-w")
	must(t, err)
	for range 2 * 5 {
		m, err := c.Next(jetstream.FetchMaxWait(bound))
		must(t, err)
		must(t, m.Nak()) // as a host does with what waits in it when it stops
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
