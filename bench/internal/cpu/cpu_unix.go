//go:build unix

package cpu

import (
	"syscall"
	"time"
)

// used returns the processor time that the process has used, in user mode and
// in the kernel.
func used() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
