//go:build unix

package procpool_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// warm gives n workers a query at the same time, so that all are started.
func warm(t *testing.T, p *procpool.Pool, n int) {
	t.Helper()
	var all []*procpool.Query
	for range n {
		all = append(all, submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw()))
	}
	eventually(t, "all are busy", func() bool { return p.Stats().Busy == n })
	for _, q := range all {
		q.Cancel(nil)
	}
	eventually(t, "all are ready", func() bool { return p.Stats().Ready == n })
}

func TestEvictionStrategies(t *testing.T) {
	for _, c := range []struct {
		strategy procpool.Eviction
		want     string
	}{
		{procpool.LRU, "p/2"},       // used longest ago
		{procpool.Oldest, "p/1"},    // spawned first
		{procpool.LeastUsed, "p/3"}, // one query fewer
		{"", "p/3"},                 // the pool's own
	} {
		t.Run(string(c.strategy), func(t *testing.T) {
			p := start(t, "serve", func(cfg *procpool.Config) { cfg.MaxWorkers, cfg.Eviction = 3, procpool.LeastUsed })
			on := map[string]procpool.Option{} // a key for each worker
			var all []*procpool.Query
			for _, name := range []string{"a", "b", "c"} {
				q := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Key(name))
				eventually(t, "it has a worker", func() bool { return q.Worker() != "" })
				on[q.Worker()] = procpool.Key(name)
				all = append(all, q)
			}
			if _, err := p.Evict(c.strategy, false); !errors.Is(err, procpool.ErrNoWorker) {
				t.Errorf("all workers are busy, and Evict returns %v", err)
			}
			for _, q := range all {
				q.Cancel(nil)
			}
			eventually(t, "all are ready", func() bool { return p.Stats().Ready == 3 })
			for _, w := range []string{"p/2", "p/2", "p/3", "p/1", "p/1"} { // queries: 2 on p/1, 2 on p/2, 1 on p/3
				do(t, p, ask{}.raw(), on[w])
				time.Sleep(time.Millisecond) // makes all times differ
			}
			name, err := p.Evict(c.strategy, false)
			if err != nil || name != c.want {
				t.Errorf("evicted is %q, %v, want %s", name, err, c.want)
			}
		})
	}
	p := start(t, "serve", nil)
	if _, err := p.Evict("mru", false); err == nil || !strings.Contains(err.Error(), `"mru"`) {
		t.Errorf("got %v", err)
	}
}

func TestBusyWorkerIsEvictedOnlyWhenTheCallerSaysSo(t *testing.T) {
	p := start(t, "serve", nil)
	q := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw())
	eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
	if _, err := p.Evict("", false); !errors.Is(err, procpool.ErrNoWorker) {
		t.Errorf("got %v", err)
	}
	if name, err := p.Evict("", true); name != "p/1" || err != nil {
		t.Errorf("got %q, %v", name, err)
	}
	if _, err := q.Result(); !errors.Is(err, procpool.ErrEvicted) {
		t.Errorf("its query got %v", err)
	}
}

func TestKeysStickToTheirWorkerWhileItLives(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxWorkers, c.MaxQueue = 3, 10 })
	warm(t, p, 3)
	pids := map[string]string{}
	for range 5 {
		for _, key := range []string{"a", "b", "c"} {
			pid := do(t, p, ask{Op: "pid"}.raw(), procpool.Key(key))
			if pids[key] != "" && pids[key] != pid {
				t.Errorf("%s went to %s, and before to %s", key, pid, pids[key])
			}
			pids[key] = pid
		}
	}
	// A query waits for the busy worker of its key, though others are free.
	block := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Key("a"))
	eventually(t, "it is busy", func() bool { return block.State() == procpool.QueryProcessing })
	waiting := submit(t, p, ask{Op: "pid"}.raw(), procpool.Key("a"))
	do(t, p, ask{}.raw())
	if waiting.State() != procpool.QueryPending {
		t.Errorf("the second of the key is %s", waiting.State())
	}
	// When that worker dies, their session is lost, and a later query begins another.
	pid, _ := strconv.Atoi(pids["a"])
	kill(t, pid)
	for name, q := range map[string]*procpool.Query{"running": block, "waiting": waiting} {
		var lost *procpool.SessionLostError
		if _, err := q.Result(); !errors.As(err, &lost) || lost.Key != "a" || !errors.Is(err, procpool.ErrSessionLost) {
			t.Errorf("the %s one got %v", name, err)
		}
	}
	if got := do(t, p, ask{Op: "pid"}.raw(), procpool.Key("a")); got == pids["a"] {
		t.Errorf("got %s", got)
	}
}

