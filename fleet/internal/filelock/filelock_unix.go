//go:build unix

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// Take takes a file for this process until it is closed or the process ends. On systems other
// than Unix it does nothing: the operator must give each process a file of its own.
func Take(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrTaken
	}
	return err
}
