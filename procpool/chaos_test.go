//go:build unix

package procpool_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// TestChaos mixes good workers in three languages, workers that break the contract,
// callers that cancel or have short deadlines, queries of death, keys, reloads, and a
// goroutine that kills and stops processes, all at random. Where the machine allows
// cgroups, workers also take more memory than they may and start processes that leave
// their session. Every query ends in exactly one
// terminal state, and no process, socket, cgroup or goroutine remains. It takes two
// seconds; CHAOS_SECONDS=180 CHAOS_SEED=7 runs longer, with another seed.
func TestChaos(t *testing.T) {
	length := seconds(t, "CHAOS_SECONDS", 2*time.Second)
	seed := uint64(1)
	if text := os.Getenv("CHAOS_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("CHAOS_SEED is %q, want a number", text)
		}
		seed = n
	}
	t.Logf("CHAOS_SEED=%d", seed)
	dice := &dice{r: rand.New(rand.NewPCG(seed, seed))}

	var good []func() *exec.Cmd
	for _, command := range languages(t) {
		good = append(good, command)
	}
	t.Setenv("SAYS", `{"type":"ready","capabilities":["bytes"]}`)
	t.Setenv("LIES", `{"type":"message","requestId":"ID","content":1,"bytes":10}`+"\n123456789012")
	bad := []string{"lies", "garbage", "partial", "disconnect", "other-request", "unknown-types", "flood", "flood-unknown", "100MB", "cancel-late", "ready-twice",
		"garbage-first", "exit:chaos", "stall", "ignores-shutdown", "never-ready", "probe-first", "daemon"}
	dir := socketDir(t)
	command := func() *exec.Cmd {
		switch dice.n(10) {
		case 0, 1, 2:
			return good[dice.n(len(good))]()
		case 3, 4:
			return self(bad[dice.n(len(bad))])
		case 5, 6:
			return self("many:3")
		}
		return self("serve")
	}
	keyPerWorker := dice.n(2) == 0
	t.Logf("KeyPerWorker: %v", keyPerWorker)
	process, cgroup := contained(t, worker.Limits{Memory: 128 << 20, PIDs: 200, Files: 500})
	t.Logf("a cgroup for each worker: %v", cgroup)
	p, err := procpool.New(procpool.Config{
		Process: process, Name: "chaos", SocketDir: dir, Logger: quiet, MinWorkers: 2, MaxWorkers: 4, Surge: 2, MaxQueue: 20, MaxFrame: 1 << 20,
		Command: command, KeyPerWorker: keyPerWorker, FairShares: dice.n(2) == 0, StarveAfter: 50 * time.Millisecond,
		Poison:       procpool.Poison{For: time.Second, Window: 5 * time.Second},
		StartTimeout: 2 * time.Second, CancelGrace: 100 * time.Millisecond, ShutdownGrace: 200 * time.Millisecond, KillGrace: 100 * time.Millisecond,
		WriteTimeout: time.Second, HealthInterval: 100 * time.Millisecond, HealthTimeout: 200 * time.Millisecond, DrainTimeout: time.Second,
		Backoff: worker.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}, BreakAfter: 10,
		Recycle: procpool.Recycle{MaxQueries: 50, MaxAge: time.Second, MaxIdle: 500 * time.Millisecond, Every: 20 * time.Millisecond, AtOnce: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	var seen struct {
		sync.Mutex
		ended map[string]int
		pids  map[int]bool
		gaps  int
	}
	seen.ended, seen.pids = map[string]int{}, map[int]bool{}
	terminal := procpool.QueryTransitions()
	stop := p.Events().Listen(1_000_000, func(e fsm.Event) {
		seen.Lock()
		defer seen.Unlock()
		switch {
		case e.IsGap():
			seen.gaps++
		case e.Kind == procpool.KindQuery && terminal.IsTerminal(procpool.QueryState(e.To)):
			seen.ended[e.Name]++
		}
	})
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all sync.WaitGroup
	var reloads atomic.Int64
	all.Go(func() {
		defer cancel()
		over, late := time.After(length), time.After(length+patience)
		for s := p.Stats(); ; s = p.Stats() {
			select {
			case <-over:
				over = nil
			case <-late:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if over == nil && s.Complete > 0 && s.Crashed > 0 { // a busy machine takes longer
				return
			}
		}
	})
	for range 8 {
		all.Go(func() {
			for ctx.Err() == nil {
				chaoticQuery(t, p, dice, cgroup)
			}
		})
	}
	all.Go(func() { // reloads
		for ctx.Err() == nil {
			time.Sleep(time.Duration(dice.n(300)) * time.Millisecond)
			within, done := context.WithTimeout(ctx, time.Duration(dice.n(1000)+1)*time.Millisecond)
			fresh := command
			if dice.n(2) == 0 {
				fresh = nil
			}
			if _, err := p.Reload(within, fresh); err == nil {
				reloads.Add(1)
			}
			done()
		}
	})
	all.Go(func() { // kills and stops processes
		for ctx.Err() == nil {
			if dice.n(100) == 0 { // time for a worker to run out of memory
				time.Sleep(300 * time.Millisecond)
			}
			time.Sleep(time.Duration(dice.n(20)) * time.Millisecond) // adds randomness; the test does not depend on it
			workers := p.State().Children
			if len(workers) == 0 {
				continue
			}
			pid := workers[dice.n(len(workers))].PID
			if pid == 0 {
				continue
			}
			seen.Lock()
			seen.pids[pid] = true
			seen.Unlock()
			_ = syscall.Kill(pid, []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGCONT}[dice.n(4)])
		}
	})
	all.Wait()
	last := submit(t, p, ask{Op: "deaf", Seconds: 3600}.raw())
	within, done := context.WithTimeout(context.Background(), patience)
	defer done()
	if err := p.Stop(within); err != nil {
		t.Errorf("stop: %v", err)
	}
	stop()
	<-last.Done()
	s := p.Stats()
	if s.Open != 0 || s.Submitted != s.Complete+s.Failed+s.Cancelled+s.Rejected || s.Starting+s.Ready+s.Busy+s.ShuttingDown != 0 || s.State != procpool.PoolIdle {
		t.Errorf("not everything has ended: %+v", s)
	}
	seen.Lock()
	defer seen.Unlock()
	if seen.gaps == 0 && uint64(len(seen.ended)) != s.Submitted {
		t.Errorf("%d have ended by the events, and %d were submitted", len(seen.ended), s.Submitted)
	}
	for name, n := range seen.ended {
		if n != 1 {
			t.Errorf("%s has ended %d times", name, n)
		}
	}
	for _, pid := range processesOf(dir) { // a pid alone may be another process by now
		if n, _ := strconv.Atoi(pid); seen.pids[n] {
			t.Errorf("process %d is left", n)
		}
	}
	// This includes processes outside of the group: the pool refused their connection.
	eventually(t, "no process of any worker is left", func() bool { return len(processesOf(dir)) == 0 })
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("sockets are left: %v", left)
	}
	t.Logf("%d reloads, %+v", reloads.Load(), s)
	if s.Complete == 0 || s.Crashed == 0 {
		t.Error("too little happened in this test")
	}
}

