//go:build unix

package procpool_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// sleeps submits n queries that do not end by themselves, and waits until a worker has
// each.
func sleeps(t *testing.T, p *procpool.Pool, n int, opts ...procpool.Option) (all []*procpool.Query) {
	t.Helper()
	for i := range n {
		all = append(all, submit(t, p, ask{Op: "sleep", Seconds: 3600, Text: fmt.Sprint(i)}.raw(), opts...))
	}
	for _, q := range all {
		eventually(t, "a worker has it", func() bool { return q.State() == procpool.QueryProcessing })
	}
	return all
}

func TestWorkerTakesSeveralQueriesAtATime(t *testing.T) {
	p := start(t, "many:4", func(c *procpool.Config) { c.CancelGrace = patience })
	do(t, p, ask{}.raw())
	first := sleeps(t, p, 3)
	if s := p.Stats(); s.Ready != 1 || s.Busy != 0 {
		t.Errorf("with a free place: %+v", s)
	}
	do(t, p, ask{}.raw())
	last := sleeps(t, p, 1)
	if s := p.Stats(); s.Ready != 0 || s.Busy != 1 {
		t.Errorf("with no free place: %+v", s)
	}
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrBusy) {
		t.Errorf("one too many: %v", err)
	}
	if r := p.State().Children[0].Reason; !strings.HasPrefix(r, "busy with q") || !strings.Contains(r, " and 3 others") {
		t.Errorf("its reason is %q", r)
	}
	last[0].Cancel(nil)
	eventually(t, "a place is free", func() bool { return p.Stats().Ready == 1 })
	var streams sync.WaitGroup
	streams.Go(func() {
		q := submit(t, p, ask{Op: "count", N: 2000}.raw())
		n := 0
		for content, err := range q.Messages() {
			if err != nil || string(content) != fmt.Sprint(n) {
				t.Errorf("message %d is %s, %v", n, content, err)
				return
			}
			n++
		}
		if n != 2000 {
			t.Errorf("%d messages came", n)
		}
	})
	streams.Wait()
	for _, q := range first {
		q.Cancel(nil)
	}
	eventually(t, "all have ended", func() bool { return p.Stats().Open == 0 })
	if s := p.Stats(); s.Spawned != 1 || s.Crashed != 0 {
		t.Errorf("%+v", s)
	}
}

// A worker that starts takes as many waiting queries as it has places, without a queue.
func TestComingWorkerHasRoomForSeveralQueries(t *testing.T) {
	dir := t.TempDir()
	p := startPool(t, gatedMode("many:4", filepath.Join(dir, "open")), nil)
	do(t, p, ask{}.raw())
	if _, err := p.Evict("", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return len(p.State().Children) == 0 })
	var all []*procpool.Query
	for range 4 {
		all = append(all, submit(t, p, ask{}.raw()))
	}
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrBusy) {
		t.Errorf("one too many: %v", err)
	}
	open(t, dir)
	for i, q := range all {
		if _, err := q.Result(); err != nil {
			t.Errorf("query %d: %v", i, err)
		}
	}
}

func TestQueriesAreSpreadOverPlaces(t *testing.T) {
	p := start(t, "many:4", func(c *procpool.Config) { c.MinWorkers, c.MaxWorkers, c.MaxQueue, c.CancelGrace = 2, 2, 20, patience })
	eventually(t, "both are ready", func() bool { return p.Stats().Ready == 2 })
	on := map[string]int{}
	all := sleeps(t, p, 4)
	for _, q := range all {
		on[q.Worker()]++
	}
	if on["p/1"] != 2 || on["p/2"] != 2 {
		t.Errorf("four queries are on %v", on)
	}
	all = append(all, sleeps(t, p, 4)...)
	waiting := submit(t, p, ask{}.raw())
	all[0].Cancel(nil)
	if _, err := waiting.Result(); err != nil {
		t.Errorf("a query that waited for a place: %v", err)
	}
	for _, q := range all {
		q.Cancel(nil)
	}
}

func TestQueriesOfAKeyRunOneAfterTheOther(t *testing.T) {
	p := start(t, "many:4", func(c *procpool.Config) { c.MaxQueue, c.CancelGrace = 20, patience })
	a := sleeps(t, p, 1, procpool.Key("k"))[0]
	second := submit(t, p, ask{}.raw(), procpool.Key("k"))
	do(t, p, ask{}.raw(), procpool.Key("other"))
	do(t, p, ask{}.raw())
	if s := second.State(); s != procpool.QueryPending {
		t.Errorf("the second of the key is %s", s)
	}
	a.Cancel(nil)
	if _, err := second.Result(); err != nil {
		t.Error(err)
	}
}

