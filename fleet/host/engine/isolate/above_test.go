package isolate_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
)

func asRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can do this")
	}
}

// count is code that counts its messages.
const count = `let n = 0; function handle(m) { return String(++n) }`

// childOf returns the process of the only child.
func childOf(t *testing.T) int {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), "\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatal("there is no child")
	return 0
}

// Children run as the user that is configured.
func TestChildrenHaveTheirOwnUser(t *testing.T) {
	asRoot(t)
	children, err := isolate.New(isolate.Config{Program: program, UID: 65534})
	if err != nil {
		t.Fatal(err)
	}
	p, err := children.Engine("text/javascript", js.New()).Load(t.Context(), []byte(count), engine.Config{Worker: "w"})
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(childOf(t)) + "/status")
	if err != nil || !strings.Contains(string(status), "Uid:\t65534\t65534\t65534\t65534") || !strings.Contains(string(status), "Groups:\t \n") {
		t.Errorf("the child's status: %s, %v", status, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// With a cgroup, the child's memory is bounded as a whole, and the cgroup goes with it.
func TestChildrenHaveTheirOwnCgroup(t *testing.T) {
	asRoot(t)
	var parents []string
	for _, hierarchy := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(hierarchy, "cgroup.procs")); err != nil {
			continue
		}
		dir, err := os.MkdirTemp(hierarchy, "isolate-test-")
		if err != nil {
			t.Skipf("no cgroup can be made: %v", err)
		}
		defer os.Remove(dir)
		parents = append(parents, dir)
	}
	children, err := isolate.New(isolate.Config{Program: program, Cgroups: parents, Required: true})
	if err != nil {
		t.Fatal(err)
	}
	e := children.Engine("text/javascript", js.New())
	p, err := e.Load(t.Context(), []byte(count), engine.Config{Worker: "w"})
	if err != nil {
		t.Fatal(err)
	}
	cgroup, err := os.ReadFile("/proc/" + strconv.Itoa(childOf(t)) + "/cgroup")
	if err != nil || !strings.Contains(string(cgroup), "isolate-test-") {
		t.Errorf("the child's cgroups: %s, %v", cgroup, err)
	}
	if out, err := p.Handle(t.Context(), message("1"), enginetest.NewState()); err != nil || string(out[0].Data) != "1" {
		t.Errorf("a message: %v, %v", out, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for _, parent := range parents {
		if left, _ := filepath.Glob(filepath.Join(parent, "lifecycle-*")); len(left) > 0 {
			t.Errorf("cgroups are left: %q", left)
		}
	}
}
