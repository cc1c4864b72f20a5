package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/worker"
)

// quick makes failures short.
var quick = worker.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}

func hookServer(t testing.TB) *broker.Broker {
	t.Helper()
	return brokertest.Server(t, broker.Config{
		Buckets: []jetstream.KeyValueConfig{missionsBucket, workflow.HookBucket("MISSIONS")},
		Streams: []jetstream.StreamConfig{missionsJournal},
	})
}

func hooked(t testing.TB, b *broker.Broker, h workflow.Hook) *rig {
	t.Helper()
	if h.Name == "" {
		h.Name = "test"
	}
	return rigOn(t, b, workflow.WithJournal(), workflow.WithHook(h))
}

// hooks runs Hooks until the test ends, or until the result is called.
func (r *rig) hooks(t testing.TB) (stop func()) {
	t.Helper()
	return background(t, r.Hooks)
}

// background runs a function until stop is called or the test ends.
func background(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	ended := false
	stop = func() {
		if cancel(); !ended {
			ended = true
			must(t, <-done)
		}
	}
	t.Cleanup(stop)
	return stop
}

// seen collects reactions as text, by entity.
type seen struct {
	mu    sync.Mutex
	lines map[string][]string
	ids   map[string]int
}

func (s *seen) note(r workflow.Reaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == nil {
		s.lines, s.ids = make(map[string][]string), make(map[string]int)
	}
	line := r.From + ">" + r.To
	if r.Timer != "" {
		line += " " + r.Timer
	}
	if r.Gap {
		line += " gap"
	}
	s.lines[r.Record.EntityID] = append(s.lines[r.Record.EntityID], line)
	s.ids[r.ID]++
}

func (s *seen) of(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.lines[id])
}

func (s *seen) await(t testing.TB, id, want string) {
	t.Helper()
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("%s: %s, want %s", id, got, want)
		}
	}()
	brokertest.Await(t, "the reactions of "+id, func() bool { got = s.of(id); return got == want })
}

func TestHookReactsToEveryTransitionInOrder(t *testing.T) {
	b := hookServer(t)
	var all, landed seen
	r := rigOn(t, b, workflow.WithJournal(),
		workflow.WithHook(workflow.Hook{Name: "all", Do: func(_ context.Context, re workflow.Reaction) error { all.note(re); return nil }}),
		workflow.WithHook(workflow.Hook{Name: "landed", On: []string{"landing", workflow.PhaseDeleted}, Timers: []string{"wake"}, Do: func(_ context.Context, re workflow.Reaction) error {
			landed.note(re)
			return nil
		}}))
	ctx := testContext(t)
	r.create(t, "early", "planning") // before the hooks ran for the first time
	r.copied(t)
	stop := r.hooks(t)
	brokertest.Await(t, "the hooks' first state", func() bool {
		kv, err := b.JetStream().KeyValue(ctx, "MISSIONS_HOOKS")
		must(t, err)
		status, err := kv.Status(ctx)
		must(t, err)
		return status.Values() == 2
	})
	r.create(t, "m1", "planning")
	must(t, r.missions.Transition(ctx, "m1", "flying", "rule", "", workflow.SetTimer(workflow.Timer{Name: "wake", After: time.Millisecond})))
	must(t, r.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))
	off := r.deadlines(t)
	all.await(t, "m1", "[>planning planning>flying flying>flying wake]")
	off()
	stop()
	// No process runs the hooks.
	r.move(t, "m1", "landing")
	r.move(t, "m1", "completed")
	must(t, r.missions.Delete(ctx, "m1"))
	other := hooked(t, b, workflow.Hook{Name: "all", Do: func(_ context.Context, re workflow.Reaction) error { all.note(re); return nil }})
	stop = other.hooks(t)
	all.await(t, "m1", "[>planning planning>flying flying>flying wake flying>landing landing>completed completed><deleted>]")
	stop()
	r.hooks(t)
	landed.await(t, "m1", "[flying>flying wake flying>landing completed><deleted>]")
	if got := all.of("early"); got != "[]" {
		t.Errorf("what was there before: %s", got)
	}
	for id, n := range all.ids {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
}

