//go:build unix

package broker

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lock takes the file for this process until unlock is called or the process ends. Two
// servers on one store directory would destroy the store.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("another server has the folder: give each process its own, or let the others reach this one by its URL")
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { _ = f.Close() }, nil
}
