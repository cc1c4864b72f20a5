//go:build unix

package presence

import (
	"errors"
	"os"
	"syscall"
)

// lockWords takes the file for this process until the process ends.
func lockWords(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errWordsTaken
	}
	return err
}
