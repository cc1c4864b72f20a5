//go:build unix

package procpool_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/procpool"
)

// gated is a command whose first worker starts at once; the others wait for the file.
func gated(gate string) func() *exec.Cmd { return gatedMode("serve", gate) }

func gatedMode(mode, gate string) func() *exec.Cmd {
	n := 0
	return func() *exec.Cmd {
		if n++; n == 1 {
			return self(mode)
		}
		return self("gated:" + gate + ":" + mode)
	}
}

// census watches how many workers there are at most.
func census(p *procpool.Pool) (most func() int) {
	var mu sync.Mutex
	alive, high := map[string]bool{}, 0
	stop := p.Events().Listen(100_000, func(e fsm.Event) {
		if e.Kind != procpool.KindWorker && e.Kind != procpool.KindConnection {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if alive[e.Name] = e.To != string(procpool.WorkerDead); !alive[e.Name] || e.To == string(procpool.ConnDisconnected) {
			delete(alive, e.Name)
		}
		high = max(high, len(alive))
	})
	return func() int {
		stop()
		mu.Lock()
		defer mu.Unlock()
		return high
	}
}

// TestSuccessorIsReadyBeforeAWorkerIsRecycled holds the successor back: the old worker
// goes on serving.
func TestSuccessorIsReadyBeforeAWorkerIsRecycled(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	p := startPool(t, gated(gate), func(c *procpool.Config) { c.MaxQueue, c.Recycle = 1, procpool.Recycle{MaxQueries: 3, AtOnce: 1} })
	most := census(p)
	old := do(t, p, ask{Op: "pid"}.raw())
	for range 20 {
		if pid := do(t, p, ask{Op: "pid"}.raw(), procpool.Timeout(10*time.Second)); pid != old {
			t.Fatalf("process %s answers, and %s has no successor yet", pid, old)
		}
	}
	eventually(t, "the successor starts", func() bool { return p.Stats().Spawned == 2 })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the successor answers", func() bool { return do(t, p, ask{Op: "pid"}.raw()) != old })
	if n := most(); n > 2 {
		t.Errorf("there were %d workers, want 1 and a successor", n)
	}
}

func TestSuccessorThatDoesNotStartCostsNothing(t *testing.T) {
	n := 0
	p := startPool(t, func() *exec.Cmd {
		if n++; n > 1 {
			return self("exit:disk")
		}
		return self("serve")
	}, func(c *procpool.Config) {
		c.MaxQueue, c.Recycle.MaxQueries, c.BreakAfter, c.Backoff.Min, c.Backoff.Max = 1, 3, 2, time.Millisecond, time.Millisecond
	})
	for p.Stats().Failures < 5 {
		do(t, p, ask{}.raw())
	}
	if s := p.Stats(); s.Failed+s.Rejected > 0 {
		t.Errorf("%+v", s)
	}
}

// A worker that is due for its successor while starts fail stays when a reload fails too. When
// the program is repaired, it is replaced.
func TestAWorkerIsRecycledAfterAReloadThatFailed(t *testing.T) {
	var broken atomic.Bool
	p := startPool(t, func() *exec.Cmd {
		if broken.Load() {
			return self("exit:disk")
		}
		return self("serve")
	}, func(c *procpool.Config) {
		c.MaxQueue = 1
		c.Recycle = procpool.Recycle{MaxQueries: 3, Jitter: procpool.Off, Every: time.Millisecond}
		c.Backoff.Min, c.Backoff.Max, c.BreakAfter = 200*time.Millisecond, 200*time.Millisecond, procpool.Off
	})
	first := do(t, p, ask{Op: "pid"}.raw())
	broken.Store(true)
	for p.Stats().Failures == 0 {
		do(t, p, ask{}.raw())
	}
	if _, err := p.Reload(within(t), nil); err == nil {
		t.Error("the reload did not fail")
	}
	broken.Store(false)
	eventually(t, "the worker is replaced", func() bool { return do(t, p, ask{Op: "pid"}.raw()) != first })
}

func TestSurgeIsALimit(t *testing.T) {
	for surge, want := range map[int]int{procpool.Off: 3, 1: 4, 2: 5} {
		t.Run(strconv.Itoa(surge), func(t *testing.T) {
			p := start(t, "serve", func(c *procpool.Config) {
				c.MinWorkers, c.MaxWorkers, c.MaxQueue, c.Surge = 3, 3, 100, surge
				c.Recycle = procpool.Recycle{MaxQueries: 5, AtOnce: 3, Every: time.Millisecond}
			})
			most := census(p)
			for p.Stats().Recycled < 9 {
				var all []*procpool.Query
				for range 10 {
					all = append(all, submit(t, p, ask{}.raw()))
				}
				for _, q := range all {
					if _, err := q.Result(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n := most(); n > want {
				t.Errorf("there were %d workers, want %d at most", n, want)
			}
		})
	}
}

// load has callers that make queries until the test stops them. None may fail.
func load(t *testing.T, p *procpool.Pool, callers int) (stop func()) {
	var all sync.WaitGroup
	over := make(chan struct{})
	for range callers {
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if _, err := p.Do(within(t), ask{Op: "sleep", Seconds: 0.01}.raw()); err != nil {
					t.Errorf("a query failed: %v", err)
					return
				}
			}
		})
	}
	return func() {
		close(over)
		all.Wait()
	}
}

// version is a command whose workers know their version.
func version(v string) func() *exec.Cmd {
	return func() *exec.Cmd {
		cmd := self("serve")
		cmd.Env = append(cmd.Env, "CODE="+v)
		return cmd
	}
}

func four(c *procpool.Config) { c.MinWorkers, c.MaxWorkers, c.MaxQueue = 4, 4, 100 }

func TestReloadReplacesAllWorkersUnderLoad(t *testing.T) {
	p := startPool(t, version("1"), four)
	most := census(p)
	eventually(t, "all are ready", func() bool { return p.Stats().Ready == 4 })
	do(t, p, ask{}.raw(), procpool.Key("b"))
	do(t, p, ask{}.raw(), procpool.Key("a"))
	stop := load(t, p, 4)
	got, err := p.Reload(within(t), version("2"))
	stop()
	if err != nil || got.Workers != 4 || len(got.Keys) != 2 || got.Keys[0] != "a" || got.Keys[1] != "b" {
		t.Errorf("got %+v, %v", got, err)
	}
	for range 20 {
		if code := do(t, p, ask{Op: "env", Text: "CODE"}.raw()); code != `"2"` {
			t.Errorf("a worker has version %s", code)
		}
	}
	if s := p.Stats(); s.Spawned != 8 || s.Crashed != 0 || s.Failed+s.Rejected != 0 {
		t.Errorf("%+v", s)
	}
	if n := most(); n > 5 {
		t.Errorf("there were %d workers, want 4 and one more", n)
	}
	if got, err = p.Reload(within(t), nil); err != nil || got.Workers != 4 || len(got.Keys) != 0 || p.Stats().Spawned != 12 {
		t.Errorf("without a new command: %+v, %v", got, err)
	}
	if code := do(t, p, ask{Op: "env", Text: "CODE"}.raw()); code != `"2"` {
		t.Errorf("without a new command the version is %s", code)
	}
}

func TestReloadWaitsForRunningQueries(t *testing.T) {
	p := startPool(t, version("1"), func(c *procpool.Config) { c.MaxQueue = 1 })
	q, release := waits(t, p)
	time.AfterFunc(300*time.Millisecond, release) // most likely the reload waits for it by then
	if got, err := p.Reload(within(t), version("2")); err != nil || got.Workers != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := q.Result(); err != nil || string(got) != `"waited"` {
		t.Errorf("%s, %v", got, err)
	}
}

// TestReloadKeepsTheOrderOfAKey has one query of a key with a worker that a reload replaces, and
// another that waits for it.
func TestReloadKeepsTheOrderOfAKey(t *testing.T) {
	p := startPool(t, func() *exec.Cmd { return self("many:4") }, func(c *procpool.Config) { c.MaxQueue, c.CancelGrace = 10, patience })
	first, release := waits(t, p, procpool.Key("k"))
	other, releaseOther := waits(t, p)
	second := submit(t, p, ask{}.raw(), procpool.Key("k"))
	reloaded := make(chan error, 1)
	go func() {
		_, err := p.Reload(within(t), nil)
		reloaded <- err
	}()
	eventually(t, "the new worker serves", func() bool {
		q := submit(t, p, ask{}.raw())
		_, err := q.Result()
		return err == nil && q.Worker() != first.Worker()
	})
	third := submit(t, p, ask{}.raw(), procpool.Key("k"))
	do(t, p, ask{}.raw())
	for _, q := range []*procpool.Query{second, third} {
		if s := q.State(); s != procpool.QueryPending {
			t.Errorf("%s of the key is %s beside the first", q.ID(), s)
		}
	}
	release()
	for _, q := range []*procpool.Query{first, second, third} { // the old worker still has the other query
		if _, err := q.Result(); err != nil {
			t.Error(err)
		}
	}
	if s := other.State(); s != procpool.QueryProcessing {
		t.Errorf("the other query is %s", s)
	}
	releaseOther()
	if err := <-reloaded; err != nil {
		t.Error(err)
	}
}

func TestReloadOfAnIdlePoolTriesTheNewCode(t *testing.T) {
	p := startPool(t, version("1"), nil)
	if got, err := p.Reload(within(t), func() *exec.Cmd { return self("exit:broken") }); err == nil {
		t.Errorf("broken code: %+v", got)
	}
	if code := do(t, p, ask{Op: "env", Text: "CODE"}.raw()); code != `"1"` {
		t.Errorf("the version is %s", code)
	}
	if _, err := p.Reload(within(t), version("2")); err != nil {
		t.Error(err)
	}
	if code := do(t, p, ask{Op: "env", Text: "CODE"}.raw()); code != `"2"` {
		t.Errorf("the version is %s", code)
	}
}

// TestReloadGoesBack has new workers that do not become ready: none, or one of the
// later ones.
func TestReloadGoesBack(t *testing.T) {
	for name, bad := range map[string]func(n int) *exec.Cmd{
		"none starts":  func(int) *exec.Cmd { return self("exit:broken") },
		"none answers": func(int) *exec.Cmd { return self("no-health") },
		"the third does not": func(n int) *exec.Cmd {
			return map[bool]*exec.Cmd{true: self("exit:broken"), false: version("2")()}[n >= 3]
		},
		"there is no such thing": func(int) *exec.Cmd { return exec.Command("/nowhere/worker") },
	} {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, version("1"), func(c *procpool.Config) {
				four(c)
				c.BreakAfter, c.HealthTimeout, c.Backoff.Min, c.Backoff.Max = 1, 5*time.Second, time.Hour, time.Hour
			})
			eventually(t, "all are ready", func() bool { return p.Stats().Ready == 4 })
			stop := load(t, p, 4)
			n := 0
			got, err := p.Reload(within(t), func() *exec.Cmd { n++; return bad(n) })
			if err == nil {
				t.Errorf("it was reloaded: %+v", got)
			}
			for range 20 {
				if code := do(t, p, ask{Op: "env", Text: "CODE"}.raw()); code != `"1"` {
					t.Errorf("a worker has version %s", code)
				}
			}
			stop()
			if s := p.Stats(); s.Failures != 0 || s.Failed+s.Rejected != 0 {
				t.Errorf("%+v", s)
			}
			if _, err := p.Reload(within(t), version("3")); err != nil {
				t.Errorf("a later reload: %v", err)
			}
			if code := do(t, p, ask{Op: "env", Text: "CODE"}.raw()); code != `"3"` {
				t.Errorf("a later reload: a worker has version %s", code)
			}
		})
	}
}

