package workflow

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// number returns a number of the environment, or its default.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// longLife is a bucket that has lived for years, and the table of what was measured.
type longLife struct {
	t       *testing.T
	dir     string
	b       *broker.Broker
	m       *workflow.Manager
	reacted atomic.Int64
	rows    []string
}

// TestLongLife makes LONG_ENTITIES entities, each with a timer that is not due, and writes them
// until the journal has LONG_ENTRIES entries. Then it measures what a service does at its start and
// later: it starts, lists, fires timers, runs hooks, and is backed up and restored. The server is in
// the same process. With LONG_OUT it writes the table into that file.
//
//	LONG_ENTITIES=1000000 LONG_ENTRIES=10000000 LONG_OUT=long.md go test -run '^TestLongLife$' -timeout 5h -v ./workflow
func TestLongLife(t *testing.T) {
	entities, entries := number(t, "LONG_ENTITIES", 2000), number(t, "LONG_ENTRIES", 8000)
	l := &longLife{t: t, dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour) // a write keeps trying while the machine is busy
	defer cancel()
	l.connect(filepath.Join(l.dir, "store"))
	l.manage()

	l.react("first") // from now on the hook must see everything
	l.measure(fmt.Sprintf("make %d entities, each with a timer", entities), func() {
		create(t, l.m, "m-", entities, workflow.Timer{Name: "later", After: 5000 * time.Hour, To: "done", Keep: true})
	})
	phases := [2]string{"landing", "flying"}
	round := 0
	l.measure(fmt.Sprintf("write until the journal has %d entries", entries), func() {
		for written := entities; written < entries; round++ {
			for from := 0; from < entities && written < entries; from += 10_000 {
				n := min(10_000, entities-from, entries-written)
				moves := make([]workflow.Move, n)
				for i := range moves {
					moves[i] = workflow.Move{EntityID: fmt.Sprint("m-", from+i+1), To: phases[round%2], Source: workflow.TransitionSourceRule}
				}
				for _, moved := range l.m.TransitionMany(ctx, survey, moves) {
					l.must(moved.Err)
				}
				written += n
			}
		}
	})
	l.measure("the journal has all of them", func() {
		for l.copied() < uint64(entries) {
			time.Sleep(10 * time.Millisecond)
		}
	})
	l.must(l.m.Close())
	l.must(l.b.Close(ctx))

	store := filepath.Join(l.dir, "store")
	l.note("size of the bucket and its journal on the disk", size(t, store))
	l.measure("start the embedded server on it", func() { l.connect(store) })
	l.measure("start a process: until its lists are answered", func() { l.manage() })
	l.measure("list 100 of a phase", func() {
		page, err := l.m.Query(ctx, survey, workflow.ListOptions{Phase: phases[(round+1)%2], Limit: 100})
		l.must(err)
		if len(page.Records) == 0 {
			t.Error("the list is empty")
		}
	})
	l.measure("list the next 100 behind a cursor", func() {
		_, err := l.m.Query(ctx, survey, workflow.ListOptions{After: "m-5", Limit: 100})
		l.must(err)
	})
	l.measure("count the entities of each phase", func() {
		_, err := l.m.Counts(ctx, survey, time.Hour)
		l.must(err)
	})
	for id, what := range []string{"the history of one entity: the server reads its journal again", "the history of another one"} {
		l.measure(what, func() {
			events, err := l.m.History(ctx, survey, fmt.Sprint("m-", id+1))
			l.must(err)
			if len(events) == 0 {
				t.Error("the history is empty")
			}
		})
	}
	l.measure("start Deadlines and a hook that has not run meanwhile: it reads all entries and reacts to a timer", func() { l.react("new-1") })
	l.measure("start both again, where they were, until the hook reacts to a timer", func() { l.react("new-2") })

	saved := filepath.Join(l.dir, "backup")
	var told atomic.Int64
	progress := workflow.TellProgress(func(string, int64) { told.Add(1) })
	l.measure("back up", func() { l.must(workflow.Backup(ctx, l.b.JetStream(), "MISSIONS", saved, progress)) })
	l.note("size of the backup", size(t, saved))
	l.measure("verify the backup", func() {
		_, err := workflow.VerifyBackup(saved)
		l.must(err)
	})
	l.must(l.m.Close())
	l.must(l.b.Close(ctx))
	l.must(os.RemoveAll(store))
	l.connect(filepath.Join(l.dir, "restored"), withoutStreams)
	l.measure("restore into an empty server", func() { l.must(workflow.RestoreBackup(ctx, l.b.JetStream(), saved, progress)) })
	if told.Load() == 0 {
		t.Error("no progress was told")
	}
	l.manage()
	page, err := l.m.Query(ctx, survey, workflow.ListOptions{Limit: 1})
	l.must(err)
	if page.Total != entities+3 || l.copied() < uint64(entries) {
		t.Errorf("restored are %d entities and %d entries, want %d and %d", page.Total, l.copied(), entities+3, entries)
	}
	l.must(l.m.Close())
	l.must(l.b.Close(ctx))

	table := "| what | | processor time | most memory |\n| --- | --- | --- | --- |\n" + strings.Join(l.rows, "")
	t.Log("\n" + table)
	if out := os.Getenv("LONG_OUT"); out != "" {
		l.must(os.WriteFile(out, []byte(table), 0o644))
	}
}

