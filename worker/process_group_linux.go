package worker

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// awaitGroup returns when no process of the group and the cgroup runs, besides the zombie,
// or force closes. It polls, because the kernel does not report that a group has become
// empty.
func (p *Process) awaitGroup(force <-chan struct{}) {
	pause := 5 * time.Millisecond
	for groupLives(p.cmd.Process.Pid) || p.bounds.lives() {
		select {
		case <-time.After(pause):
		case <-force:
			return
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// awaitDeath returns when the kernel has ended the group, which was killed. Until
// then its processes hold their files. After killTakes it waits no longer. What else is
// in the cgroup is killed afterwards.
func (p *Process) awaitDeath() {
	end := time.Now().Add(killTakes)
	pause := time.Millisecond
	for groupLives(p.cmd.Process.Pid) && time.Now().Before(end) {
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// isStopped reports whether the kernel has stopped the program. A program that has called vfork
// waits in the kernel until its child has called exec, and is not stopped before that: then it
// cannot run while the child is stopped.
func (p *Process) isStopped() bool {
	pid := p.PID()
	s, ok := readStat(pid)
	if !ok || s.state != 'D' {
		return ok && s.stopped()
	}
	for _, member := range groupMembers(pid) {
		if child, ok := readStat(member); ok && child.ppid == pid && child.stopped() {
			return true
		}
	}
	return false
}

// stopped reports whether the kernel has stopped the process.
func (s procStat) stopped() bool { return s.state == 'T' || s.state == 't' }

// groupLives reports whether a process of the group runs, besides the leader,
// which has ended. Once the leader is reaped, the kernel says when the group is empty.
func groupLives(pgid int) bool {
	if syscall.Kill(-pgid, 0) == syscall.ESRCH {
		return false
	}
	return slices.ContainsFunc(groupMembers(pgid), func(pid int) bool {
		s, ok := readStat(pid)
		return ok && s.state != 'Z' && s.state != 'X'
	})
}

// groups are the members of each process group besides the leader, as the last look at /proc found
// them. All that wait for the end of a group share its looks.
var groups struct {
	looks atomic.Uint64 // that have begun
	sync.Mutex
	members map[int][]int
}

// groupMembers returns the members of a process group besides the leader, by a look at /proc that
// began after the call.
func groupMembers(pgid int) []int {
	before := groups.looks.Load()
	groups.Lock()
	defer groups.Unlock()
	if groups.looks.Load() == before {
		groups.looks.Add(1)
		groups.members = make(map[int][]int)
		for _, pid := range allPIDs() {
			// The system call costs a twentieth of reading /proc/PID/stat.
			if of, err := syscall.Getpgid(pid); err == nil && of != pid {
				groups.members[of] = append(groups.members[of], pid)
			}
		}
	}
	return groups.members[pgid]
}
