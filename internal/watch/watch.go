// Package watch tells of work that takes long.
package watch

import (
	"context"
	"errors"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

var errLate = errors.New("the limit has passed")

// Long calls slow with the time so far after first, and again whenever that time has
// doubled. After limit it calls late and ends. It ends earlier with ctx, or when the
// caller calls end, which does not wait. slow and late are called on one goroutine.
func Long(ctx context.Context, first, limit time.Duration, slow func(took time.Duration), late func()) (end func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	began := time.Now()
	call.Go("watch", func() error {
		again := time.NewTimer(first)
		defer again.Stop()
		for {
			select {
			case <-again.C:
				took := time.Since(began)
				slow(took)
				again.Reset(took)
			case <-ctx.Done():
				if context.Cause(ctx) == errLate { //nolint:errorlint // the very one
					late()
				}
				return nil
			}
		}
	}, func(error) {})
	return cancel
}
