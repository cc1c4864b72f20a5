//go:build unix

package presence

import (
	"syscall"
	"time"
)

// processorTime returns how much processor time this process has used, 0 when it is not known.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
