package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// delegated makes a cgroup for the test in each of the hierarchies ("v2" or the
// name of a controller of v1), or skips the test. On a machine that has v2 alone, a
// controller means v2's controller.
func delegated(t testing.TB, hierarchies ...string) []string {
	t.Helper()
	parents, err := delegate(t, hierarchies...)
	if err != nil {
		t.Skipf("this machine allows no cgroup: %v", err)
	}
	return parents
}

func delegate(t testing.TB, hierarchies ...string) (parents []string, err error) {
	name := fmt.Sprintf("worker-test-%d-%x", os.Getpid(), rand.Uint32())
	for _, hierarchy := range hierarchies {
		root := "/sys/fs/cgroup/" + hierarchy
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			root = "/sys/fs/cgroup"
		} else if hierarchy == "v2" {
			root = "/sys/fs/cgroup/unified"
		}
		parent := filepath.Join(root, name)
		if slices.Contains(parents, parent) {
			continue
		}
		if err := os.Mkdir(parent, 0o755); err != nil {
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

var mixtures = map[string][]string{
	"v2":           {"v2"},
	"v1":           {"memory", "pids"},
	"v2 beside v1": {"pids", "v2"},
}

// A grandchild that has a session of its own ends with the program, in each way
// in which the program can end.
func TestCgroupReachesEveryGrandchild(t *testing.T) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for name, hierarchies := range mixtures {
		t.Run(name, func(t *testing.T) {
			parents := delegated(t, hierarchies...)
			for name, test := range map[string]struct {
				mode string
				end  func(*testing.T, *worker.Process)
				want worker.Status
			}{
				"exit 0": {mode: "daemon:0", want: worker.StatusFinished},
				"exit 3": {mode: "daemon:3", want: worker.StatusFailed},
				"stop":   {mode: "escape:ignore", want: worker.StatusStopped, end: func(t *testing.T, p *worker.Process) { _ = p.Stop(within(t)) }},
				"crash":  {mode: "escape:ignore", want: worker.StatusFailed, end: func(_ *testing.T, p *worker.Process) { _ = syscall.Kill(p.PID(), syscall.SIGKILL) }},
			} {
				t.Run(name, func(t *testing.T) {
					out := newLines()
					grace := 50 * time.Millisecond
					if test.want == worker.StatusStopped {
						grace = 5 * time.Second // the program ends in time on a machine that has much else to do
					}
					cmd := helperCommand(test.mode, out)
					cmd.WaitDelay = time.Minute // the grandchild holds the output until it has ended, which may take long on such a machine
					p := start(t, cmd, worker.WithCgroup(parents...), worker.WithGrace(grace))
					pid := out.awaitPID(t, "child ")
					if test.end != nil {
						out.await(t, "ready")
						test.end(t, p)
					}
					<-p.Done()
					<-p.Gone()
					if runs(pid) {
						t.Error("the grandchild runs on")
					}
					s := p.State()
					if s.Status != test.want || s.Exit.Cut {
						t.Errorf("it is %+v, %v", s, p.Err())
					}
					if c := s.Containment; c == nil || len(c.Cgroups) != len(parents) || c.Usage == nil || len(c.Missing) != 0 {
						t.Errorf("contained by %+v", c)
					}
				})
			}
		})
	}
	if now, err := os.ReadFile("/proc/self/cgroup"); err != nil || string(now) != string(own) {
		t.Errorf("this process was in %q and is in %q", own, now)
	}
}

func TestGrandchildOfTheCgroupGetsTheGrace(t *testing.T) {
	out := newLines()
	p := start(t, helperCommand("escape:late", out), worker.WithCgroup(delegated(t, "v2")...), worker.WithGrace(time.Minute))
	out.await(t, "grandchild ")
	if err := p.Stop(within(t)); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "flushed") {
		t.Errorf("the grandchild got no grace: %q", out.String())
	}
}

