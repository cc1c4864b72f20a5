package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// ghostTime is how long an entity that is gone may be listed.
const ghostTime = 10 * time.Second

// storage is a bucket that faults happen to, with three processes that view it, one of
// which runs hooks and timers.
type storage struct {
	t    *testing.T
	b    *broker.Broker
	disk string // a file system of its own, "" for none
	rigs []*rig
	seen []*watched

	gate sync.RWMutex // a writer holds it for reading during a write

	mu      sync.Mutex // guards the fields below
	faulty  bool
	tracked map[string][]string // notes of acknowledged transitions outside of faults, by entity
	effects map[string][]string // notes that the hook was called with, the first call of each ID
	known   map[string]bool     // those IDs
	done    int                 // writes that were acknowledged
	failed  int                 // writes that were refused
	last    error               // of the writes
	probed  error               // what the probe said
}

// storageFaults are what happens to a bucket.
var storageFaults = []struct {
	name   string
	happen func(s *storage, ctx context.Context)
}{
	{"entities are purged", (*storage).purgeSome},
	{"the stream is purged", func(s *storage, ctx context.Context) { must(s.t, s.stream(ctx).Purge(ctx)) }},
	{"the stream is purged but for its end", func(s *storage, ctx context.Context) {
		must(s.t, s.stream(ctx).Purge(ctx, jetstream.WithPurgeKeep(30)))
	}},
	{"entities reach their time to live", (*storage).expire},
	{"the bucket is restored from a backup", (*storage).restore},
	{"the disk is full", (*storage).fill},
}

// TestStorageFaults removes entities in every way that sends no message, restores the
// bucket from a backup and fills its disk, while processes write, view and watch it, and
// one runs a hook. After each fault the readers agree with the bucket: no view and no watch has an
// entity that the bucket does not have, or lacks one. In the end the hook was called for
// every transition that was acknowledged outside of a fault, in order, and the history
// has it once.
func TestStorageFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("long: each fault takes seconds to be noticed")
	}
	rounds, limit := len(storageFaults), patience
	if n, err := strconv.Atoi(os.Getenv("CHAOS_STORAGE")); err == nil {
		rounds, limit = n, ghostTime
	}
	s := newStorage(t)
	ctx, over := context.WithCancel(context.Background())
	defer over()
	var writers sync.WaitGroup
	defer writers.Wait()
	defer over()
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				s.fly(ctx, s.rigs[w%len(s.rigs)], fmt.Sprintf("w%d-%d", w, i))
			}
		})
	}
	order := rand.Perm(len(storageFaults))
	for round := range rounds {
		s.await("writes to go on", func() int { return s.done }, 100)
		fault := storageFaults[order[round%len(order)]]
		if fault.name == "the disk is full" && s.disk == "" {
			t.Log("left out, because it needs a disk of its own, and root to mount it: ", fault.name)
			continue
		}
		s.begin()
		fault.happen(s, ctx)
		took := s.settle(limit)
		t.Logf("%s: no ghost after %v", fault.name, took.Round(time.Millisecond))
	}
	s.await("writes to go on", func() int { return s.done }, 100)
	over()
	writers.Wait()
	s.check()
}

func newStorage(t *testing.T) *storage {
	t.Helper()
	s := &storage{t: t, disk: t.TempDir(), tracked: make(map[string][]string), effects: make(map[string][]string), known: make(map[string]bool)}
	store := s.disk
	if err := syscall.Mount("tmpfs", s.disk, "tmpfs", 0, "size=64m"); err != nil {
		s.disk = ""
	} else {
		t.Cleanup(func() { must(t, syscall.Unmount(store, syscall.MNT_DETACH)) })
	}
	s.b = brokertest.Connect(t, broker.Config{
		StoreDir: filepath.Join(store, "nats"), Listen: "127.0.0.1:0", Sync: broker.SyncInterval, ReconnectWait: 10 * time.Millisecond,
		Buckets: []jetstream.KeyValueConfig{missionsBucket, workflow.HookBucket("MISSIONS")}, Streams: []jetstream.StreamConfig{missionsJournal},
	})
	for i := range 3 {
		b := brokertest.Connect(t, broker.Config{URL: s.b.ClientURL(), ReconnectWait: 10 * time.Millisecond})
		opts := []workflow.RegisterOption{workflow.WithJournal()}
		if i == 0 {
			opts = append(opts, workflow.WithHook(workflow.Hook{Name: "sink", Replay: true, Attempts: 1000, Backoff: quick, Do: s.effect}))
		}
		r := rigOn(t, b, opts...)
		s.rigs, s.seen = append(s.rigs, r), append(s.seen, watchIDs(t, r))
	}
	s.rigs[0].hooks(t)
	s.rigs[0].deadlines(t)
	background(t, func(ctx context.Context) error { // a probe, as an App has one
		for ctx.Err() == nil {
			brief, cancel := context.WithTimeout(ctx, 20*time.Second)
			err := s.b.Check(brief)
			cancel()
			s.mu.Lock()
			s.probed = err
			s.mu.Unlock()
			time.Sleep(200 * time.Millisecond)
		}
		return nil
	})
	return s
}

