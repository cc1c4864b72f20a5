package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// TestGroups checks that a group handles one message at a time, across hosts and
// topics, that its members take turns, and that stopping one of them loses nothing and
// holds up no other worker.
func TestGroups(t *testing.T) {
	r := newRig(t)
	var inside, most, fenceLast atomic.Int64
	var mu sync.Mutex
	calls, handled := make(map[string]int), make(map[string]string) // by worker, and the topic by message
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
		calls[m.Worker]++
		handled[m.ID] = m.Topic
		mu.Unlock()
		return nil, nil
	}
	one, two, three := r.native("one", fn), r.native("two", fn), r.native("three", fn)
	one.Topic, two.Topic, three.Topic = "work.shared", "work.shared", "work.other"
	a := r.start("a")
	b := r.start("b")
	r.eventually("the hosts know each other", func() bool { return len(a.Members()) == 2 && len(b.Members()) == 2 })
	for i, req := range []host.Spec{one, two, three} {
		req.Group = "g"
		create(t, []*host.Host{a, b}[i%2], req)
	}
	sum := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(handled)
	}
	for i := range 60 {
		r.publish("work.shared", strconv.Itoa(i))
		r.publish("work.other", strconv.Itoa(i))
	}
	// A server that is slow to take what a handler has done delivers its message again: that is a
	// turn as any other.
	r.eventually("all is handled", func() bool { return sum() == 120 })
	mu.Lock()
	shared := 0
	for _, topic := range handled {
		if topic == "work.shared" {
			shared++
		}
	}
	if difference := calls["one"] - calls["two"]; shared != 60 || difference < -1 || difference > 1 || calls["three"] < 60 {
		t.Errorf("%d of work.shared are handled, calls: %v", shared, calls)
	}
	mu.Unlock()
	if most.Load() != 1 {
		t.Errorf("%d messages at a time in the group", most.Load())
	}

	// No worker runs for work.other, so its messages wait. Those of work.shared do
	// not.
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

// TestStateTakesEffectOnce checks that a message's state is written once, however often
// the message is delivered, and that an attempt that fails writes none.
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
			return nil, errors.New("after the write") // the failed attempt must not write it
		}
		return text(strconv.Itoa(n + 1)), nil
	}
	h := r.startWith(r.native("w", fn))
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
	// Reset the consumer to the beginning, so that the server delivers everything
	// again.
	must(t, h.StopWorker(t.Context(), "w"))
	c, err := r.js.Consumer(t.Context(), "WORK", "HOST_w-w")
	must(t, err)
	cfg := c.CachedInfo().Config
	must(t, r.js.DeleteConsumer(t.Context(), "WORK", "HOST_w-w"))
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

// startWith starts a host and creates workers on it.
func (r *rig) startWith(reqs ...host.Spec) *host.Host {
	r.t.Helper()
	h := r.start("a")
	for _, req := range reqs {
		create(r.t, h, req)
	}
	return h
}

// TestHeldMessagesGoWithTheirGroup deletes a group for whose stopped member a message was held. A new
// group of the name does not get it.
func TestHeldMessagesGoWithTheirGroup(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	member := func(id string) {
		create(t, h, host.Spec{ID: id, Group: "g", Topic: "work." + id, OutputTopic: "out." + id, Code: prefix("")})
	}
	held := func() bool {
		dead, err := r.js.Stream(t.Context(), "HOST_DEAD")
		must(t, err)
		info, err := dead.Info(t.Context())
		must(t, err)
		return info.State.Msgs > 0
	}
	member("one")
	member("two")
	for _, last := range []string{"one", "two"} { // deleted last
		must(t, h.StopWorker(t.Context(), "one"))
		r.publish("work.one", "of the old group")
		r.eventually("the message is held", held)
		must(t, h.Delete(t.Context(), map[string]string{"one": "two", "two": "one"}[last]))
		if last == "two" && held() {
			t.Error("the message is kept for the other member, whose topic is another one")
		}
		must(t, h.Delete(t.Context(), last))
		if held() {
			t.Error("the message is kept after its group")
		}
		member("one")
		member("two")
		r.publish("work.one", last)
		r.eventually("the new group works", func() bool { return slices.Contains(r.outputs("out.one"), last) })
	}
	r.wantOutputs("out.one", "one", "two")
}

