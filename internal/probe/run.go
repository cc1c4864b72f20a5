package probe

import (
	"context"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Start begins a run of every check that has none in progress, each in a goroutine of its
// own under a context with base's values and cancellation, and returns at once.
func Start(base context.Context, checks ...*Check) {
	for _, c := range checks {
		c.start(base)
	}
}

// Run begins a run of every check that has none in progress, as [Start] does. It
// waits until the runs of all checks have ended or are overdue, until patience has
// passed, or until ctx is done. The runs depend on base, not on ctx: they go on when
// Run returns.
func Run(ctx, base context.Context, patience time.Duration, checks []*Check) {
	deadline := Now() + patience
	Start(base, checks...)
	for _, c := range checks {
		c.await(ctx, deadline)
	}
}

// start begins a run unless one is in progress or the check is closed.
func (c *Check) start(base context.Context) {
	if !c.claim() {
		return
	}
	ctx, cancel := context.WithTimeout(base, c.timeout)
	ctx = call.WithLabels(ctx, Kind, c.name)
	call.GoUnder(ctx, c.name, false, func() error { return c.fn(ctx) }, func(err error) {
		cancel()
		c.finish(err)
	})
}

// await waits for the run in progress, if there is one, until it has ended or is overdue,
// until deadline or until ctx is done.
func (c *Check) await(ctx context.Context, deadline time.Duration) {
	done, overdue := c.inProgress()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-time.After(min(overdue, deadline) - Now()):
	case <-ctx.Done():
	}
}
