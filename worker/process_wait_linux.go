package worker

import (
	"os"
	"syscall"
	"unsafe"
)

// holdsZombie says that this system shows the end of a process before it is
// reaped. Until it is reaped, no other process or group gets its number.
const holdsZombie = true

// From <linux/wait.h>; package syscall does not have them.
const (
	idPID         = 1 // P_PID
	idPidfd       = 3 // P_PIDFD
	endedBySignal = 2 // CLD_KILLED: without a core dump
)

// hasEnded are the options of waitid(2) to see the end of a process and not to
// reap it.
const hasEnded = syscall.WEXITED | syscall.WNOWAIT

// awaitExit returns when the program has ended. The program then stays a zombie
// until it is reaped.
func (p *Process) awaitExit() {
	info, err := awaitInPoller(p.cmd.Process)
	if err != nil {
		info = awaitOnThread(p.cmd.Process.Pid)
	}
	p.wasKilled = info.code == endedBySignal && syscall.Signal(info.status) == syscall.SIGKILL
}

// awaitInPoller waits for the end of the child in the poller of the runtime, by
// the child's pidfd. So ten thousand processes take no more threads than one. It
// returns an error when the system has no pidfd, or no descriptor is left.
func awaitInPoller(child *os.Process) (info siginfo, err error) {
	file, err := pidfdOf(child)
	if err != nil {
		return info, err
	}
	defer file.Close()
	conn, err := file.SyscallConn()
	if err != nil {
		return info, err
	}
	err = conn.Read(func(fd uintptr) bool {
		failed := waitid(idPidfd, int(fd), &info, hasEnded|syscall.WNOHANG)
		return failed != 0 || info.signo != 0
	})
	return info, err
}

// pidfdOf returns a copy of the descriptor that package os has of the child, for
// the poller, which takes only descriptors that do not block. Package os's own
// then does not block either, because the two share this flag. Package os uses its
// own to wait for the child, which does not have to block once the child has ended.
func pidfdOf(child *os.Process) (*os.File, error) {
	var fd uintptr
	var failed syscall.Errno
	if err := child.WithHandle(func(pidfd uintptr) {
		fd, _, failed = syscall.Syscall(syscall.SYS_FCNTL, pidfd, syscall.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	if failed != 0 {
		return nil, os.NewSyscallError("fcntl", failed)
	}
	if err := syscall.SetNonblock(int(fd), true); err != nil {
		_ = syscall.Close(int(fd)) // nothing was written
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(fd, "pidfd"), nil
}

// awaitOnThread waits for the end of the child in a system call that blocks its
// thread.
func awaitOnThread(pid int) (info siginfo) {
	_ = waitid(idPID, pid, &info, hasEnded) // fails for a child that has ended and was reaped by other code
	return info
}

// siginfo is the part of siginfo_t that waitid fills in (128 bytes everywhere).
type siginfo struct {
	signo, errno, code int32      // signo is 0 when the child has not ended
	_                  [0]uintptr // the fields below are aligned as a pointer
	pid, uid, status   int32
	_                  [104]byte
}

// waitid fails at once for a child that other code has reaped.
func waitid(kind, id int, info *siginfo, options int) syscall.Errno {
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID,
			uintptr(kind), uintptr(id), uintptr(unsafe.Pointer(info)), uintptr(options), 0, 0)
		if errno != syscall.EINTR {
			return errno
		}
	}
}
