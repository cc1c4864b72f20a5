package contain

import (
	"fmt"
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
	if errno == 0 || errno == syscall.ESRCH { // it has ended
		return nil
	}
	return fmt.Errorf("the kernel refuses %d as the limit of %s: %w", n, what, errno)
}
