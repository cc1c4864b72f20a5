package workflow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/internal/models"
)

// roundsOf returns a number of the environment, or a few for a test that is not chaos.
func roundsOf(name string, few int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return few
}

// lines gives a child that waits for lines as many as it wants.
type lines struct{}

func (lines) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '\n'
	}
	return len(b), nil
}

// TestRestoreUnderKillsReactsOnce restores a backup of a bucket whose hook has done a part of its
// work, and kills the restore at random moments. A process that runs the hook waits for the bucket
// meanwhile, and is killed too. Every reaction that the backup had open comes, in order and, by its
// ID, once. None comes that was done.
func TestRestoreUnderKillsReactsOnce(t *testing.T) {
	const done, all = 40, 100
	ctx := testContext(t)
	b := hookServer(t)
	var before seen
	r := hooked(t, b, workflow.Hook{Name: "sink", Replay: true, Do: func(_ context.Context, re workflow.Reaction) error { before.note(re); return nil }})
	stop := r.hooks(t)
	note := strings.Repeat("x", 4000) // so that a restore has many parts
	for i := range all {
		id := fmt.Sprint("m", i)
		r.create(t, id, "planning")
		must(t, r.missions.Transition(ctx, id, "flying", "rule", note+fmt.Sprint(rand.Uint64())))
		if i == done-1 {
			for i := range done {
				before.await(t, fmt.Sprint("m", i), "[>planning planning>flying]")
			}
			stop()
		}
	}
	r.copied(t)
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, workflow.Backup(ctx, b.JetStream(), "MISSIONS", dir))

	var records [][]models.Event
	kills, rounds := 0, roundsOf("CHAOS_RESTORES", 2)
	for range rounds {
		site := brokertest.NewSite(t)
		restored := recordStreams(t, site)
		var effects sink
		hooks := startHooks(t, site.URL, &effects)
		for within := 50 * time.Millisecond; ; within *= 2 {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "WORKFLOW_TEST_RESTORE="+dir, "WORKFLOW_TEST_URL="+site.URL)
			cmd.Stdin = lines{}
			var out strings.Builder
			cmd.Stdout = &out
			restored.begins()
			must(t, cmd.Start())
			kill := time.AfterFunc(rand.N(within), func() { _ = cmd.Process.Kill() })
			_ = cmd.Wait()
			kill.Stop()
			if strings.Contains(out.String(), "end <nil>") {
				break
			}
			if strings.Contains(out.String(), "end ") {
				// The one before may have been killed when it was done, and the hook has gone on.
				_, err := site.Connect(t, broker.Config{}).JetStream().Stream(ctx, "KV_MISSIONS")
				if err == nil && strings.Contains(out.String(), jetstream.ErrStreamNameAlreadyInUse.Error()) {
					break
				}
				t.Fatalf("the restore failed: %s", out.String())
			}
			kills++
			if rand.IntN(2) == 0 {
				hooks.kill()
				hooks = startHooks(t, site.URL, &effects)
			}
		}
		records = append(records, restored.record(t))
		brokertest.Await(t, "every reaction", func() bool {
			got, _ := effects.applied()
			n := 0
			for _, list := range got {
				n += len(list)
			}
			return n >= 2*(all-done)
		})
		there := rigOn(t, site.Connect(t, broker.Config{}), workflow.WithJournal())
		there.move(t, "m0", "landing") // the hook goes on
		brokertest.Await(t, "the next reaction", func() bool { got, _ := effects.applied(); return len(got["m0"]) > 0 })
		hooks.kill()
		got, _ := effects.applied()
		for i := range all {
			want := ">planning, planning>flying, "
			switch {
			case i == 0:
				want = "flying>landing, "
			case i < done:
				want = ""
			}
			id, edges := fmt.Sprint("m", i), ""
			for _, e := range got[id] {
				edges += e.edge + ", "
			}
			if edges != want {
				t.Errorf("%s: reactions are %s, want %s", id, edges, want)
			}
		}
	}
	models.Conform(t, "backup", records)
	t.Logf("%d restores, %d of them killed; %d reactions each, none missing, none of what was done", rounds+kills, kills, 2*(all-done))
}

// streams is the order in which a restore was begun and streams were created.
type streams struct {
	mu     sync.Mutex // guards events
	events []models.Event
}

// recordStreams records what a server says of its streams.
func recordStreams(t *testing.T, site *brokertest.Site) *streams {
	s := new(streams)
	b := site.Connect(t, broker.Config{})
	number := map[string]int{"KV_" + workflow.HookBucket("MISSIONS").Bucket: 0, missionsJournal.Name: 1, "KV_MISSIONS": 2}
	const created = "$JS.EVENT.ADVISORY.STREAM.CREATED."
	_, err := b.Conn().Subscribe(created+"*", func(m *nats.Msg) {
		if n, is := number[strings.TrimPrefix(m.Subject, created)]; is {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, models.Event{Life: n, State: "creates"})
		}
	})
	must(t, err)
	must(t, b.Conn().Flush())
	return s
}