// What a process leaves behind that was killed itself is ended by the next that uses
// the parent.
func TestCgroupsThatAreLeftOver(t *testing.T) {
	for _, hierarchy := range []string{"v2", "pids"} {
		t.Run(hierarchy, func(t *testing.T) {
			parent := delegated(t, hierarchy)[0]
			out := newLines()
			cmd := helperCommand("leave:"+parent, out)
			cmd.WaitDelay = time.Millisecond // the grandchild has the output, too
			p := start(t, cmd)
			pid := out.awaitPID(t, "child ")
			out.await(t, "ready")
			_ = syscall.Kill(p.PID(), syscall.SIGKILL)
			<-p.Done()
			if !runs(pid) {
				t.Fatal("the grandchild has ended already")
			}
			said := newLines()
			next := start(t, helperCommand("next:"+parent, said))
			said.await(t, "next Finished")
			<-next.Done()
			gone(t, pid)
		})
	}
}

// Where the kernel forbids clone3 and ptrace, the worker moves the program after the
// start.
func TestCgroupWithoutClone3AndPtrace(t *testing.T) {
	for name, hierarchies := range mixtures {
		t.Run(name, func(t *testing.T) {
			parents := delegated(t, hierarchies...)
			out := newLines()
			p := start(t, helperCommand(fmt.Sprintf("without:%d,%d:contained:%s", sysClone3, syscall.SYS_PTRACE, strings.Join(parents, ",")), out))
			<-p.Done()
			if got := filtered(t, out); !strings.HasPrefix(got, "ready\nfiles 77 77 ") || !strings.HasSuffix(got, "\nFinished\n") {
				t.Errorf("it said %q, %v", got, p.Err())
			}
		})
	}
}

func TestMemoryOfTheCgroup(t *testing.T) {
	parents := delegated(t, "memory")
	p := start(t, helperCommand("eat", nil), worker.WithCgroup(parents...), worker.WithLimits(worker.Limits{Memory: 64 << 20, Required: true}))
	<-p.Done()
	s := p.State()
	if s.Status != worker.StatusFailed || !s.Exit.OOM || s.Exit.Signal != "SIGKILL" || s.Error != "out of memory: signal: killed" {
		t.Errorf("it is %+v, exit %+v", s, s.Exit)
	}
	if u := s.Containment.Usage; u.OOMKills < 1 || u.MemoryPeak < 32<<20 || u.MemoryPeak > 65<<20 { // the kernel counts a page above the limit before it refuses it
		t.Errorf("used %+v", u)
	}
}

func TestNumberOfProcessesOfTheCgroup(t *testing.T) {
	parents := delegated(t, "pids")
	p := start(t, exec.Command("sh", "-c", "i=0; while [ $i -lt 40 ]; do sleep 100 & i=$((i+1)); done; wait"),
		worker.WithCgroup(parents...), worker.WithLimits(worker.Limits{PIDs: 30}))
	uses(t, p, func(u *worker.Usage) bool { return u.Refused > 0 })
}

// uses waits until the process has used what is wanted.
func uses(t *testing.T, p *worker.Process, wanted func(*worker.Usage) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		u := p.State().Containment.Usage
		if wanted(u) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("used %+v", u)
		}
	}
}

func TestProcessorTimeOfTheCgroup(t *testing.T) {
	parents := delegated(t, "cpu", "cpuacct")
	p := start(t, exec.Command("sh", "-c", "while :; do :; done"), worker.WithCgroup(parents...), worker.WithLimits(worker.Limits{CPU: 0.05}))
	uses(t, p, func(u *worker.Usage) bool { return u.Throttled > 0 && u.CPU > 0 })
}