func (l *longLife) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// measure calls do, and notes its time, the processor time of the process, and the most memory that
// its heap had meanwhile, with what was not collected yet.
func (l *longLife) measure(what string, do func()) {
	l.t.Helper()
	most, stop := watchHeap()
	began, used := time.Now(), cpu.Used()
	do()
	took, busy := time.Since(began), cpu.Used()-used
	stop()
	l.note(what, rounded(took), rounded(busy), fmt.Sprintf("%d MB", *most>>20))
}

// rounded returns a duration with about three digits.
func rounded(d time.Duration) string {
	unit := time.Second
	switch {
	case d < 10*time.Millisecond:
		unit = 10 * time.Microsecond
	case d < 10*time.Second:
		unit = time.Millisecond
	}
	return d.Round(unit).String()
}

// watchHeap looks at the size of the heap until stop is called. most is valid after that.
func watchHeap() (most *uint64, stop func()) {
	most = new(uint64)
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for {
			metrics.Read(sample)
			*most = max(*most, sample[0].Value.Uint64())
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return most, func() {
		close(over)
		<-ended
	}
}

// note adds a row to the table. A row has up to three values.
func (l *longLife) note(what string, values ...string) {
	l.t.Log(what, values)
	for len(values) < 3 {
		values = append(values, "")
	}
	l.rows = append(l.rows, fmt.Sprintf("| %s | %s |\n", what, strings.Join(values, " | ")))
}

func withoutStreams(c *broker.Config) { c.Buckets, c.Streams = nil, nil }

func (l *longLife) connect(dir string, change ...func(*broker.Config)) {
	l.t.Helper()
	cfg := broker.Config{
		StoreDir: dir, Sync: broker.SyncInterval, Logger: brokertest.Quiet(),
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS"), workflow.HookBucket("MISSIONS")},
		Streams: []jetstream.StreamConfig{workflow.Journal("MISSIONS")},
	}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	l.b, err = broker.Connect(l.t.Context(), cfg)
	l.must(err)
}

// manage starts a Manager and waits until its view has the bucket.
func (l *longLife) manage() {
	l.t.Helper()
	l.m = workflow.NewManager(l.b.JetStream(), brokertest.Quiet())
	l.must(l.m.Register(survey, func() workflow.Participant { return new(mission) }, longTable, workflow.WithJournal(),
		workflow.WithHook(workflow.Hook{Name: "done", On: []string{"done"}, Do: func(context.Context, workflow.Reaction) error {
			l.reacted.Add(1)
			return nil
		}})))
	err := workflow.ErrStale
	for ; err != nil; err = l.m.Ready(l.t.Context()) {
		if !errors.Is(err, workflow.ErrStale) { // a busy machine may keep the server from answering
			l.t.Fatal(err)
		}
	}
}

// react runs Deadlines and the hook until a timer of a new entity has fired and the hook was called
// for it.
func (l *longLife) react(id string) {
	l.t.Helper()
	before := l.reacted.Load()
	ctx, stop := context.WithCancel(l.t.Context())
	ended := make(chan error, 2)
	go func() { ended <- l.m.Deadlines(ctx) }()
	go func() { ended <- l.m.Hooks(ctx) }()
	kv, err := l.b.JetStream().KeyValue(ctx, "MISSIONS_HOOKS")
	l.must(err)
	for { // a new hook reacts to what happens after its progress was stored
		status, err := kv.Status(ctx)
		l.must(err)
		if status.Values() > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	l.must(l.m.Create(ctx, &mission{ID: id, State: "flying", Area: area}, workflow.SetTimer(workflow.Timer{Name: "now", After: time.Millisecond, To: "done"})))
	for l.reacted.Load() == before {
		time.Sleep(time.Millisecond)
	}
	stop()
	l.must(<-ended)
	l.must(<-ended)
}

// longTable lets an entity move for years.
var longTable = workflow.Transitions{"flying": {"landing", "done"}, "landing": {"flying", "done"}, "done": {}}

// copied returns the last revision of the journal.
func (l *longLife) copied() uint64 {
	l.t.Helper()
	stream, err := l.b.JetStream().Stream(l.t.Context(), "JOURNAL_MISSIONS")
	l.must(err)
	return stream.CachedInfo().State.LastSeq
}

func size(t *testing.T, dir string) string {
	t.Helper()
	var bytes int64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d MB", bytes>>20)
}
