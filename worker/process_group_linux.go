package worker

import (
	"syscall"
	"time"
)

// awaitGroup returns when the zombie is alone in its group and its cgroup, or force
// closes. It polls, because the kernel does not report that a group has become
// empty.
func (p *Process) awaitGroup(force <-chan struct{}) {
	pause := 5 * time.Millisecond
	for groupLives(p.cmd.Process.Pid) || p.bounds.lives() {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-force:
			timer.Stop()
			return
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// awaitDeath returns when the kernel has ended the group, which was killed. Until
// then its processes hold their files. After killTakes it waits no longer.
func (p *Process) awaitDeath() {
	end := time.Now().Add(killTakes)
	pause := time.Millisecond
	for groupLives(p.cmd.Process.Pid) && time.Now().Before(end) {
		time.Sleep(pause)
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// isStopped reports whether the kernel has stopped the program.
func (p *Process) isStopped() bool {
	s, ok := readStat(p.PID())
	return ok && (s.state == 'T' || s.state == 't')
}

// groupLives reports whether a process of the group runs, besides the leader,
// which has ended.
func groupLives(pgid int) bool {
	lives := false
	eachPID(func(pid int) bool {
		// The system call costs a twentieth of reading /proc/PID/stat.
		if got, err := syscall.Getpgid(pid); err != nil || got != pgid || pid == pgid {
			return true
		}
		s, ok := readStat(pid)
		lives = ok && s.state != 'Z' && s.state != 'X'
		return !lives
	})
	return lives
}
