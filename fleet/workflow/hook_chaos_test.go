package workflow_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/internal/models"
)

// hookChild runs in place of the tests when a test starts this binary as another
// process: it runs hooks and timers, and prints every effect, until it is killed.
func hookChild() {
	url := os.Getenv("WORKFLOW_TEST_HOOKS")
	if url == "" {
		return
	}
	ctx := context.Background()
	fail := func(err error) {
		fmt.Println("error", err)
		os.Exit(1)
	}
	cfg := broker.Config{URL: url, Logger: brokertest.Quiet(), ReconnectWait: 20 * time.Millisecond}
	b, err := broker.Connect(ctx, cfg)
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); { // the server may be away
		time.Sleep(20 * time.Millisecond)
		b, err = broker.Connect(ctx, cfg)
	}
	if err != nil {
		fail(err)
	}
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	err = m.Register(survey, newMission, table, workflow.WithJournal(), workflow.WithHook(workflow.Hook{
		Name: "sink", Replay: true, Attempts: 1000, Backoff: quick, Do: func(_ context.Context, re workflow.Reaction) error {
			if rand.IntN(10) == 0 {
				return errors.New("before the effect")
			}
			fmt.Println("effect", re.ID, re.Record.EntityID, re.Record.Revision, re.From+">"+re.To, strconv.Quote(re.Timer), re.Gap)
			if rand.IntN(10) == 0 {
				return errors.New("after the effect")
			}
			return nil
		}}))
	if err != nil {
		fail(err)
	}
	go func() { fail(m.Deadlines(ctx)) }()
	fail(m.Hooks(ctx))
}

// effect is what a hook did: one line of a child.
type effect struct {
	id, entity, edge, timer string
	revision                uint64
}

// sink keeps every effect, in the order of arrival. It does not deduplicate.
type sink struct {
	mu      sync.Mutex
	effects []effect
}

func (s *sink) read(t *testing.T, out *bufio.Scanner) {
	for out.Scan() {
		f := strings.Fields(out.Text())
		if len(f) != 7 || f[0] != "effect" || f[6] != "false" {
			t.Errorf("a child said: %s", out.Text())
			return
		}
		revision, err := strconv.ParseUint(f[3], 10, 64)
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.effects = append(s.effects, effect{f[1], f[2], f[4], f[5], revision})
		s.mu.Unlock()
	}
}

// applied returns the effects of each entity with the idempotency key applied: the
// first of each ID. repeated is how many others there were.
func (s *sink) applied() (by map[string][]effect, repeated int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	by = make(map[string][]effect)
	known := make(map[string]bool)
	for _, e := range s.effects {
		if known[e.id] {
			repeated++
			continue
		}
		known[e.id] = true
		by[e.entity] = append(by[e.entity], e)
	}
	return by, repeated
}

// hookProcess is a child.
type hookProcess struct {
	cmd  *exec.Cmd
	read sync.WaitGroup
}

func startHooks(t *testing.T, url string, s *sink) *hookProcess {
	t.Helper()
	p := &hookProcess{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "WORKFLOW_TEST_HOOKS="+url)
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	p.read.Go(func() { s.read(t, bufio.NewScanner(out)) })
	return p
}

func (p *hookProcess) kill() {
	_ = p.cmd.Process.Kill()
	p.read.Wait() // what it has printed counts
	_ = p.cmd.Wait()
}