// TestHookThatFailsOrHangsBlocksItsEntityOnly has one entity whose calls fail, one whose
// call never returns, and one with more reactions than a session holds.
func TestHookThatFailsOrHangsBlocksItsEntityOnly(t *testing.T) {
	b := hookServer(t)
	var got seen
	hang := make(chan struct{})
	fails, noted := map[string]int{}, map[string]bool{}
	var mu sync.Mutex
	r := hooked(t, b, workflow.Hook{Replay: true, Attempts: 3, Backoff: quick, Concurrency: 2, Timeout: 5 * time.Second, Do: func(_ context.Context, re workflow.Reaction) error {
		mu.Lock()
		defer mu.Unlock()
		switch id := re.Record.EntityID; {
		case id == "hangs" && re.To == "flying":
			mu.Unlock()
			<-hang
			mu.Lock()
		case id == "fails" && re.To == "flying":
			if fails[re.ID]++; re.Attempt != fails[re.ID] && fails[re.ID] < 4 {
				t.Errorf("attempt %d is said to be %d", fails[re.ID], re.Attempt)
			}
			return errors.New("no")
		case id == "panics" && re.To == "planning":
			if fails[re.ID]++; fails[re.ID] == 1 {
				panic("at the first attempt")
			}
		}
		// A busy machine may take longer than Timeout for any call.
		if noted[re.ID] && re.Record.EntityID != "hangs" {
			return nil
		}
		noted[re.ID] = true
		got.note(re)
		return nil
	}})
	ctx := testContext(t)
	for _, id := range []string{"hangs", "fails", "panics"} {
		r.create(t, id, "planning")
		r.move(t, id, "flying")
		r.move(t, id, "landing")
	}
	r.create(t, "busy", "flying")
	want := "[>flying"
	for i := range 120 {
		from, to := "flying", "capturing"
		if i%2 == 1 {
			from, to = to, from
		}
		if i%50 == 49 {
			r.copied(t)
		}
		r.move(t, "busy", to)
		want += " " + from + ">" + to
	}
	r.hooks(t)
	got.await(t, "panics", "[>planning planning>flying flying>landing]")
	got.await(t, "fails", "[>planning flying>landing]")
	got.await(t, "busy", want+"]")
	if s := got.of("hangs"); s != "[>planning]" {
		t.Errorf("behind a call that has not returned: %s", s)
	}
	letters, err := r.DeadLetters(ctx, survey, "test")
	must(t, err)
	if len(letters) != 1 || letters[0].Key != "mission.fails" || letters[0].Attempts != 3 || letters[0].Error != "no" {
		t.Errorf("letters: %+v", letters)
	}
	revision := letters[0].Revision
	if err := r.Redrive(ctx, survey, "test", revision); err == nil {
		t.Error("it did not fail again")
	}
	again := hooked(t, b, workflow.Hook{Do: func(_ context.Context, re workflow.Reaction) error { got.note(re); return nil }})
	must(t, again.Redrive(ctx, survey, "test", revision))
	if err := again.Redrive(ctx, survey, "test", revision); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("redriven twice: %v", err)
	}
	kv, err := b.JetStream().KeyValue(ctx, "MISSIONS_HOOKS")
	must(t, err)
	brokertest.Await(t, "the call to be abandoned, and that to be stored", func() bool {
		state, err := kv.Get(ctx, fmt.Sprintf("state.%x.test", survey))
		must(t, err)
		return strings.Contains(string(state.Value()), `"failed":{"2":1}`)
	})
	close(hang)
	got.await(t, "hangs", "[>planning planning>flying planning>flying flying>landing]")
}

