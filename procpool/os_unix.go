//go:build unix

package procpool

import (
	"io/fs"
	"os"
	"syscall"
)

const supported = true

// owner returns the user that a file belongs to.
func owner(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return os.Getuid()
}

// groupOf returns the process group of pid, -1 when there is no such process.
func groupOf(pid int) int {
	group, err := syscall.Getpgid(pid)
	if err != nil {
		return -1
	}
	return group
}

// socketPair returns the two ends of a connection. The worker's is in blocking mode.
func socketPair() (ours, theirs *os.File, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, err
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	return os.NewFile(uintptr(fds[0]), "pool"), os.NewFile(uintptr(fds[1]), "worker"), nil
}