func TestKeyPerWorkerKeepsKeysApartAndEvicts(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxWorkers, c.KeyPerWorker, c.Eviction = 2, true, procpool.LRU })
	events := p.Events().Subscribe(10_000)
	defer events.Close()
	a := do(t, p, ask{Op: "pid"}.raw(), procpool.Key("a"))
	b := do(t, p, ask{Op: "pid"}.raw(), procpool.Key("b"))
	if a == b || do(t, p, ask{Op: "pid"}.raw(), procpool.Key("a")) != a {
		t.Errorf("a and b are on %s and %s", a, b)
	}
	c := do(t, p, ask{Op: "pid"}.raw(), procpool.Key("c")) // b is the least recently used
	if c == a || c == b || p.Stats().Evicted != 1 {
		t.Errorf("c is on %s, %+v", c, p.Stats())
	}
	if do(t, p, ask{Op: "pid"}.raw(), procpool.Key("a")) != a {
		t.Error("a was evicted")
	}
	x := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Key("a"))
	y := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw(), procpool.Key("c"))
	eventually(t, "both are busy", func() bool { return p.Stats().Busy == 2 })
	if _, err := p.Do(within(t), ask{}.raw(), procpool.Key("d")); !errors.Is(err, procpool.ErrBusy) {
		t.Errorf("d: %v", err)
	}
	if _, err := p.Evict("", true); err != nil {
		t.Fatal(err)
	}
	do(t, p, ask{}.raw(), procpool.Key("d"))
	if _, err := x.Result(); !errors.Is(err, procpool.ErrEvicted) {
		t.Errorf("a's query: %v", err)
	}
	y.Cancel(nil)
	replaced := false
	for {
		e, err := events.Next(canceled())
		if err != nil {
			break
		}
		replaced = replaced || e.Kind == procpool.KindPool && e.From == string(procpool.PoolAtCapacity) && e.To == e.From
	}
	if !replaced {
		t.Error("no event says that a worker was replaced at capacity")
	}
}

func TestRecycling(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit procpool.Recycle
		use   ask
		n     int
		want  string
	}{
		{"queries", procpool.Recycle{MaxQueries: 3}, ask{}, 3, "has served"},
		{"age", procpool.Recycle{MaxAge: 50 * time.Millisecond}, ask{}, 1, "old"},
		{"idle", procpool.Recycle{MaxIdle: 50 * time.Millisecond}, ask{}, 1, "idle"},
		{"memory", procpool.Recycle{MaxRSS: 200 << 20}, ask{Op: "leak", Size: 64 << 20}, 5, "of memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.limit.MaxRSS > 0 && !isLinux() {
				t.Skip("memory is known on Linux only")
			}
			p := start(t, "serve", func(cfg *procpool.Config) {
				cfg.Recycle, cfg.MaxQueue = c.limit, 1
				cfg.Recycle.Every = 5 * time.Millisecond
			})
			why := make(chan string, 100)
			stop := p.Events().Listen(1000, func(e fsm.Event) {
				if e.Kind == procpool.KindWorker && e.To == string(procpool.WorkerShuttingDown) && errors.Is(e.Cause, procpool.ErrRecycled) {
					why <- e.Cause.Error()
				}
			})
			defer stop()
			for range c.n {
				do(t, p, c.use.raw())
			}
			select {
			case got := <-why:
				if !strings.Contains(got, c.want) {
					t.Errorf("it was recycled because %s", got)
				}
			case <-time.After(patience):
				t.Fatal("it was not recycled")
			}
			do(t, p, ask{}.raw()) // another worker takes its place
			if s := p.Stats(); s.Crashed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestRecyclingKeepsToAtOnce(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) {
		c.MinWorkers, c.MaxWorkers, c.MaxQueue = 4, 4, 100
		c.Recycle = procpool.Recycle{MaxQueries: 2, AtOnce: 1, Every: time.Millisecond}
	})
	eventually(t, "all are ready", func() bool { return p.Stats().Ready == 4 })
	leaving, most := map[string]bool{}, 0
	stop := p.Events().Listen(100_000, func(e fsm.Event) {
		if e.Kind != procpool.KindWorker {
			return
		}
		switch e.To {
		case string(procpool.WorkerShuttingDown):
			leaving[e.Name] = true
		case string(procpool.WorkerDead):
			delete(leaving, e.Name)
		}
		most = max(most, len(leaving))
	})
	for p.Stats().Recycled < 6 {
		var all []*procpool.Query
		for range 8 {
			all = append(all, submit(t, p, ask{}.raw()))
		}
		for _, q := range all {
			if _, err := q.Result(); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	if most != 1 {
		t.Errorf("%d workers were shutting down at once", most)
	}
}

func TestStateShowsTheWorkers(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.Name = "a pool/with a name" })
	q := submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw())
	eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
	s := p.State()
	if s.Kind != "procpool" || s.Status != worker.StatusRunning || len(s.Children) != 1 {
		t.Fatalf("%+v", s)
	}
	if c := s.Children[0]; c.PID == 0 || c.Status != worker.StatusRunning || !strings.HasPrefix(c.Reason, "busy with "+q.ID()) {
		t.Errorf("%+v", c)
	}
	q.Cancel(nil)
}