// chaoticQuery makes one query and checks how it ends.
func chaoticQuery(t *testing.T, p *procpool.Pool, dice *dice, cgroup bool) {
	asks := []ask{{}, {}, {Op: "count", N: dice.n(200), Size: dice.n(2000)}, {Op: "sleep", Seconds: 0.01}, {Op: "deaf", Seconds: 0.2}, {Op: "fail", Text: "x"}, {Op: "exit", N: 3}, {Op: "exit", N: 3, Text: strconv.Itoa(dice.n(1_000_000))}, {Op: "big", Size: 2 << 20}, {Op: "fork"}, {Op: "parts", N: dice.n(50), Size: dice.n(50_000)}}
	var opts []procpool.Option
	if dice.n(3) == 0 {
		opts = append(opts, procpool.Key(strconv.Itoa(dice.n(5))))
	}
	if dice.n(2) == 0 {
		opts = append(opts, procpool.Caller(strconv.Itoa(dice.n(5))))
	}
	if dice.n(10) == 0 {
		opts = append(opts, procpool.Fingerprint(strconv.Itoa(dice.n(5))))
	}
	if dice.n(2) == 0 {
		opts = append(opts, procpool.Idempotent())
	}
	if dice.n(4) == 0 {
		opts = append(opts, procpool.Bytes(make([]byte, dice.n(100_000))))
	}
	chosen := asks[dice.n(len(asks))]
	if cgroup && dice.n(20) == 0 {
		chosen = []ask{{Op: "escape"}, {Op: "leak", Size: 512 << 20, N: dice.n(1_000_000)}}[dice.n(2)]
	}
	opts = append(opts, procpool.Timeout(time.Duration(dice.n(300)+1)*time.Millisecond))
	if chosen.Op == "leak" { // it takes a while
		opts = append(opts, procpool.Timeout(10*time.Second))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q, err := p.Submit(ctx, chosen.raw(), opts...)
	if err != nil {
		t.Errorf("submit: %v", err)
		return
	}
	switch dice.n(6) {
	case 0:
		q.Cancel(nil)
	case 1:
		cancel()
	case 2:
		for range q.Messages() {
			if dice.n(50) == 0 {
				break
			}
		}
	case 3:
		if dice.n(20) == 0 {
			_, _ = p.Evict("", dice.n(2) == 0)
		}
	}
	end := time.NewTimer(patience)
	defer end.Stop()
	select {
	case <-q.Done():
	case <-end.C:
		t.Errorf("%s does not end: it is %s", q.ID(), q.State())
		return
	}
	if result, err := q.Result(); (err == nil) != (q.State() == procpool.QueryComplete) || (err == nil) == (result == nil) {
		t.Errorf("%s: %s, %v, %s", q.ID(), result, err, q.State())
	}
	if q.State() == procpool.QueryRejected {
		time.Sleep(time.Millisecond) // as a caller would
	}
}

// processesOf returns every process whose environment names a socket in the folder.
func processesOf(dir string) (pids []string) {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range environs {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte(wire.EnvSocket+"="+dir+"/")) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// dice is a random source for many goroutines.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}