// TestEachQueryOfADeadWorkerIsTriedAlone has poison among others in one worker.
func TestEachQueryOfADeadWorkerIsTriedAlone(t *testing.T) {
	p := start(t, "many:4", func(c *procpool.Config) { strict(c); c.MaxWorkers, c.Poison.Deaths = 1, 1 })
	do(t, p, ask{}.raw())
	dir := t.TempDir()
	var good []*procpool.Query
	for i := range 3 {
		good = append(good, submit(t, p, ask{Op: "wait", Path: filepath.Join(dir, "open"), Text: fmt.Sprint(i)}.raw(), procpool.Idempotent(), procpool.Caller("good")))
	}
	for _, q := range good {
		eventually(t, "a worker has it", func() bool { return q.State() == procpool.QueryProcessing })
	}
	bad := submit(t, p, poison(1).raw(), procpool.Idempotent(), procpool.Caller("bad"))
	eventually(t, "the worker has died of it", func() bool { return p.Stats().Retried == 4 })
	open(t, dir)
	var poisoned *procpool.PoisonError
	if _, err := bad.Result(); !errors.As(err, &poisoned) || poisoned.Deaths != 1 {
		t.Errorf("the poison: %v", err)
	}
	for i, q := range good {
		if got, err := q.Result(); err != nil || string(got) != `"waited"` {
			t.Errorf("%d: %s, %v", i, got, err)
		}
	}
	if list := p.Poisoned(); len(list) != 1 || list[0].Caller != "bad" {
		t.Errorf("the list is %+v", list)
	}
	do(t, p, ask{}.raw(), procpool.Caller("good"))
	if _, err := p.Do(within(t), ask{}.raw(), procpool.Caller("bad")); !errors.Is(err, procpool.ErrDeaths) {
		t.Errorf("the poisonous caller: %v", err)
	}
}

func TestFullWorkerIsReplacedWhenAllHaveAnswered(t *testing.T) {
	p := start(t, "many:3", func(c *procpool.Config) { c.MaxQueue, c.CancelGrace = 20, patience })
	var all []*procpool.Query
	var releases []func()
	for range 3 {
		q, release := waits(t, p)
		all = append(all, q)
		releases = append(releases, release)
	}
	if s := p.Stats(); s.Busy != 1 {
		t.Errorf("it is not full: %+v", s)
	}
	time.AfterFunc(300*time.Millisecond, func() { // most likely the reload waits for them by then
		for _, release := range releases {
			release()
		}
	})
	if got, err := p.Reload(within(t), nil); err != nil || got.Workers != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, q := range all {
		if got, err := q.Result(); err != nil || string(got) != `"waited"` {
			t.Errorf("%s, %v", got, err)
		}
	}
	evicted := sleeps(t, p, 2)
	if _, err := p.Evict("", false); !errors.Is(err, procpool.ErrNoWorker) {
		t.Errorf("a worker with queries is evicted: %v", err)
	}
	if _, err := p.Evict("", true); err != nil {
		t.Error(err)
	}
	for _, q := range evicted {
		if _, err := q.Result(); !errors.Is(err, procpool.ErrEvicted) {
			t.Error(err)
		}
	}
	do(t, p, ask{}.raw())
}

// TestNeighbourOfADeafQueryIsRepeated has a query that does not confirm its end beside one
// that may be repeated.
func TestNeighbourOfADeafQueryIsRepeated(t *testing.T) {
	p := start(t, "many:2", func(c *procpool.Config) { c.MaxQueue, c.CancelGrace = 20, 50*time.Millisecond })
	do(t, p, ask{}.raw())
	first := deaf(t, p)
	q, release := waits(t, p, procpool.Idempotent())
	first.Cancel(nil)
	eventually(t, "it is repeated", func() bool { return p.Stats().Retried == 1 })
	release()
	if got, err := q.Result(); err != nil || string(got) != `"waited"` {
		t.Errorf("%s, %v", got, err)
	}
	if len(p.Poisoned()) != 0 {
		t.Errorf("%+v", p.Poisoned())
	}
}

// TestWorkersInOtherLanguagesTakeSeveral has the examples take three queries at a time.
func TestWorkersInOtherLanguagesTakeSeveral(t *testing.T) {
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, func() *exec.Cmd {
				cmd := command()
				cmd.Args = append(cmd.Args, "3")
				return cmd
			}, func(c *procpool.Config) { c.MaxQueue, c.CancelGrace = 20, patience })
			do(t, p, ask{}.raw())
			all := sleeps(t, p, 2)
			for i := range 20 {
				if got := do(t, p, json.RawMessage(fmt.Sprint(i))); got != fmt.Sprint(i) {
					t.Errorf("%d is %s", i, got)
				}
			}
			last := submit(t, p, ask{Op: "sleep", Seconds: 0.2}.raw())
			if got, err := last.Result(); err != nil || string(got) != `"slept"` {
				t.Errorf("%s, %v", got, err)
			}
			all[0].Cancel(nil)
			all[1].Cancel(nil)
			eventually(t, "all have ended", func() bool { return p.Stats().Open == 0 })
			do(t, p, ask{}.raw())
			if s := p.Stats(); s.Spawned != 1 || s.Crashed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