// TestHookIsToldOfAGap removes writes from the journal that the hook has not read.
func TestHookIsToldOfAGap(t *testing.T) {
	b := hookServer(t)
	var got seen
	r := hooked(t, b, workflow.Hook{Replay: true, Do: func(_ context.Context, re workflow.Reaction) error { got.note(re); return nil }})
	ctx := testContext(t)
	r.create(t, "m1", "planning") // 1
	r.create(t, "m2", "planning") // 2
	r.move(t, "m1", "flying")     // 3, goes
	r.move(t, "m1", "landing")    // 4
	r.move(t, "m2", "flying")     // 5
	r.copied(t)
	journal, err := b.JetStream().Stream(ctx, missionsJournal.Name)
	must(t, err)
	must(t, journal.DeleteMsg(ctx, 3))
	for range 3 {
		must(t, r.missions.Update(ctx, "m2", func(m *Mission) error { m.Count++; return nil })) // 6 to 8
	}
	r.move(t, "m2", "landing") // 9
	r.copied(t)
	must(t, journal.DeleteMsg(ctx, 7)) // no reaction is missing
	stop := r.hooks(t)
	got.await(t, "m1", "[>planning flying>landing gap]")
	got.await(t, "m2", "[>planning planning>flying flying>landing]")
	stop()
	r.move(t, "m1", "completed") // 10, goes
	r.copied(t)
	must(t, journal.Purge(ctx))
	must(t, r.missions.Delete(ctx, "m1"))
	r.hooks(t)
	brokertest.Await(t, "the deletion", func() bool { return got.of("") == "[completed><deleted> gap]" })
}

// TestHooksHaveOneRunner has two processes run them at once: the progress of one is
// refused, and it goes on from that of the other.
func TestHooksHaveOneRunner(t *testing.T) {
	b := hookServer(t)
	var got seen
	h := workflow.Hook{Replay: true, Do: func(_ context.Context, re workflow.Reaction) error { got.note(re); return nil }}
	r, other := hooked(t, b, h), hooked(t, b, h)
	r.hooks(t)
	other.hooks(t)
	for i := range 50 {
		r.create(t, fmt.Sprint(i), "planning")
	}
	brokertest.Await(t, "all reactions", func() bool {
		got.mu.Lock()
		defer got.mu.Unlock()
		return len(got.lines) == 50
	})
}

// TestHookWaitsForAJournalThatLags makes the journal anew. A hook that runs before the server has
// copied the bucket into it waits, and keeps its progress.
func TestHookWaitsForAJournalThatLags(t *testing.T) {
	ctx := testContext(t)
	b := hookServer(t)
	var reactions seen
	r := hooked(t, b, workflow.Hook{Replay: true, Do: func(_ context.Context, re workflow.Reaction) error { reactions.note(re); return nil }})
	stop := r.hooks(t)
	r.create(t, "a", "planning")
	reactions.await(t, "a", "[>planning]")
	stop()
	progress := func() string {
		kv, err := r.js.KeyValue(ctx, workflow.HookBucket("MISSIONS").Bucket)
		must(t, err)
		e, err := kv.Get(ctx, fmt.Sprintf("state.%x.test", survey))
		must(t, err)
		return string(e.Value())
	}
	before := progress()

	looks, err := b.Conn().SubscribeSync("$JS.API.STREAM.MSG.GET." + missionsJournal.Name)
	must(t, err)
	must(t, r.js.DeleteStream(ctx, missionsJournal.Name))
	behind := missionsJournal
	behind.Mirror = &jetstream.StreamSource{Name: behind.Mirror.Name, FilterSubject: "$KV.MISSIONS.none"}
	_, err = r.js.CreateStream(ctx, behind)
	must(t, err)
	stop = r.hooks(t)
	brokertest.Await(t, "it looks for what it has read, and tries again", func() bool {
		n, _, err := looks.Pending()
		return err != nil || n >= 2 || progress() != before
	})
	must(t, looks.Unsubscribe())
	stop()
	if after := progress(); after != before {
		t.Errorf("the progress was %s and is %s", before, after)
	}
}

