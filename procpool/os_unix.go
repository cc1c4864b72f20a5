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
