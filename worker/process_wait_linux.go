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
	idPID         = 1 // P_PID
	endedBySignal = 2 // CLD_KILLED: without a core dump
)

// hasEnded are the options of waitid(2) to see the end of a process and not to
// reap it.
const hasEnded = syscall.WEXITED | syscall.WNOWAIT

// awaitExit returns when the program has ended, and reports whether SIGKILL has ended it.
// The program then stays a zombie until it is reaped.
func awaitExit(pid int) (killed bool) {
	var info siginfo
	_ = waitid(pid, &info, hasEnded) // fails for a child that has ended and was reaped by other code
	return info.code == endedBySignal && syscall.Signal(info.status) == syscall.SIGKILL
}

// siginfo is the part of siginfo_t that waitid fills in (128 bytes everywhere).
type siginfo struct {
	signo, errno, code int32      // signo is 0 when the child has not ended
	_                  [0]uintptr // the fields below are aligned as a pointer
	pid, uid, status   int32
	_                  [104]byte
}

// waitid fails at once for a child that other code has reaped.
func waitid(pid int, info *siginfo, options int) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID,
			idPID, uintptr(pid), uintptr(unsafe.Pointer(info)), uintptr(options), 0, 0)
		if errno != syscall.EINTR {
			return errno
		}
	}
}