func TestHooksWithoutAJournal(t *testing.T) {
	do := func(context.Context, workflow.Reaction) error { return nil }
	m := workflow.NewManager(brokertest.Server(t, broker.Config{Buckets: buckets()}).JetStream(), brokertest.Quiet())
	defer m.Close()
	for name, opts := range map[string][]workflow.RegisterOption{
		"no journal": {workflow.WithHook(workflow.Hook{Name: "a", Do: do})},
		"its name":   {workflow.WithJournal(), workflow.WithHook(workflow.Hook{Name: "a b", Do: do})},
		"two of":     {workflow.WithJournal(), workflow.WithHook(workflow.Hook{Name: "a", Do: do}), workflow.WithHook(workflow.Hook{Name: "a", Do: do})},
		"Do is nil":  {workflow.WithJournal(), workflow.WithHook(workflow.Hook{Name: "a"})},
		"no phase":   {workflow.WithJournal(), workflow.WithHook(workflow.Hook{Name: "a", Do: do, On: []string{"nowhere"}})},
	} {
		if err := m.Register(survey, newMission, table, opts...); !errors.Is(err, workflow.ErrInvalidParticipant) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, m.Register(survey, newMission, table, workflow.WithJournal(), workflow.WithHook(workflow.Hook{Name: "a", Do: do})))
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	must(t, m.Hooks(ctx)) // it keeps trying
}

// TestStatusOfAHook counts what a hook has given up, and what waits for it once it is stopped.
func TestStatusOfAHook(t *testing.T) {
	b := hookServer(t)
	r := hooked(t, b, workflow.Hook{Attempts: 1, Backoff: quick, On: []string{"planning"}, Do: func(context.Context, workflow.Reaction) error {
		return errors.New("no")
	}})
	ctx := testContext(t)
	status := func() workflow.HookStatus {
		t.Helper()
		all, err := r.HookStatuses(ctx, survey)
		must(t, err)
		return all[0]
	}
	stop := r.hooks(t)
	brokertest.Await(t, "the hook to have begun", func() bool {
		kv, err := r.js.KeyValue(ctx, "MISSIONS_HOOKS")
		must(t, err)
		keys, _ := kv.Keys(ctx)
		return len(keys) > 0
	})
	r.create(t, "m1", "planning")
	r.create(t, "m2", "planning")
	brokertest.Await(t, "two dead letters", func() bool { return status().DeadLetters == 2 && status().Waiting == 0 })
	stop()
	r.create(t, "m3", "planning")
	if s := status(); s.Workflow != survey || s.Hook != "test" || s.Waiting != 1 || s.DeadLetters != 2 {
		t.Errorf("a hook that is stopped: %+v", s)
	}
	letters, err := r.DeadLetters(ctx, survey, "test")
	must(t, err)
	must(t, r.Discard(ctx, survey, "test", letters[0].Revision))
	if err := r.Discard(ctx, survey, "test", letters[0].Revision); !errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("discarded twice: %v", err)
	}
	if n := status().DeadLetters; n != 1 {
		t.Errorf("%d dead letters after one was discarded", n)
	}
	stream, err := r.js.Stream(ctx, "KV_MISSIONS_HOOKS")
	must(t, err)
	left, err := stream.GetLastMsgForSubject(ctx, fmt.Sprintf("$KV.MISSIONS_HOOKS.dead.%x.test.%d", survey, letters[0].Revision))
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Errorf("a letter that was discarded leaves %v, %v", left, err)
	}
}

