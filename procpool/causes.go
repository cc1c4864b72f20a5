package procpool

import (
	"errors"
	"slices"
)

// Cause says why a worker process has ended.
type Cause string

// The causes.
const (
	CauseStart       Cause = "start"       // it ended before it was ready, or failed its trial
	CauseIdle        Cause = "idle"        // it ended by itself while it had no query
	CauseQuery       Cause = "query"       // it ended by itself while it had a query
	CauseMemory      Cause = "memory"      // the kernel most likely killed it for lack of memory
	CauseProtocol    Cause = "protocol"    // it broke the wire contract
	CauseHealth      Cause = "health"      // it has not answered a health check
	CauseWrite       Cause = "write"       // it did not take a message in time
	CauseUnconfirmed Cause = "unconfirmed" // it has not confirmed a cancel
	CauseRecycled    Cause = "recycled"    // it reached a limit of Config.Recycle
	CauseEvicted     Cause = "evicted"     // it made room
	CauseReloaded    Cause = "reloaded"    // Pool.Reload has replaced it
	CauseAlone       Cause = "alone"       // it was the extra worker, and no query has to run alone; see Poison
	CauseShutdown    Cause = "shutdown"    // the pool has stopped
)

var causes = [...]Cause{
	CauseStart, CauseIdle, CauseQuery, CauseMemory, CauseProtocol, CauseHealth, CauseWrite, CauseUnconfirmed,
	CauseRecycled, CauseEvicted, CauseReloaded, CauseAlone, CauseShutdown,
}

// Causes returns all causes.
func Causes() []Cause { return slices.Clone(causes[:]) }

var (
	errHealth      = errors.New("it has not answered a health check")
	errUnconfirmed = errors.New("it has not confirmed a cancel")
)

// causeLocked returns why the worker has ended. why is nil when the pool asked it to.
func (w *proc) causeLocked(why error) Cause {
	var crash *CrashError
	oom := errors.As(why, &crash) && crash.OOM
	for _, c := range []struct {
		cause Cause
		is    bool
	}{
		{CauseStart, why != nil && (w.readyAt.IsZero() || w.trial)},
		{CauseProtocol, errors.Is(why, ErrProtocol)},
		{CauseHealth, errors.Is(w.broke, errHealth)},
		{CauseWrite, w.broke != nil},
		{CauseMemory, oom},
		{CauseQuery, why != nil && !w.idle()},
		{CauseIdle, why != nil},
		{CauseUnconfirmed, errors.Is(w.cause, errUnconfirmed)},
		{CauseReloaded, errors.Is(w.cause, ErrReloaded)},
		{CauseRecycled, errors.Is(w.cause, ErrRecycled)},
		{CauseEvicted, errors.Is(w.cause, ErrEvicted)},
		{CauseAlone, errors.Is(w.cause, errAlone)},
	} {
		if c.is {
			return c.cause
		}
	}
	return CauseShutdown
}
