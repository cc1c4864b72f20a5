//go:build unix

package cli

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// HasReader reports whether the reader of w is there. Otherwise a quiet watch would notice
// only with its next line, and keep the shell waiting behind "| head" until then.
func HasReader(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return true
	}
	// Without requested events, poll still reports an error and a hang-up.
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} //nolint:gosec // a descriptor is small
	_, err := unix.Poll(fds, 0)
	return err != nil || fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) == 0
}
