//go:build unix

package worker_test

import (
	"os"
	"strconv"
	"syscall"
	"time"
)

func helperUnix(mode, arg string) bool {
	if mode != "suicide" {
		return false
	}
	n, _ := strconv.Atoi(arg)
	_ = syscall.Kill(os.Getpid(), syscall.Signal(n))
	time.Sleep(time.Hour)
	return true
}