// begins notes that a restore begins. One that was killed before it created a stream tells nothing.
func (s *streams) begins() {
	s.mu.Lock()
	defer s.mu.Unlock()
	begins := models.Event{Life: 3, State: "begins"}
	if len(s.events) == 0 || s.events[len(s.events)-1] != begins {
		s.events = append(s.events, begins)
	}
}

// record returns the record once it has all three streams.
func (s *streams) record(t *testing.T) (record []models.Event) {
	brokertest.Await(t, "the server to tell of all streams", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		record = slices.Clone(s.events)
		return len(slices.DeleteFunc(slices.Clone(record), func(e models.Event) bool { return e.State == "begins" })) >= 3
	})
	if last := len(record) - 1; record[last].State == "begins" {
		record = record[:last] // the last call found all streams there
	}
	return record
}

// live leads an entity through three phases, and updates another one.
func live(r *rig, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m := r.missions
	err := m.Create(ctx, &Mission{ID: id, State: "planning"})
	if err == nil {
		err = m.Transition(ctx, id, "flying", workflow.TransitionSourceRule, "")
	}
	if err == nil {
		err = m.Update(ctx, "hot", func(m *Mission) error { m.Count++; return nil })
	}
	if err == nil {
		err = m.Transition(ctx, id, "landing", workflow.TransitionSourceRule, "")
	}
	return err
}

// TestResumeUnderLoad breaks the connection of a process that watches and runs a hook, while
// writers write without a pause. Every transition reaches the hook once and in order, the watch
// sends every revision once, and no gap.
func TestResumeUnderLoad(t *testing.T) {
	here, p := journaledBehindMuffler(t)
	var reacted seen
	there := rigOn(t, brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}), workflow.WithJournal(),
		workflow.WithHook(workflow.Hook{Name: "once", Replay: true, Backoff: quick, Do: func(_ context.Context, re workflow.Reaction) error {
			reacted.note(re)
			return nil
		}}))
	there.hooks(t)
	events, err := there.WatchEvents(testContext(t), survey)
	must(t, err)
	var mu sync.Mutex
	last, sent := uint64(0), 0
	go func() {
		for e := range events {
			mu.Lock()
			switch {
			case e.Kind == workflow.EventGap:
				t.Error("the watch sent a gap")
			case e.Kind == workflow.EventPut && e.Revision <= last:
				t.Errorf("the watch sent revision %d after %d", e.Revision, last)
			case e.Kind == workflow.EventPut:
				last = e.Revision
				sent++
			}
			mu.Unlock()
		}
	}()

	ctx, over := context.WithCancel(context.Background())
	defer over()
	var writers sync.WaitGroup
	here.create(t, "hot", "planning")
	entities := make([]int, 4)
	for w := range entities {
		writers.Go(func() {
			for ctx.Err() == nil {
				if err := live(here, fmt.Sprintf("w%d-%d", w, entities[w])); err != nil {
					t.Error(err)
					return
				}
				entities[w]++
			}
		})
	}
	rounds := roundsOf("CHAOS_RESUMES", 3)
	for range rounds {
		time.Sleep(rand.N(300 * time.Millisecond))
		p.close()
		time.Sleep(rand.N(300 * time.Millisecond))
		p.open(t)
		mu.Lock()
		from := sent
		mu.Unlock()
		brokertest.Await(t, "the watch to go on", func() bool { mu.Lock(); defer mu.Unlock(); return sent > from })
	}
	over()
	writers.Wait()

	final, err := here.record(testContext(t), "hot")
	must(t, err)
	brokertest.Await(t, "the watch to be up to date", func() bool { mu.Lock(); defer mu.Unlock(); return last >= final.Revision })
	transitions := 0
	for w, n := range entities {
		for i := range n {
			reacted.await(t, fmt.Sprintf("w%d-%d", w, i), "[>planning planning>flying flying>landing]")
			transitions += 3
		}
	}
	reacted.await(t, "hot", "[>planning]")
	reacted.mu.Lock()
	defer reacted.mu.Unlock()
	if len(reacted.ids) != transitions+1 {
		t.Errorf("%d reactions, want %d", len(reacted.ids), transitions+1)
	}
	for id, n := range reacted.ids {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	t.Logf("%d disconnects, %d transitions: each reaction came once", rounds, transitions)
}
