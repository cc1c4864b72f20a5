package worker

import (
	"syscall"
	"time"
)

// awaitGroup returns when the zombie is alone in its group and its cgroup, or force
// closes. It polls, because the kernel does not report that a group has become
// empty.
func (p *Process) awaitGroup(force <-chan struct{}) {
	for pause := 5 * time.Millisecond; groupLives(p.cmd.Process.Pid) || p.box.lives(); pause = min(2*pause, 100*time.Millisecond) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-force:
			timer.Stop()
			return
		}
	}
}

// awaitDeath returns when the kernel has ended the group, which was killed. Until
// then its processes hold their files. After killTakes it waits no longer.
func (p *Process) awaitDeath() {
	end := time.Now().Add(killTakes)
	for pause := time.Millisecond; groupLives(p.cmd.Process.Pid) && time.Now().Before(end); pause = min(2*pause, 100*time.Millisecond) {
		time.Sleep(pause)
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
