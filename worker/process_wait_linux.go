package worker

import (
	"syscall"
	"unsafe"
)

// holdsZombie says that this system shows the end of a process before it is
// reaped. Until it is reaped, no other process or group gets its number.
const holdsZombie = true

// From <linux/wait.h>; package syscall does not have them.
const (
	idPID       = 1 // P_PID
	noWait      = syscall.WNOWAIT
	childKilled = 2 // CLD_KILLED: a signal ended it, without a core dump
)

// awaitExit returns when the program has ended. The program then stays a zombie
// until it is reaped.
func (p *Process) awaitExit() {
	var info siginfo
	for waitid(p.cmd.Process.Pid, &info, syscall.WEXITED|noWait) == syscall.EINTR {
	}
	p.wasKilled = info.code == childKilled
}

// siginfo is the part of siginfo_t that waitid fills in (128 bytes everywhere).
type siginfo struct {
	signo, errno, code int32
	_                  [116]byte
}

func waitid(pid int, info *siginfo, options int) syscall.Errno {
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, idPID, uintptr(pid), uintptr(unsafe.Pointer(info)), uintptr(options), 0, 0)
	return errno
}
