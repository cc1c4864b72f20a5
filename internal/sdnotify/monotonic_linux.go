package sdnotify

import (
	"strconv"
	"syscall"
	"unsafe"
)

const clockMonotonic = 1 // CLOCK_MONOTONIC of <linux/time.h>

// Monotonic returns the assignment of MONOTONIC_USEC= with the present time of
// CLOCK_MONOTONIC. A message with RELOADING=1 needs it. It returns "" where that
// clock cannot be read. (What the time package calls monotonic has another
// origin.)
func Monotonic() string {
	var ts syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return ""
	}
	return "MONOTONIC_USEC=" + strconv.FormatInt(ts.Nano()/1000, 10)
}