func TestCgroupsThatAreRefused(t *testing.T) {
	pids := delegated(t, "pids")[0]
	noCPU := "cpu: none of its cgroups has the controller"
	if _, err := os.Stat(filepath.Join(pids, "cpu.max")); err == nil {
		noCPU = "" // this one does
	}
	file := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		parents []string
		limits  worker.Limits
		says    string
	}{
		"none":            {parents: []string{}, says: "names no directory"},
		"missing":         {parents: []string{pids + "/nothing"}, says: "it is not a cgroup"},
		"no cgroup":       {parents: []string{t.TempDir()}, says: "it is not a cgroup"},
		"a file":          {parents: []string{file}, says: file},
		"relative":        {parents: []string{"workers"}, says: "want the absolute path"},
		"twice":           {parents: []string{pids, filepath.Dir(pids)}, says: "both are of one hierarchy"},
		"no controller":   {parents: []string{pids}, limits: worker.Limits{CPU: 1, Required: true}, says: noCPU},
		"negative":        {parents: []string{pids}, limits: worker.Limits{Memory: -1}, says: "Limits.Memory is -1"},
		"less than time":  {parents: []string{pids}, limits: worker.Limits{CPU: 0.001}, says: "Limits.CPU is 0.001"},
		"too many for it": {parents: []string{pids}, limits: worker.Limits{PIDs: 1 << 40}, says: "the kernel refuses 1099511627776 as the limit pids.max"},
	} {
		if test.says == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := worker.NewProcess("child", helperCommand("sleep", nil), worker.WithCgroup(test.parents...), worker.WithLimits(test.limits))
			err := p.Start(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), "start child: ") || !strings.Contains(err.Error(), test.says) {
				t.Errorf("Start: %v", err)
			}
			if p.Status() != worker.StatusFailed {
				t.Errorf("it is %s", p.Status())
			}
		})
	}
}

// A user without rights can use what was delegated to it, and is told what was not.
func TestRightsThatAreLacking(t *testing.T) {
	v2, pids := delegated(t, "v2")[0], delegated(t, "pids")[0]
	mine := v2
	if _, err := os.Stat(pids + "/cgroup.controllers"); err != nil {
		mine = delegated(t, "pids")[0]
	}
	inside := filepath.Join(v2, "inside")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(inside)
	for _, path := range []string{mine, v2, v2 + "/cgroup.procs", v2 + "/cgroup.subtree_control"} {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	setuid := filepath.Join(t.TempDir(), "id")
	id, err := exec.LookPath("id")
	if err != nil {
		t.Skip(err)
	}
	if err := errors.Join(exec.Command("cp", id, setuid).Run(), os.Chmod(setuid, 0o755|os.ModeSetuid), os.Chmod(filepath.Dir(filepath.Dir(setuid)), 0o755)); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{
		"":     "this process may not bring another there",
		inside: "<nil>",
	} {
		out := newLines()
		p := start(t, helperCommand(strings.Join([]string{"nobody:" + from, v2, pids, setuid, mine}, ","), out))
		<-p.Done()
		for what, want := range map[string]string{
			"delegated": want,
			"root's":    "want one that is delegated to this process",
			"files":     "the kernel refuses 1073741824 as the limit of open files",
			"memory":    "limits do not hold: memory: the process has no cgroup",
		} {
			if got := out.await(t, what+" "); !strings.Contains(got, want) {
				t.Errorf("from %q, %s: %s, want %s", from, what, got, want)
			}
		}
		if plain, bounded := out.await(t, "setuid "), out.await(t, "bounded "); from == inside && plain != bounded {
			t.Errorf("from %q, the cgroup changes the rights of a program: %s, want %s", from, bounded, plain)
		}
	}
}

func TestLimitsWithoutACgroup(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd, said := helperCommand("limits", nil), newLines()
	cmd.Stdin, cmd.Stdout = in, said
	p := worker.NewProcess("child", cmd, worker.WithLimits(worker.Limits{Memory: 1 << 40, PIDs: 100, CPU: 1, Files: 77}))
	events := p.Watch(16)
	defer events.Close()
	if err := p.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.WriteString("go\n")
	<-p.Done()
	if got := said.String(); got != "files 77 77 data 1099511627776 1099511627776\n" || p.Status() != worker.StatusFinished {
		t.Errorf("it is %s, %v, said %q", p.Status(), p.Err(), got)
	}
	missing := p.State().Containment.Missing
	if len(missing) != 3 || !strings.HasPrefix(missing[0], "memory: the process has no cgroup; the limit is for") || missing[1] != "pids: the process has no cgroup" {
		t.Errorf("missing are %q", missing)
	}
	for {
		e, ok := events.Next(within(t))
		if ok != nil {
			t.Fatal(ok)
		}
		if e.To == string(worker.StatusRunning) {
			if !errors.Is(e.Cause, errors.ErrUnsupported) || !strings.Contains(e.Cause.Error(), "cpu: the process has no cgroup") {
				t.Errorf("it runs because of %v", e.Cause)
			}
			break
		}
	}
}