// TestWorkersInOtherLanguages sends the same queries to the examples in Go, Python and Node.
func TestWorkersInOtherLanguages(t *testing.T) {
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, func(c *procpool.Config) { c.MaxQueue = 1; c.CancelGrace = 20 * time.Second })
			if got := do(t, p, []byte(`["é\u0000\n", {"a": [1.5, null]}]`)); !slices.Contains([]string{`["é\u0000\n",{"a":[1.5,null]}]`, `["é\u0000\n", {"a": [1.5, null]}]`, `["\u00e9\u0000\n",{"a":[1.5,null]}]`}, got) {
				t.Errorf("echo is %s", got)
			}
			q := submit(t, p, ask{Op: "count", N: 2000}.raw())
			n := 0
			for content, err := range q.Messages() {
				if err != nil || string(content) != strconv.Itoa(n) {
					t.Fatalf("message %d: %s, %v", n, content, err)
				}
				n++
			}
			if n != 2000 || q.Session() != "session of "+q.ID() {
				t.Errorf("%d messages, session %q", n, q.Session())
			}
			var failed *procpool.WorkerError
			if _, err := p.Do(within(t), ask{Op: "fail", Text: "ouch"}.raw()); !errors.As(err, &failed) || !strings.Contains(failed.Message, "failed: ouch") {
				t.Errorf("got %v", err)
			}
			q = submit(t, p, ask{Op: "sleep", Seconds: 3600}.raw())
			eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
			q.Cancel(nil)
			pid := do(t, p, ask{Op: "pid"}.raw())
			if s := p.Stats(); s.Spawned != 1 || s.Crashed != 0 {
				t.Errorf("%+v", s)
			}
			var crash *procpool.CrashError
			if _, err := p.Do(within(t), ask{Op: "exit", N: 5}.raw()); !errors.As(err, &crash) || crash.ExitCode != 5 || !strings.Contains(crash.Stderr, "about to exit") {
				t.Errorf("got %v", err)
			}
			if again := do(t, p, ask{Op: "pid"}.raw()); again == pid {
				t.Error("the same process answers")
			}
		})
	}
}

// languages returns the example workers that this machine can run.
func languages(t testing.TB) map[string]func() *exec.Cmd {
	t.Helper()
	example := filepath.Join(t.TempDir(), "example")
	if out, err := exec.Command("go", "build", "-o", example, "./child/example").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	commands := map[string]func() *exec.Cmd{"go": func() *exec.Cmd { return exec.Command(example) }}
	for name, args := range map[string][]string{
		"python": {"python3", "sdk/python/example.py"},
		"node":   {"node", "sdk/node/example.mjs"},
		"ruby":   {"ruby", "sdk/ruby/example.rb"},
	} {
		if _, err := exec.LookPath(args[0]); err != nil {
			t.Logf("%s is not on this machine, and its worker is not tested: %v", name, err)
			continue
		}
		commands[name] = func() *exec.Cmd { return exec.Command(args[0], args[1:]...) }
	}
	return commands
}