// TestRemovedLettersStayGone kills the server of a hook whose letter was discarded. The letter had
// replaced another one, which a server that starts again would bring back.
func TestRemovedLettersStayGone(t *testing.T) {
	cluster := brokertest.StartCluster(t, 1)
	b := brokertest.Connect(t, broker.Config{
		URL:     cluster.URL(),
		Buckets: []jetstream.KeyValueConfig{missionsBucket, workflow.HookBucket("MISSIONS")},
		Streams: []jetstream.StreamConfig{missionsJournal},
	})
	r := hooked(t, b, workflow.Hook{Attempts: 1, Replay: true, Do: func(context.Context, workflow.Reaction) error {
		return errors.New("no")
	}})
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	rec, err := r.record(ctx, "m1")
	must(t, err)
	kv, err := r.js.KeyValue(ctx, "MISSIONS_HOOKS")
	must(t, err)
	_, err = kv.PutString(ctx, fmt.Sprintf("dead.%x.test.%d", survey, rec.Revision), `{"id": "of a journal before"}`)
	must(t, err)
	stop := r.hooks(t)
	brokertest.Await(t, "the letter of m1", func() bool {
		letters, err := r.DeadLetters(ctx, survey, "test")
		return err == nil && len(letters) == 1 && letters[0].Revision == rec.Revision
	})
	stop()
	must(t, r.Discard(ctx, survey, "test", rec.Revision))
	cluster.Kill(0)
	cluster.Start(0)
	brokertest.Await(t, "the server answers", func() bool { _, err := r.missions.Get(ctx, "m1"); return err == nil })
	letters, err := r.DeadLetters(ctx, survey, "test")
	if err != nil || len(letters) > 0 {
		t.Errorf("there is again the letter %+v, %v", letters, err)
	}
}

// A letter of a bucket that was deleted, made anew or restored has the revision of another write. The
// hook is not called with that one.
func TestLetterOfAnotherJournal(t *testing.T) {
	b := hookServer(t)
	var calls atomic.Int32
	r := hooked(t, b, workflow.Hook{Do: func(context.Context, workflow.Reaction) error { calls.Add(1); return nil }})
	ctx := testContext(t)
	stop := r.hooks(t)
	r.create(t, "m1", "planning")
	brokertest.Await(t, "the call", func() bool { return calls.Load() == 1 })
	stop()
	rec, err := r.record(ctx, "m1")
	must(t, err)
	kv, err := r.js.KeyValue(ctx, "MISSIONS_HOOKS")
	must(t, err)
	key := fmt.Sprintf("dead.%x.test.%d", survey, rec.Revision)
	_, err = kv.Put(ctx, key, fmt.Appendf(nil, `{"id": "MISSIONS/m0@%d.1", "hook": "test", "key": "m0", "revision": %[1]d}`, rec.Revision))
	must(t, err)
	if err := r.Redrive(ctx, survey, "test", rec.Revision); !errors.Is(err, workflow.ErrJournal) || calls.Load() != 1 {
		t.Errorf("Redrive returned %v after %d calls, want ErrJournal and no second call", err, calls.Load())
	}
	if _, err := kv.Get(ctx, key); err != nil {
		t.Errorf("the letter is gone: %v", err)
	}
}

// journaledBehindMuffler returns a Manager on a server with a journal, and a muffler before that server.
func journaledBehindMuffler(t *testing.T) (*rig, *muffler) {
	t.Helper()
	site := brokertest.NewSite(t)
	here := rigOn(t, site.Connect(t, broker.Config{
		Buckets: []jetstream.KeyValueConfig{missionsBucket, workflow.HookBucket("MISSIONS")},
		Streams: []jetstream.StreamConfig{missionsJournal},
	}), workflow.WithJournal())
	return here, muffle(t, site.URL)
}