// effect is the hook. It may fail before and after it has had its effect.
func (s *storage) effect(_ context.Context, re workflow.Reaction) error {
	if rand.IntN(20) == 0 {
		return errors.New("before the effect")
	}
	s.mu.Lock()
	if id := re.Record.EntityID; !s.known[re.ID] {
		s.known[re.ID] = true
		s.effects[id] = append(s.effects[id], re.Note)
	}
	s.mu.Unlock()
	if rand.IntN(20) == 0 {
		return errors.New("after the effect")
	}
	return nil
}

// fly leads an entity through its phases, until a write fails: it may be gone.
func (s *storage) fly(ctx context.Context, r *rig, id string) {
	ok := s.write(ctx, id, "", func(ctx context.Context) error {
		return r.missions.Create(ctx, &Mission{ID: id, State: "planning"})
	})
	for i, to := range []string{"flying", "capturing", "flying", "landing", "completed"} {
		note := fmt.Sprintf("%s.%d", id, i)
		if ok = ok && s.write(ctx, id, note, func(ctx context.Context) error {
			var opts []workflow.WriteOption
			if to == "capturing" {
				opts = append(opts, workflow.SetTimer(workflow.Timer{Name: "remind", After: rand.N(20 * time.Millisecond), Keep: true}))
			}
			return r.missions.Transition(ctx, id, to, workflow.TransitionSourceRule, note, opts...)
		}); !ok {
			return
		}
	}
	if rand.IntN(3) == 0 {
		s.write(ctx, id, "", func(ctx context.Context) error { return r.missions.Delete(ctx, id) })
	}
}

func (s *storage) write(ctx context.Context, id, note string, do func(context.Context) error) bool {
	time.Sleep(rand.N(4 * time.Millisecond))
	s.gate.RLock()
	defer s.gate.RUnlock()
	if ctx.Err() != nil {
		return false
	}
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	s.mu.Lock()
	faulty := s.faulty
	s.mu.Unlock()
	err := do(brief)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed++
		s.last = err
		isAnswer := errors.Is(err, workflow.ErrEntityNotFound) || errors.Is(err, workflow.ErrInvalidTransition) || errors.Is(err, workflow.ErrEntityExists)
		if !faulty && !s.faulty && brief.Err() == nil && !isAnswer {
			s.t.Errorf("%s, without a fault: %v", id, err)
		}
		return false
	}
	s.done++
	if note != "" && !faulty && !s.faulty {
		s.tracked[id] = append(s.tracked[id], note)
	}
	return true
}

// await waits until a count has risen by n.
func (s *storage) await(what string, count func() int, n int) {
	s.t.Helper()
	read := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return count()
	}
	before := read()
	brokertest.Await(s.t, what, func() bool { return read() >= before+n || s.t.Failed() })
}