// TestStaleHolder checks that the server refuses the state of a host that was replaced
// while its handler ran. The host that replaced it handles the message again, and only
// that takes effect.
func TestStaleHolder(t *testing.T) {
	r := newRig(t)
	// A server that loses the refusal, as a cluster may, delivers after AckWait: that
	// must come well before the test's own patience ends.
	r.tune = func(c *host.Config) { c.AckWait = bound / 10 }
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
	h := r.startWith(r.native("w", fn))
	r.publish("work.w", "x")
	<-entered
	// Another host claims the fence, as a host that takes over does.
	must(t, r.host("b").Supersede(t.Context(), "w-w"))
	close(release)
	stream, err := r.js.Stream(t.Context(), "HOST_STATE")
	must(t, err)
	rec, err := h.Get(t.Context(), "w")
	must(t, err)
	r.eventually("the second one's write is there", func() bool {
		m, err := stream.GetLastMsgForSubject(t.Context(), "$host.state.w-w.kv."+rec.UID+".by")
		return err == nil && string(m.Data) == "2"
	})
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$host.state.w-w.>"))
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

// TestHostsShare checks that each worker is loaded on one host only, that a second host
// takes its share and gives it back, and that no message is lost meanwhile.
func TestHostsShare(t *testing.T) {
	r := newRig(t)
	a := r.start("a")
	const n = 12
	for i := range n {
		create(t, a, host.Spec{ID: fmt.Sprint("w", i), Topic: fmt.Sprint("work.", i), OutputTopic: fmt.Sprint("out.", i), Code: prefix("")})
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
		// In any order: the first message may have been on its way to the host that
		// stopped, and then the server delivers it again later. Only groups keep
		// order.
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

// TestDrainGivesWorkersAway checks that a host that drains ends its workers, and that
// its verbs still work.
func TestDrainGivesWorkersAway(t *testing.T) {
	r := newRig(t)
	a := r.start("a")
	create(t, a, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: prefix("")})
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

// TestStopFinishesLongMessages checks that a host that stops renews its lease until its last
// message is finished.
func TestStopFinishesLongMessages(t *testing.T) {
	r := newRig(t)
	// The handler takes longer than a lease that is not renewed is trusted (10 s), by less than a beat.
	const lease, takes = 15 * time.Second, 11 * time.Second
	r.tune = func(c *host.Config) { c.LeaseTTL = lease }
	began := make(chan struct{}, 10)
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		began <- struct{}{}
		select {
		case <-time.After(takes):
			return text(string(m.Data)), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}))
	r.publish("work.w", "long")
	<-began
	r.stop(h)
	r.wantOutputs("out.w", "long")
	if len(began) > 0 {
		t.Errorf("the message was handled %d times", 1+len(began))
	}
}

// TestDrainHandsWorkersOver drains one of two hosts, which then goes on living for a while, as
// in the window of a stop. The other one has its workers long before the lease runs out.
func TestDrainHandsWorkersOver(t *testing.T) {
	r := newRig(t)
	r.tune = func(cfg *host.Config) { cfg.LeaseTTL = time.Minute }
	hosts := map[string]*host.Host{"a": r.start("a"), "b": r.start("b")}
	const workers = 10
	for i := range workers {
		id := fmt.Sprint("w", i)
		create(t, hosts["a"], host.Spec{ID: id, Topic: "work." + id, OutputTopic: "out.w", Code: prefix("")})
	}
	r.eventually("both hosts have workers", func() bool {
		a, b := len(hosts["a"].Local()), len(hosts["b"].Local())
		return a > 0 && b > 0 && a+b == workers
	})
	must(t, hosts["a"].Drain(t.Context()))
	r.eventually("the other host has all workers", func() bool { return len(hosts["b"].Local()) == workers })
	var want []string
	for i := range workers {
		r.publish(fmt.Sprint("work.w", i), fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
	}
	r.eventually("all messages are handled", func() bool {
		got := r.outputs("out.w")
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}