func TestReloadsAreOneAtATimeAndEndWithThePool(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	p := startPool(t, version("1"), func(c *procpool.Config) { c.MinWorkers = 1 })
	eventually(t, "it is ready", func() bool { return p.Stats().Ready == 1 })
	first := make(chan error, 1)
	go func() {
		_, err := p.Reload(within(t), func() *exec.Cmd { return self("gated:" + gate) })
		first <- err
	}()
	eventually(t, "the first has begun", func() bool { return p.Stats().Spawned == 2 })
	if _, err := p.Reload(within(t), nil); !errors.Is(err, procpool.ErrReloading) {
		t.Errorf("a second reload: %v", err)
	}
	if err := p.Stop(within(t)); err != nil {
		t.Error(err)
	}
	if err := <-first; !errors.Is(err, procpool.ErrDraining) {
		t.Errorf("the first reload: %v", err)
	}
	if _, err := p.Reload(within(t), nil); !errors.Is(err, procpool.ErrDraining) {
		t.Errorf("a reload of a pool that has ended: %v", err)
	}
}

// A query of a new key waits for the new worker of a reload. When that worker does not become
// ready, or the reload is given up, an idle worker takes the query.
func TestReloadThatFailsLeavesNoQueryWaiting(t *testing.T) {
	for name, giveUp := range map[string]bool{"fails": false, "is given up": true} {
		t.Run(name, func(t *testing.T) {
			gate := filepath.Join(t.TempDir(), "gate")
			p := startPool(t, version("1"), func(c *procpool.Config) { c.MaxQueue = 1 })
			do(t, p, ask{}.raw(), procpool.Key("a"))
			ctx, cancel := context.WithCancel(within(t))
			ended := make(chan error, 1)
			go func() {
				_, err := p.Reload(ctx, func() *exec.Cmd { return self("gated:" + gate + ":exit:broken") })
				ended <- err
			}()
			eventually(t, "the new worker starts", func() bool { return p.Stats().Spawned == 2 })
			q := submit(t, p, ask{}.raw(), procpool.Key("b"))
			if giveUp {
				cancel()
			} else if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err == nil {
				t.Error("it was reloaded")
			}
			cancel()
			if _, err := q.Result(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A worker of a reload that was given up may end badly during the next one, which goes on.
func TestReloadIsNotBlamedForTheOneBefore(t *testing.T) {
	p := startPool(t, version("1"), func(c *procpool.Config) { c.Surge = 2 })
	do(t, p, ask{}.raw())
	asked, release := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	reload := func(ctx context.Context, command func() *exec.Cmd) {
		_, err := p.Reload(ctx, command)
		ended <- err
	}
	go reload(ctx, func() *exec.Cmd {
		close(asked)
		<-release
		return exec.Command("/no/such/program")
	})
	<-asked
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	go reload(within(t), version("2"))
	eventually(t, "the second has started a worker", func() bool { return p.Stats().Spawned == 3 })
	close(release)
	if err := <-ended; err != nil {
		t.Errorf("the second: %v", err)
	}
	if code := do(t, p, ask{Op: "env", Text: "CODE"}.raw()); code != `"2"` {
		t.Errorf("the version is %s", code)
	}
}
