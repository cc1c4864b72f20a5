package run

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// As PID 1, the command reaps the orphans of its program.
func TestOrphansAreReapedByPID1(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	c := startWith(t, r, contained, []string{"-lifecycle.health-addr=off"}, "orphan")
	c.await("orphaned")
	// It has adopted the grandchild, which sleeps, ends, and must be reaped.
	eventually(t, "the program as the only child", func() bool { return len(children(t, c.cmd.Process.Pid)) == 1 })
	w.Close()
	c.wantExit(0)
}

// contained makes a process the first of its own namespaces, as in a container.
func contained(attr *syscall.SysProcAttr) {
	attr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	if uid := os.Geteuid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
}

// ownProc mounts the /proc of the process's own namespace, as in a container.
func ownProc() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil { // not the host's
		return err
	}
	return syscall.Mount("proc", "/proc", "proc", 0, "")
}

// children lists the processes whose parent is pid.
func children(t *testing.T, pid int) []string {
	t.Helper()
	lists, err := filepath.Glob(filepath.Join("/proc", itoa(pid), "task/*/children"))
	if err != nil || len(lists) == 0 {
		t.Fatalf("children of %d: %v", pid, err)
	}
	var all []string
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		all = append(all, strings.Fields(string(text))...)
	}
	return all
}
