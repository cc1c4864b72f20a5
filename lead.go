package lifecycle

import (
	"context"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Elector is one process's access to a lease that at most one process holds at a
// time: a row in a database, a key with a time to live, a Kubernetes Lease. See
// [worker.Elector].
type Elector = worker.Elector

// ErrLeadershipLost is the context.Cause that a unit of [App.Lead] sees when
// another process has the lease, or when this one could not be sure in time
// that it still has it.
var ErrLeadershipLost = worker.ErrLeadershipLost

// Lead adds a function that runs while this process leads, and in one process
// at a time:
//
//   - It asks e for the lease every LeaderRetry, and runs fn once it has it.
//   - While fn runs the lease is renewed each third of its time. When another
//     process has it, or two thirds have passed without an answer, counted from
//     when the last successful attempt was begun, fn's context is cancelled with
//     [ErrLeadershipLost]. The last third is for fn to return in; then it
//     campaigns again.
//   - A function that has not returned when the lease has run out is a failure
//     of the unit, with its stack, and stops the App: another process may be at
//     the same work by now. (Where even a moment of that does harm, let the
//     store refuse writers whose fencing token is old; no lease can.)
//   - fn's own end is that of the unit, as with [App.Go]: nil means that it is
//     done, an error stops the App. The lease is released then.
//
// A process that does not lead may be ready: the unit is running from the start,
// and its child is pending until it leads. While the App drains, no term begins;
// a function that leads goes on until the App is stopping, unless it watches
// [Draining] and returns. Lead releases the lease once the function has returned.
// A function that is abandoned keeps the lease until it runs out.
//
// An elector that ignores its context and does not return is a failed attempt, and
// Lead does not ask it again before it has returned. When fn ends meanwhile, Lead
// abandons the elector half of UnitSlice later: the unit ends as fn did, with the
// elector named beside a failure, and the lease runs out by itself.
func (a *App) Lead(name string, e Elector, fn func(context.Context) error) *App {
	return a.addUnit(name, call.IsNil(e) || fn == nil, false, func() worker.Worker {
		giveBack := func() time.Duration { return max(a.times().unitSlice/2, settle) }
		return worker.NewLeader(name, e, fn, worker.LeaderConfig{Retry: a.cfg.LeaderRetry, GiveBack: giveBack, Log: a.log})
	})
}
