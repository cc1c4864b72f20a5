package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// The programs of the chaos. Each takes the lock of its name for as long as one of
// its processes runs, and complains when another instance has it.
var programs = []string{
	"exit $((RANDOM_CODE % 3))",
	"sleep 0.0$RANDOM_CODE; exit $((RANDOM_CODE % 3))",
	"sleep 3600",
	"trap '' TERM; sleep 3600",
	"sleep 3600 & sleep 3600 & wait",
	"trap 'exit 0' TERM; while :; do sleep 0.01; done",
	"setsid sleep 3600 & exit 1", // from here on they need a cgroup
	"setsid sh -c \"trap '' TERM; while :; do sleep 1; done\" & sleep 3600",
	"(setsid sleep 3600 &) ; setsid setsid sleep 3600 & exit 0",
}

const needCgroup = 6

// TestRandomProcesses does random operations on trees of real programs, with
// limits and in cgroups where the machine allows that. CHAOS_PROCESSES sets their
// number, CHAOS_SEED the seed of the first tree.
func TestRandomProcesses(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("this machine has no flock(1)")
	}
	steps, seed := 300, uint64(1)
	if n, err := strconv.Atoi(os.Getenv("CHAOS_PROCESSES")); err == nil {
		steps = n
	}
	if n, err := strconv.ParseUint(os.Getenv("CHAOS_SEED"), 10, 64); err == nil {
		seed = n
	}
	const each = 100
	files := -1
	for ; steps > 0 && !t.Failed(); steps -= each {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newProcessChaos(t, seed)
			for range each {
				c.step()
			}
			c.end()
		})
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		if files >= 0 && len(entries) > files+10 { // the poller and the reader of /proc/self/fd have some, too
			t.Errorf("%d files are open, there were %d", len(entries), files)
		}
		files = max(files, len(entries))
		seed++
	}
}

type processChaos struct {
	t       *testing.T
	rand    *rand.Rand
	dir     string
	mark    string     // in the environment of every process
	cgroups [][]string // that a process may have
	tree    *worker.Supervisor
	calls   sync.WaitGroup
}

func newProcessChaos(t *testing.T, seed uint64) *processChaos {
	c := &processChaos{t: t, rand: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), mark: fmt.Sprintf("CHAOS_MARK=%d-%d", os.Getpid(), seed)}
	for _, name := range slices.Sorted(maps.Keys(mixtures)) {
		if parents, err := delegate(t, mixtures[name]...); err == nil {
			c.cgroups = append(c.cgroups, parents)
		}
	}
	strategies := []worker.Strategy{worker.OneForOne, worker.OneForAll, worker.RestForOne}
	cfg := worker.SupervisorConfig{
		Strategy: strategies[c.rand.IntN(3)],
		Backoff:  worker.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond, MaxRestarts: []int{20, worker.NoLimit, worker.NoLimit}[c.rand.IntN(3)], Window: time.Second},
	}
	for i := range c.rand.IntN(4) {
		cfg.Children = append(cfg.Children, c.spec(fmt.Sprint("c", i)))
	}
	c.tree = worker.NewSupervisor("tree", cfg)
	if err := c.tree.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *processChaos) spec(name string) worker.Spec {
	opts := []worker.ProcessOption{worker.WithGrace(time.Duration(c.rand.IntN(30)) * time.Millisecond)}
	kinds := needCgroup
	if len(c.cgroups) > 0 && c.rand.IntN(3) > 0 {
		opts = append(opts, worker.WithCgroup(c.cgroups[c.rand.IntN(len(c.cgroups))]...))
		kinds = len(programs)
	}
	if c.rand.IntN(2) == 0 {
		opts = append(opts, worker.WithLimits(worker.Limits{
			Memory: []int64{0, 1 << 30}[c.rand.IntN(2)], PIDs: []int{0, 0, 50, 3}[c.rand.IntN(4)],
			Files: []int{0, 50}[c.rand.IntN(2)], Required: c.rand.IntN(10) == 0,
		}))
	}
	kind, code := c.rand.IntN(kinds), c.rand.IntN(10)
	program := fmt.Sprintf("exec 9>>%[1]s/%[2]s.lock; flock -n 9 || echo %[2]s >> %[1]s/double; %[3]s", c.dir, name, programs[kind])
	return worker.Spec{
		Name: name, Restart: []worker.Restart{worker.Always, worker.OnFailure, worker.Never}[c.rand.IntN(3)], StopTimeout: time.Minute,
		New: func(name string) (worker.Worker, error) {
			cmd := exec.Command("sh", "-c", program)
			cmd.Env = append(os.Environ(), c.mark, fmt.Sprint("RANDOM_CODE=", code))
			if code%2 == 0 {
				cmd.Stdout = new(bytes.Buffer) // a pipe
			}
			cmd.WaitDelay = 10 * time.Millisecond
			return worker.NewProcess(name, cmd, opts...), nil
		},
	}
}

func (c *processChaos) step() {
	name := fmt.Sprint("c", c.rand.IntN(6))
	background := func(do func(context.Context)) {
		limit := time.Duration(1+c.rand.IntN(50)) * time.Millisecond
		c.calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			do(ctx)
		})
	}
	switch n := c.rand.IntN(100); {
	case n < 25:
		spec := c.spec(name)
		background(func(context.Context) { _ = c.tree.Add(spec) })
	case n < 35:
		background(func(ctx context.Context) { _ = c.tree.Remove(ctx, name) })
	case n < 60:
		s := []syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP, syscall.SIGCONT}[c.rand.IntN(5)]
		for _, child := range c.tree.State().Children {
			if child.Name == name && child.PID > 0 && child.Status == worker.StatusRunning {
				_ = syscall.Kill(child.PID, s)
			}
		}
	case n < 65:
		background(func(ctx context.Context) { _ = c.tree.Suspend(ctx) })
	case n < 75:
		background(func(ctx context.Context) { _ = c.tree.Resume(ctx) })
	case n < 80:
		background(func(ctx context.Context) { _ = c.tree.Inspect(ctx).Mermaid() })
	default:
		time.Sleep(time.Duration(c.rand.IntN(10)) * time.Millisecond)
	}
	_ = c.tree.State()
}

// end stops the tree, and checks that none of its processes is left and that no
// name ever had two.
func (c *processChaos) end() {
	t := c.t
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := c.tree.Stop(ctx)
	if !c.tree.Status().Terminal() {
		t.Errorf("after Stop it is %s, %v", c.tree.Status(), err)
	}
	<-c.tree.Gone()
	c.calls.Wait()
	if twice, err := os.ReadFile(filepath.Join(c.dir, "double")); err == nil {
		t.Errorf("two instances at once: %q", twice)
	}
	for _, pid := range c.marked() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		group, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		t.Errorf("process %d is left: %q\n%s%s", pid, line, stat, group)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// marked returns the processes that the chaos has started, with their descendants.
func (c *processChaos) marked() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text)+"\x00", c.mark+"\x00") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && runs(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}
