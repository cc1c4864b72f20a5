//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// lookEvery is how long a look at the reader lasts, in milliseconds: the longest
// that a watch that is over waits for it.
const lookEvery = 250

// whileRead returns a context that ends when nobody reads w any more: a watch in
// which nothing happens would notice with its next line only, and keep the shell
// waiting behind "| head" until then. stop must be called, and waits.
func whileRead(ctx context.Context, w io.Writer) (_ context.Context, stop func()) {
	f, ok := w.(*os.File)
	if !ok {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for ctx.Err() == nil {
			// Nothing is asked for: an error and a hang-up are told anyway.
			fds := []unix.PollFd{{Fd: int32(f.Fd())}} //nolint:gosec // a descriptor is small
			switch _, err := unix.Poll(fds, lookEvery); {
			case errors.Is(err, unix.EINTR):
			case err != nil:
				return // the next line will tell
			case fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
				cancel()
			}
		}
	})
	return ctx, func() { cancel(); looking.Wait() }
}