// A process that loses the answer to a write of its hook's progress still knows what it has done, and
// does not take its own write for that of another process: it does not call the hook again (D20).
func TestHookLosesTheAnswerToItsProgress(t *testing.T) {
	here, p := journaledBehindMuffler(t)
	var reacted seen
	there := rigOn(t, brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}), workflow.WithJournal(),
		workflow.WithHook(workflow.Hook{Name: "once", Replay: true, Backoff: quick, Do: func(_ context.Context, re workflow.Reaction) error {
			reacted.note(re)
			if re.To == "planning" {
				p.after.Store("$KV.MISSIONS_HOOKS.state.") // the write of this reaction's progress
			}
			return nil
		}}))
	there.hooks(t)
	here.create(t, "a", "planning")
	brokertest.Await(t, "the hook to store its progress", p.mute.Load)
	p.after.Store("")
	p.cut()
	p.mute.Store(false)
	must(t, here.missions.Transition(testContext(t), "a", "flying", workflow.TransitionSourceRule, ""))
	rec, err := here.record(testContext(t), "a")
	must(t, err)
	stored, err := here.js.KeyValue(t.Context(), "MISSIONS_HOOKS")
	must(t, err)
	brokertest.Await(t, "the progress behind that transition", func() bool {
		e, err := stored.Get(t.Context(), fmt.Sprintf("state.%x.once", survey))
		must(t, err)
		var progress struct {
			Mark uint64 `json:"mark"`
		}
		must(t, json.Unmarshal(e.Value(), &progress))
		return progress.Mark >= rec.Revision
	})
	if got := reacted.of("a"); got != "[>planning planning>flying]" {
		t.Errorf("the reactions are %s", got)
	}
}

// TestAGivenUpReactionIsToldOnce has a server that takes no dead letter at first. The log tells the
// reaction once, when the letter is stored.
func TestAGivenUpReactionIsToldOnce(t *testing.T) {
	b := hookServer(t)
	ctx := testContext(t)
	stream, err := b.JetStream().Stream(ctx, "KV_MISSIONS_HOOKS")
	must(t, err)
	withoutLetters := stream.CachedInfo().Config
	withoutLetters.Subjects = []string{"$KV.MISSIONS_HOOKS.state.>"}
	_, err = b.JetStream().UpdateStream(ctx, withoutLetters)
	must(t, err)
	var refused atomic.Int64
	refuse, err := b.Conn().Subscribe("$KV.MISSIONS_HOOKS.dead.>", func(m *nats.Msg) {
		refused.Add(1)
		_ = m.Respond([]byte(`{"error":{"code":503,"err_code":10077,"description":"it takes none"}}`))
	})
	must(t, err)

	told := lineCounter{text: "a hook has given up a reaction"}
	m := workflow.NewManager(b.JetStream(), slog.New(slog.NewTextHandler(&told, nil)))
	t.Cleanup(func() { must(t, m.Close()) })
	never := func(context.Context, workflow.Reaction) error { return errors.New("no") }
	must(t, m.Register(survey, newMission, table, workflow.WithJournal(),
		workflow.WithHook(workflow.Hook{Name: "test", Replay: true, Attempts: 1, Backoff: quick, Do: never})))
	must(t, m.Create(ctx, &Mission{ID: "m1", State: "flying"}))
	background(t, m.Hooks)
	brokertest.Await(t, "the letter to be refused again", func() bool { return refused.Load() > 2 })
	if n := told.n.Load(); n != 0 {
		t.Errorf("the log tells the reaction %d times before its letter is stored", n)
	}
	must(t, refuse.Unsubscribe())
	_, err = b.JetStream().UpdateStream(ctx, stream.CachedInfo().Config)
	must(t, err)
	brokertest.Await(t, "the letter", func() bool {
		letters, err := m.DeadLetters(ctx, survey, "test")
		must(t, err)
		return len(letters) == 1 && told.n.Load() > 0
	})
	if n := told.n.Load(); n != 1 {
		t.Errorf("the log tells the reaction %d times, want once", n)
	}
}

// lineCounter counts the lines of a log that have a text.
type lineCounter struct {
	text string
	n    atomic.Int64
}

func (c *lineCounter) Write(line []byte) (int, error) {
	if strings.Contains(string(line), c.text) {
		c.n.Add(1)
	}
	return len(line), nil
}
