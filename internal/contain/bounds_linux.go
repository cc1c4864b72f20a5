package contain

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// Bounds says whether this system can set limits of a process that runs.
const Bounds = true

// Files bounds the open files of a process, and of each that it starts from now
// on.
func Files(pid, n int) error { return rlimit(pid, syscall.RLIMIT_NOFILE, "open files", uint64(n)) }

// Data bounds the private writable memory of a process, in bytes, and of each that
// it starts from now on (RLIMIT_DATA of setrlimit(2)).
func Data(pid int, n int64) error {
	return rlimit(pid, syscall.RLIMIT_DATA, "private writable memory", uint64(n))
}

// rlimit sets the soft and the hard limit.
func rlimit(pid, resource int, what string, n uint64) error {
	limit := struct{ soft, hard uint64 }{n, n}
	_, _, errno := syscall.Syscall6(syscall.SYS_PRLIMIT64,
		uintptr(pid), uintptr(resource), uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	switch errno {
	case 0, syscall.ESRCH: // it has ended
		return nil
	case syscall.EPERM:
		return fmt.Errorf("the kernel refuses %d as the limit of %s: "+
			"want at most this process's own hard limit, and a program that does not run as another user, or the "+
			"capability CAP_SYS_RESOURCE: %w", n, what, errno)
	}
	return fmt.Errorf("the kernel refuses %d as the limit of %s: %w", n, what, errno)
}

// OOMScore sets how soon the kernel kills a process, and each that it starts from
// now on, when memory runs out (oom_score_adj of proc(5)).
func OOMScore(pid, adj int) error {
	err := put("/proc/"+strconv.Itoa(pid), "oom_score_adj", strconv.Itoa(adj))
	if err == nil || os.IsNotExist(err) { // it has ended
		return nil
	}
	return fmt.Errorf("the kernel refuses %d as oom_score_adj: "+
		"want a higher value than this process's own, or the capability CAP_SYS_RESOURCE: %w", adj, err)
}
