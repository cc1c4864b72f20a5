package procpool_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// delegated makes a cgroup for the test in each of the hierarchies ("v2" or the name of
// a controller of v1). On a machine with nothing but v2 it makes one of that.
func delegated(t testing.TB, hierarchies ...string) (parents []string, err error) {
	name := fmt.Sprintf("procpool-test-%d-%x", os.Getpid(), rand.Uint32())
	for _, hierarchy := range hierarchies {
		root := "/sys/fs/cgroup/" + hierarchy
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			root = "/sys/fs/cgroup"
		} else if hierarchy == "v2" {
			root = "/sys/fs/cgroup/unified"
		}
		parent := filepath.Join(root, name)
		if err := os.Mkdir(parent, 0o755); errors.Is(err, os.ErrExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		t.Cleanup(func() {
			if err := os.Remove(parent); err != nil {
				t.Errorf("a cgroup is left: %v", err)
			}
		})
		parents = append(parents, parent)
	}
	return parents, nil
}

// contained bounds the processes of a pool, in a cgroup where this machine allows one.
func contained(t testing.TB, limits worker.Limits) (opts []worker.ProcessOption, cgroup bool) {
	opts = []worker.ProcessOption{worker.WithLimits(limits)}
	parents, err := delegated(t, "v2", "memory", "pids")
	if err != nil {
		t.Logf("this machine allows no cgroup: %v", err)
		return opts, false
	}
	return append(opts, worker.WithCgroup(parents...)), true
}

// TestWhatAWorkerStartsEndsWithIt has a worker start a process that leaves its group and
// its session, and end in each way.
func TestWhatAWorkerStartsEndsWithIt(t *testing.T) {
	opts, ok := contained(t, worker.Limits{})
	if !ok {
		t.Skip("it needs a cgroup")
	}
	p := start(t, "serve", func(c *procpool.Config) { c.Process, c.MaxQueue = opts, 1 })
	for name, end := range map[string]func(){
		"evicted": func() {
			if _, err := p.Evict("", false); err != nil {
				t.Error(err)
			}
		},
		"killed": func() { kill(t, p.State().Children[0].PID) },
		"exits":  func() { _, _ = p.Do(within(t), ask{Op: "exit", N: 1}.raw()) },
	} {
		pid, err := strconv.Atoi(do(t, p, ask{Op: "escape"}.raw()))
		if err != nil || !alive(pid) {
			t.Fatal(pid, err)
		}
		if c := p.State().Children[0].Containment; c == nil || c.Usage == nil || c.Usage.PIDs < 2 {
			t.Errorf("%s: contained by %+v", name, c)
		}
		before := p.State().Children[0].PID
		end()
		eventually(t, name+": the worker is gone", func() bool { c := p.State().Children; return len(c) == 0 || c[0].PID != before })
		eventually(t, name+": the process that it has started is gone", func() bool { return !alive(pid) })
	}
}

// TestMemoryOfAWorkerIsBounded has a worker take more than its limit. The kernel kills
// it, and the error says why.
func TestMemoryOfAWorkerIsBounded(t *testing.T) {
	opts, ok := contained(t, worker.Limits{Memory: 128 << 20})
	if !ok {
		t.Skip("it needs a cgroup")
	}
	p := start(t, "serve", func(c *procpool.Config) { c.Process = opts })
	do(t, p, ask{}.raw())
	if c := p.State().Children[0].Containment; c == nil || len(c.Missing) != 0 {
		t.Skipf("the limit does not hold here: %+v", c)
	}
	_, err := p.Do(within(t), ask{Op: "leak", Size: 512 << 20}.raw())
	var crash *procpool.CrashError
	if !errors.As(err, &crash) || !crash.OOM {
		t.Errorf("it ended with %v", err)
	}
	do(t, p, ask{}.raw())
	eventually(t, "the end is counted", func() bool { return p.Stats().Ended[procpool.CauseMemory] == 1 })
}

// TestParentKilledLeavesACgroup is about a worker that no signal of the kernel reaches
// when the pool's process is killed: Python that computes in C code, behind two shells.
// The next pool that uses the cgroup ends it.
func TestParentKilledLeavesACgroup(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	parents, err := delegated(t, "v2")
	if err != nil {
		t.Skipf("this machine allows no cgroup: %v", err)
	}
	cmd := self("wrapped:" + socketDir(t))
	cmd.Env = append(cmd.Env, `WRAPPED=sh -c "python3 testdata/odd.py & wait"`, "WRAPPED_OP=spin-pid", "WRAPPED_CGROUP="+parents[0], "PYTHONPATH=sdk/python")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "all"; {
		var pid int
		if n, err := fmt.Sscanf(lines.Text(), "worker %d <nil>", &pid); n != 1 {
			t.Errorf("it said %q: %v", lines.Text(), err)
			continue
		}
		pids = append(pids, pid)
		defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(pids) != 2 {
		t.Fatalf("the workers are %v", pids)
	}
	p := start(t, "serve", func(c *procpool.Config) { c.Process = []worker.ProcessOption{worker.WithCgroup(parents...)} })
	do(t, p, ask{}.raw())
	for _, pid := range pids {
		eventually(t, fmt.Sprintf("%d is gone", pid), func() bool { return !alive(pid) })
	}
}
