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
// another process has the lease, or when this process could not confirm in time
// that it still has the lease.
var ErrLeadershipLost = worker.ErrLeadershipLost

// Lead adds a function that runs while this process leads. It runs in at most one
// process at a time:
//
//   - The unit asks e for the lease every LeaderRetry, and runs fn when it has it.
//   - While fn runs, the unit renews the lease each third of its time. It cancels
//     fn's context with [ErrLeadershipLost] when another process has the lease, or
//     when two thirds of the time have passed since it began the last successful
//     attempt. fn then has the last third to return, and the unit campaigns again.
//   - When fn has not returned as the lease runs out, the unit fails with fn's stack
//     and stops the App, because another process may now do the same work. If even a
//     moment of that does harm, make the store refuse writers with an old fencing
//     token; no lease can prevent it.
//   - When fn returns by itself, the unit ends as with [App.Go]: nil means that it is
//     done, an error stops the App. The unit then releases the lease.
//
// A process that does not lead may be ready: the unit is running from the start,
// and its child is pending until it leads. While the App drains, no term begins. A
// function that leads goes on until the App is stopping, unless it watches [Draining]
// and returns. The unit releases the lease when the function has returned. When the
// App abandons the function, the lease stays until it runs out.
//
// When an elector ignores its context and does not return, the attempt has failed,
// and the unit does not ask it again before it has returned. When fn ends meanwhile,
// the unit abandons the elector after half of UnitSlice and ends as fn did; an error
// also names the elector. The lease then runs out by itself.
func (a *App) Lead(name string, e Elector, fn func(context.Context) error) *App {
	isNil := missing("Lead", argument{"elector", call.IsNil(e)}, argument{"function", fn == nil})
	return a.addUnit(kindUnit, name, isNil, func() worker.Worker {
		giveBack := func() time.Duration { return max(a.times().UnitSlice/2, settle) }
		return worker.NewLeader(name, e, fn, worker.LeaderConfig{Retry: a.cfg.LeaderRetry, GiveBack: giveBack, Logger: a.log})
	})
}
