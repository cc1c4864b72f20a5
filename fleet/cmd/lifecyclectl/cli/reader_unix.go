//go:build unix

package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// lookEvery is how long one poll of the reader lasts, in milliseconds. A watch
// that has ended waits at most as long.
const lookEvery = 250

// WhileRead returns a context that ends when the reader of w has gone. Otherwise a
// quiet watch would notice only with its next line, and keep the shell
// waiting behind "| head" until then. The caller must call stop, which waits.
func WhileRead(ctx context.Context, w io.Writer) (_ context.Context, stop func()) {
	f, ok := w.(*os.File)
	if !ok {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for ctx.Err() == nil {
			// Without requested events, poll still reports an error and a hang-up.
			fds := []unix.PollFd{{Fd: int32(f.Fd())}} //nolint:gosec // a descriptor is small
			switch _, err := unix.Poll(fds, lookEvery); {
			case errors.Is(err, unix.EINTR):
			case err != nil:
				return // the next write will fail
			case fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
				cancel()
			}
		}
	})
	return ctx, func() { cancel(); looking.Wait() }
}