// TestHooksAndTimersUnderKills runs hooks and timers in two processes at once, both of
// which are killed again and again, as is the server. Afterwards every transition and
// every reminder has had its effect, in the order of the history: none is missing,
// none came after a later one of its entity, and none is of a transition that is not in
// the history.
func TestHooksAndTimersUnderKills(t *testing.T) {
	rounds := 4
	if n, err := strconv.Atoi(os.Getenv("CHAOS_HOOKS")); err == nil {
		rounds = n
	}
	site := brokertest.NewSite(t)
	r := rigOn(t, site.Connect(t, broker.Config{
		Buckets: []jetstream.KeyValueConfig{missionsBucket, workflow.HookBucket("MISSIONS")}, Streams: []jetstream.StreamConfig{missionsJournal},
	}), workflow.WithJournal())
	var effects sink
	children := []*hookProcess{startHooks(t, site.URL, &effects), startHooks(t, site.URL, &effects)}
	defer func() {
		for _, p := range children {
			p.kill()
		}
	}()

	ctx, over := context.WithCancel(context.Background())
	defer over()
	var mu sync.Mutex
	acknowledged := make(map[string][]string) // notes, by entity
	reminders := make(map[string]int)
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("w%d-%d", w, i)
				fly(ctx, t, r, id, func(note string, reminded bool) {
					mu.Lock()
					defer mu.Unlock()
					acknowledged[id] = append(acknowledged[id], note)
					if reminded {
						reminders[id]++
					}
				})
			}
		})
	}
	for round := range rounds {
		before := len(effects.all())
		brokertest.Await(t, "some effects", func() bool { return len(effects.all()) >= before+20+rand.IntN(200) })
		i := rand.IntN(len(children))
		children[i].kill()
		if round%3 == 2 {
			site.Stop()
			site.Start()
		}
		children[i] = startHooks(t, site.URL, &effects)
	}
	over()
	writers.Wait()

	want := make(map[string][]effect)
	for id := range acknowledged {
		want[id] = nil
	}
	brokertest.Await(t, "every effect", func() bool {
		got, _ := effects.applied()
		for id := range want {
			trail, err := r.Trail(testContext(t), survey, id)
			must(t, err)
			if trail.Truncated {
				t.Fatalf("the history of %s is truncated", id)
			}
			rec, err := r.record(testContext(t), id)
			must(t, err)
			for _, timer := range rec.Timers {
				if !timer.At.IsZero() {
					return false // it will fire
				}
			}
			reminded := 0
			for _, e := range got[id] {
				if strings.Contains(e.timer, "remind") {
					reminded++
				}
			}
			mu.Lock()
			missing := len(got[id])-reminded < len(trail.Events) || reminded < reminders[id]
			mu.Unlock()
			if missing {
				return false
			}
		}
		return true
	})
	got, repeated := effects.applied()
	transitions := 0
	for id, list := range got {
		trail, err := r.Trail(testContext(t), survey, id)
		must(t, err)
		var edges, notes []string
		for _, e := range trail.Events {
			edges = append(edges, e.From+">"+e.To)
			notes = append(notes, e.Note)
		}
		transitions += len(edges)
		var effected []string
		reminded := 0
		for i, e := range list {
			if i > 0 && e.revision <= list[i-1].revision {
				t.Errorf("%s: the effect of revision %d came after that of %d", id, e.revision, list[i-1].revision)
			}
			if strings.Contains(e.timer, "remind") {
				reminded++
				continue
			}
			effected = append(effected, e.edge)
		}
		if !slices.Equal(edges, effected) {
			t.Errorf("%s: effects %v, history %v", id, effected, edges)
		}
		if known := acknowledged[id]; known != nil && reminded < reminders[id] || reminded > reminders[id]+1 {
			t.Errorf("%s: %d reminders, set %d", id, reminded, reminders[id])
		}
		for _, note := range acknowledged[id] {
			if n := len(slices.DeleteFunc(slices.Clone(notes), func(s string) bool { return s != note })); n != 1 {
				t.Errorf("%s: the acknowledged %s is %d times in the history %v", id, note, n, notes)
			}
		}
	}
	models.Conform(t, "hook", reactionsOf(got))
	t.Logf("%d entities, %d transitions, %d effects repeated; missing, superseded and disordered: 0", len(got), transitions, repeated)
}

// reactionsOf returns records of the size of the model: how any three transitions of an entity, one after the other, had
// their effects.
func reactionsOf(effects map[string][]effect) (records [][]models.Event) {
	for _, list := range effects {
		list = slices.DeleteFunc(slices.Clone(list), func(e effect) bool { return strings.Contains(e.timer, "remind") })
		var revisions []uint64
		for _, e := range list {
			revisions = append(revisions, e.revision)
		}
		slices.Sort(revisions)
		for ; len(revisions) >= 3; revisions = revisions[1:] {
			var record []models.Event
			for _, e := range list {
				if i := slices.Index(revisions[:3], e.revision); i >= 0 {
					record = append(record, models.Event{Life: i + 1, State: "reacts"})
				}
			}
			records = append(records, record)
		}
	}
	return records
}

func (s *sink) all() []effect {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.effects)
}

// fly leads an entity through its phases, some of them by timers. It tells each note
// that was acknowledged, and whether a reminder was set with it.
func fly(ctx context.Context, t *testing.T, r *rig, id string, told func(note string, reminded bool)) {
	// A write that was begun is ended: the end of the test cuts none off.
	ctx2 := testContext(t)
	note := func() string { return id + "." + nextID() }
	must := func(err error) bool {
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
		return err == nil
	}
	soon := func(name, to string) workflow.WriteOption {
		return workflow.SetTimer(workflow.Timer{Name: name, After: time.Duration(1+rand.IntN(20)) * time.Millisecond, To: to, Keep: to == ""})
	}
	if !must(r.missions.Create(ctx2, &Mission{ID: id, State: "planning"}, soon("start", "flying"))) {
		return
	}
	told("timer: start", false)
	if !awaitPhase(ctx2, r, id, "flying") {
		t.Errorf("%s was never started", id)
		return
	}
	for range 1 + rand.IntN(4) {
		first, second := note(), note()
		if !must(r.missions.Transition(ctx2, id, "capturing", "rule", first, soon("remind", ""))) {
			return
		}
		told(first, true)
		for fired := 0; fired == 0; {
			if ctx2.Err() != nil {
				t.Errorf("%s was never reminded", id)
				return
			}
			if rec, err := r.record(ctx2, id); err == nil && rec.Timers[0].At.IsZero() {
				fired++
			} else {
				time.Sleep(time.Millisecond) // the server may be away
			}
		}
		if !must(r.missions.Transition(ctx2, id, "flying", "rule", second)) {
			return
		}
		told(second, false)
	}
	if ctx.Err() != nil {
		return
	}
	if last := note(); must(r.missions.Transition(ctx2, id, "landing", "rule", last, soon("end", "completed"))) {
		told(last, false)
		awaitPhase(ctx2, r, id, "completed")
	}
}

func awaitPhase(ctx context.Context, r *rig, id, phase string) bool {
	for ctx.Err() == nil {
		if m, err := r.missions.Get(ctx, id); err == nil && m.State == phase {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}
