package contain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake makes a directory with the files of a cgroup.
func fake(t *testing.T, files map[string]string) dir {
	t.Helper()
	_, v2 := files["cpu.max"]
	d := dir{path: t.TempDir(), v2: v2}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(d.path, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (d dir) text(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.path, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLimitsAreWritten(t *testing.T) {
	v2 := fake(t, map[string]string{"memory.max": "", "memory.swap.max": "", "pids.max": "", "cpu.max": ""})
	memory := fake(t, map[string]string{"memory.limit_in_bytes": "", "memory.memsw.limit_in_bytes": ""})
	noSwap := fake(t, map[string]string{"memory.limit_in_bytes": ""})
	pids := fake(t, map[string]string{"pids.max": ""})
	cpu := fake(t, map[string]string{"cpu.cfs_quota_us": "", "cpu.cfs_period_us": ""})
	for name, test := range map[string]struct {
		dirs    []dir
		want    map[string]string
		missing []string
	}{
		"v2": {dirs: []dir{v2}, want: map[string]string{"memory.max": "1048576", "memory.swap.max": "0", "pids.max": "7", "cpu.max": "150000 100000"}},
		"v1": {dirs: []dir{memory, pids, cpu}, want: map[string]string{
			"memory.limit_in_bytes": "1048576", "memory.memsw.limit_in_bytes": "1048576", "pids.max": "7", "cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000",
		}},
		"v1 that does not count swap": {dirs: []dir{noSwap}, want: map[string]string{"memory.limit_in_bytes": "1048576"}, missing: []string{"pids", "cpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := &Group{dirs: test.dirs}
			missing, err := g.limit(Limits{Memory: 1 << 20, PIDs: 7, CPU: 1.5})
			if err != nil || !slices.Equal(missing, test.missing) {
				t.Errorf("missing %q, %v", missing, err)
			}
			for file, want := range test.want {
				i := slices.IndexFunc(test.dirs, func(d dir) bool { return exists(d.path, file) })
				if got := test.dirs[i].text(t, file); got != want {
					t.Errorf("%s is %q, want %q", file, got, want)
				}
			}
		})
	}
}

func TestUsageIsRead(t *testing.T) {
	v2 := fake(t, map[string]string{
		"cpu.max": "max 100000", "memory.current": "4096\n", "memory.peak": "8192\n", "memory.events": "low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\noom_group_kill 0\n",
		"pids.current": "3\n", "pids.events": "max 9\n", "cpu.stat": "usage_usec 1500\nuser_usec 1000\nnr_throttled 4\nthrottled_usec 700\n",
	})
	memory := fake(t, map[string]string{"memory.usage_in_bytes": "4096\n", "memory.max_usage_in_bytes": "8192\n", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"})
	rest := fake(t, map[string]string{"pids.current": "3\n", "pids.events": "max 9\n", "cpuacct.usage": "1500000\n", "cpu.stat": "nr_periods 5\nnr_throttled 4\nthrottled_time 700000\n"})
	want := Usage{Memory: 4096, MemoryPeak: 8192, PIDs: 3, CPU: 1500 * time.Microsecond, Throttled: 700 * time.Microsecond, Refused: 9, OOMKills: 1}
	if got := (&Group{dirs: []dir{memory, rest}}).Usage(); got != want {
		t.Errorf("v1 uses %+v, want %+v", got, want)
	}
	if got := (&Group{dirs: []dir{v2}}).Usage(); got != want {
		t.Errorf("v2 uses %+v, want %+v", got, want)
	}
	if got := (&Group{dirs: []dir{fake(t, map[string]string{"memory.current": "many", "cpu.stat": "\n\n usage_usec"})}}).Usage(); got != (Usage{}) {
		t.Errorf("nonsense is %+v", got)
	}
	if _, counts := OOMKills(rest.path); counts {
		t.Error("a cgroup without the memory controller counts kills")
	}
}

func TestControllersAreEnabled(t *testing.T) {
	parent := fake(t, map[string]string{"cgroup.controllers": "cpu memory\n", "cgroup.subtree_control": "cpu\n"})
	if err := enable(parent.path, Limits{Memory: 1, PIDs: 1, CPU: 1}); err != nil {
		t.Fatal(err)
	}
	if got := parent.text(t, "cgroup.subtree_control"); got != "+memory" { // a real one would list both
		t.Errorf("wrote %q", got)
	}
	if os.Getuid() != 0 {
		if err := os.Chmod(filepath.Join(parent.path, "cgroup.subtree_control"), 0o400); err != nil {
			t.Fatal(err)
		}
		if err := enableControllers(parent.path, []string{"memory"}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "not delegated") {
			t.Errorf("enable: %v", err)
		}
	}
}

// root returns the root of a real hierarchy, or skips the test.
func root(t *testing.T, hierarchy string) string {
	t.Helper()
	for _, path := range map[string][]string{
		"v2": {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}, "pids": {"/sys/fs/cgroup/pids"},
	}[hierarchy] {
		made, err := os.MkdirTemp(path, "contain-test-")
		if err != nil || hierarchy == "v2" && !exists(made, "cgroup.controllers") {
			_ = os.Remove(made)
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(made); err != nil {
				t.Errorf("something is left: %v", err)
			}
		})
		return made
	}
	t.Skipf("this machine allows no cgroup of %s", hierarchy)
	return ""
}

// A parent with processes of its own cannot give controllers to the groups below.
func TestParentWithProcesses(t *testing.T) {
	parent := root(t, "v2")
	has, err := words(parent, "cgroup.controllers")
	if err != nil || len(has) == 0 {
		t.Skip("this machine has cgroup v2 without a controller")
	}
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := put(parent, "cgroup.procs", fmt.Sprint(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	for _, controller := range has {
		if err := enableControllers(parent, []string{controller}); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "want a cgroup without processes") {
			t.Errorf("enable %s: %v", controller, err)
		}
		if put(parent, "cgroup.subtree_control", "+"+controller) == nil { // it is a controller that can be enabled
			if _, _, err := New([]string{parent}, "below", Limits{}); !errors.Is(err, syscall.EBUSY) {
				t.Errorf("below %s: %v", controller, err)
			}
			if err := put(parent, "cgroup.subtree_control", "-"+controller); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err := enableControllers(parent, has[:1]); err != nil {
		t.Errorf("enable: %v", err)
	}
	if on, err := words(parent, "cgroup.subtree_control"); err != nil || !slices.Contains(on, has[0]) {
		t.Errorf("enabled are %q, %v", on, err)
	}
}

// fork starts a program in the group that forks all the time.
func fork(t *testing.T, g *Group, program string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read go; "+program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.Join(cmd.Process.Pid, cmd.SysProcAttr); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in)
	for end := time.Now().Add(time.Minute); len(g.dirs[0].pids()) < 5; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not fork")
		}
	}
	return cmd
}

func TestNothingEscapes(t *testing.T) {
	const (
		tree  = "for i in 1 2 3 4; do (while :; do sleep 0.01 & done) & done; wait"
		chain = "chain() { chain & }; for i in 1 2 3 4; do chain; done; " + tree // each lives only until it has a successor
	)
	for name, test := range map[string]struct {
		hierarchies []string
		program     string
	}{
		"v2": {[]string{"v2"}, chain},
		"v1": {[]string{"pids"}, tree},
	} {
		t.Run(name, func(t *testing.T) {
			var parents []string
			for _, h := range test.hierarchies {
				parents = append(parents, root(t, h))
			}
			g, _, err := New(parents, "fork/…", Limits{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				g.End(time.Minute)
				_ = g.Remove()
			})
			cmd := fork(t, g, test.program)
			if left := g.End(time.Minute); len(left) > 0 || !g.Empty() {
				t.Errorf("%v are left", left)
			}
			_ = cmd.Wait()
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestGroupsThatAreLeftOver(t *testing.T) {
	for _, hierarchy := range []string{"v2", "pids"} {
		t.Run(hierarchy, func(t *testing.T) {
			parent := root(t, hierarchy)
			dead, _, err := New([]string{parent}, "dead", Limits{})
			if err != nil {
				t.Fatal(err)
			}
			living, _, err := New([]string{parent}, "living", Limits{})
			if err != nil {
				t.Fatal(err)
			}
			other := filepath.Join(parent, "of-others")
			if err := os.Mkdir(other, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sleep", "3600")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if err := dead.Join(cmd.Process.Pid, &syscall.SysProcAttr{}); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dead.Dirs()[0], "inner"), 0o755); err != nil {
				t.Fatal(err)
			}
			_ = dead.dirs[0].held.Close() // as the kernel does when its process dies
			sweep(parent)
			_ = cmd.Wait()
			if exists(dead.Dirs()[0]) || !exists(living.Dirs()[0]) || !exists(other) {
				t.Errorf("left over: %v, living: %v, of others: %v", exists(dead.Dirs()[0]), exists(living.Dirs()[0]), exists(other))
			}
			_ = os.Remove(other)
			if err := living.Remove(); err != nil {
				t.Error(err)
			}
			if err := living.Remove(); err != nil {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for worker, want := range map[string]string{"web": "lifecycle-web.*", "pool/1*": "lifecycle-pool%2F1%2A.*", "../..": "lifecycle-..%2F...*", "": "lifecycle-.*", strings.Repeat("x", 300): "lifecycle-" + strings.Repeat("x", 100) + ".*"} {
		if got := pattern(worker); got != want {
			t.Errorf("%q becomes %q, want %q", worker, got, want)
		}
	}
}
