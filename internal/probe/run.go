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

// Unfinished is a run that [Run] has stopped waiting for.
type Unfinished struct {
	Check *Check
	Run   uint64 // its number
}

// Run begins a run of every check that has none in progress, as [Start] does. It
// waits until the runs of all checks have ended or are overdue, until patience has
// passed, or until ctx is done. The runs depend on base, not on ctx: they go on when
// Run returns. Run returns the runs that have not ended, nil if there are none.
func Run(ctx, base context.Context, patience time.Duration, checks []*Check) []Unfinished {
	deadline := Now() + patience
	Start(base, checks...)
	var unfinished []Unfinished
	for _, c := range checks {
		if run, ended := c.await(ctx, deadline); !ended {
			unfinished = append(unfinished, Unfinished{c, run})
		}
	}
	return unfinished
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
// until deadline or until ctx is done. It returns the number of the run.
func (c *Check) await(ctx context.Context, deadline time.Duration) (run uint64, ended bool) {
	done, overdue, run := c.inProgress()
	if done == nil {
		return 0, true
	}
	select {
	case <-done:
		return run, true
	case <-time.After(min(overdue, deadline) - Now()):
	case <-ctx.Done():
	}
	return run, false
}
