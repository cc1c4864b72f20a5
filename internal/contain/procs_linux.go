package contain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// sweepPatience bounds how long the end of a group that is left over is awaited.
const sweepPatience = time.Second

// StartIn makes a process that is started with attr begin in the group. It
// returns an error when attr names another cgroup. [Group.Join] does the rest once
// the process runs.
func (g *Group) StartIn(attr *syscall.SysProcAttr) error {
	if attr.UseCgroupFD {
		return errors.New("SysProcAttr.UseCgroupFD is set: want either it or a cgroup of the process's own")
	}
	if d := g.dirs[0]; d.v2 && startsInCgroup() {
		attr.UseCgroupFD, attr.CgroupFD = true, int(d.held.Fd())
	}
	return nil
}

// startsInCgroup reports whether the kernel can start a process in a cgroup
// (Linux 5.7), and no filter of system calls forbids clone3. It asks for a process
// in a cgroup of a descriptor that cannot exist: no process starts in any case.
var startsInCgroup = sync.OnceValue(func() bool {
	const sysClone3, cloneIntoCgroup = 435, 1 << 33
	args := [11]uint64{0: cloneIntoCgroup, 4: uint64(syscall.SIGCHLD), 10: 1<<31 - 1} // struct clone_args
	_, _, errno := syscall.Syscall(sysClone3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	return errno == syscall.EBADF
})

// Joins reports whether [Group.Join] has something to do for a process that is
// started with attr.
func (g *Group) Joins(attr *syscall.SysProcAttr) bool {
	return len(g.dirs) > 1 || !attr.UseCgroupFD
}

// Join moves a process that has just started to the group, in the hierarchies in which it
// has not started.
func (g *Group) Join(pid int, attr *syscall.SysProcAttr) error {
	for i, d := range g.dirs {
		if i == 0 && attr.UseCgroupFD {
			continue
		}
		err := put(d.path, "cgroup.procs", strconv.Itoa(pid))
		if errors.Is(err, fs.ErrPermission) {
			return g.Forbidden(err)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) { // it has ended
			return fmt.Errorf("cgroup %s: move process %d: %w", d.path, pid, err)
		}
	}
	return nil
}

// Forbidden explains an error of permission of a start in the group.
func (g *Group) Forbidden(err error) error {
	return fmt.Errorf("cgroup %s: this process may not bring another there: "+
		"want to write cgroup.procs there and in the nearest cgroup that is above both this process and it; "+
		"run this process below the delegated cgroup: %w", g.dirs[0].path, err)
}

// Empty reports whether no process of the group runs. A zombie does not.
func (g *Group) Empty() bool {
	d := g.dirs[0]
	if d.v2 {
		if text, err := os.ReadFile(filepath.Join(d.path, "cgroup.events")); err == nil {
			return value(text, "populated") == 0
		}
	}
	return len(d.pids()) == 0
}

// pids returns the processes of the group.
func (d dir) pids() (pids []int) {
	for _, path := range d.tree() {
		all, err := words(path, "cgroup.procs")
		if err != nil {
			continue // removed meanwhile
		}
		for _, word := range all {
			if pid, err := strconv.Atoi(word); err == nil && pid > 0 { // 0 is a process of another PID namespace
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Signal sends a signal to every process of the group that leave does not report.
// A process that starts meanwhile may miss it.
func (g *Group) Signal(s syscall.Signal, leave func(pid int) bool) {
	for _, pid := range g.dirs[0].pids() {
		if !leave(pid) {
			_ = syscall.Kill(pid, s) // it may have ended
		}
	}
}

// Kill kills every process of the group. A process that the kernel cannot end yet
// goes on, and so may one that starts meanwhile where there is no cgroup.kill (Linux 5.14).
func (g *Group) Kill() {
	if d := g.dirs[0]; !d.v2 || put(d.path, "cgroup.kill", "1") != nil {
		g.Signal(syscall.SIGKILL, func(int) bool { return false })
	}
}

// End kills every process of the group until none is left, for at most patience.
// It returns the processes that are left. A patience of 0 has no bound.
func (g *Group) End(patience time.Duration) (left []int) {
	end := time.Now().Add(patience)
	for pause := time.Millisecond; !g.Empty(); pause = min(2*pause, 100*time.Millisecond) {
		g.Kill()
		if patience > 0 && time.Now().After(end) {
			return g.dirs[0].pids()
		}
		time.Sleep(pause)
	}
	return nil
}