// begin lets the journal have what was acknowledged. From now on a write may be lost.
func (s *storage) begin() {
	s.t.Helper()
	s.gate.Lock()
	defer s.gate.Unlock()
	s.rigs[1].copied(s.t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faulty = true
}

// settle ends a fault: it holds writers up until no view and no watch has a ghost, and
// returns how long that took.
func (s *storage) settle(limit time.Duration) time.Duration {
	s.t.Helper()
	s.gate.Lock()
	defer s.gate.Unlock()
	began := time.Now()
	for why := s.ghosts(); why != ""; why = s.ghosts() {
		if time.Since(began) > limit {
			s.t.Fatalf("after %v %s", limit, why)
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faulty = false
	return time.Since(began)
}

// ghosts says how a view or a watch differs from the bucket, "" when none does.
func (s *storage) ghosts() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	kv, err := s.b.JetStream().KeyValue(ctx, "MISSIONS")
	if err != nil {
		return err.Error()
	}
	keys, err := kv.Keys(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		return err.Error()
	}
	var want []string
	for _, key := range keys {
		want = append(want, strings.TrimPrefix(key, "mission."))
	}
	slices.Sort(want)
	for i, r := range s.rigs {
		list, err := r.missions.List(ctx, workflow.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var listed []string
		for _, m := range list {
			listed = append(listed, m.ID)
		}
		w := s.seen[i]
		w.mu.Lock()
		told := slices.Sorted(maps.Keys(w.ids))
		w.mu.Unlock()
		if !slices.Equal(listed, want) || !slices.Equal(told, want) {
			return fmt.Sprintf("process %d lists %d entities and its watch has %d; the bucket has %d", i, len(listed), len(told), len(want))
		}
	}
	return ""
}

func (s *storage) stream(ctx context.Context) jetstream.Stream {
	s.t.Helper()
	stream, err := s.b.JetStream().Stream(ctx, "KV_MISSIONS")
	must(s.t, err)
	return stream
}

func (s *storage) purgeSome(ctx context.Context) {
	kv, err := s.b.JetStream().KeyValue(ctx, "MISSIONS")
	must(s.t, err)
	keys, err := kv.Keys(ctx)
	must(s.t, err)
	for _, key := range keys[:min(len(keys), 20)] {
		must(s.t, s.stream(ctx).Purge(ctx, jetstream.WithPurgeSubject("$KV.MISSIONS."+key)))
	}
}

// expire gives the bucket a time to live until its first message is younger.
func (s *storage) expire(ctx context.Context) {
	js := s.b.JetStream()
	before := s.stream(ctx).CachedInfo()
	short := before.Config
	short.MaxAge, short.Duplicates = time.Second, time.Second
	_, err := js.UpdateStream(ctx, short)
	must(s.t, err)
	brokertest.Await(s.t, "entities to reach their time to live", func() bool {
		return s.stream(ctx).CachedInfo().State.FirstSeq > before.State.LastSeq
	})
	_, err = js.UpdateStream(ctx, before.Config)
	must(s.t, err)
}

// restore sets the bucket, its journal and its hooks back to what they were some writes
// ago.
func (s *storage) restore(ctx context.Context) {
	js, dir := s.b.JetStream(), filepath.Join(s.t.TempDir(), "backup")
	must(s.t, workflow.Backup(ctx, js, "MISSIONS", dir))
	s.await("writes that will be lost", func() int { return s.done }, 50)
	var err error
	defer func() {
		if err != nil {
			s.t.Log(err)
		}
	}()
	// The server removes the files of a stream a moment after its deletion.
	brokertest.Await(s.t, "the restore", func() bool {
		for _, name := range []string{"KV_MISSIONS", missionsJournal.Name, "KV_MISSIONS_HOOKS"} {
			if err := js.DeleteStream(ctx, name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				s.t.Error(err)
			}
		}
		err = workflow.RestoreBackup(ctx, js, dir)
		return err == nil
	})
}

// fill fills the disk, until writes fail, and makes room again.
func (s *storage) fill(context.Context) {
	name := filepath.Join(s.disk, "full")
	f, err := os.Create(name)
	must(s.t, err)
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	must(s.t, f.Close())
	s.await("writes to fail", func() int { return s.failed }, 8)
	must(s.t, os.Remove(name))
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the last write: %v; the probe: %v", s.last, s.probed)
		}
	}()
	s.await("writes to be taken again", func() int { return s.done }, 10)
}

// check compares the hook's effects and the history with what was acknowledged.
func (s *storage) check() {
	t := s.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	missing := ""
	defer func() {
		if missing != "" {
			t.Log(missing)
		}
	}()
	brokertest.Await(t, "every effect", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		missing = ""
		for id, notes := range s.tracked {
			if rest := behind(notes, s.effects[id]); len(rest) > 0 {
				missing = fmt.Sprintf("the hook was not called for %v of %s, or not in order: %v", rest, id, s.effects[id])
				return false
			}
		}
		return true
	})
	n := 0
	for id, notes := range s.tracked {
		trail, err := s.rigs[2].Trail(ctx, survey, id)
		must(t, err)
		var history []string
		for _, e := range trail.Events {
			history = append(history, e.Note)
		}
		n += len(notes)
		for _, note := range notes {
			if found := slices.DeleteFunc(slices.Clone(history), func(s string) bool { return s != note }); len(found) != 1 {
				t.Errorf("the acknowledged %s is %d times in the history %v", note, len(found), history)
			}
		}
	}
	t.Logf("%d entities, %d transitions, each with its effect in order and once in the history", len(s.tracked), n)
}

// behind returns the notes from the first one on that does not follow in effects.
func behind(notes, effects []string) []string {
	for _, e := range effects {
		if len(notes) > 0 && notes[0] == e {
			notes = notes[1:]
		}
	}
	return notes
}
