package procpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/stderr"
)

var (
	// ErrBusy is wrapped by the [*RejectedError] of a query for which every
	// worker was busy and the queue was full.
	ErrBusy = errors.New("every worker is busy and the queue is full")

	// ErrUnavailable is wrapped by the [*RejectedError] of a query that came while
	// there were no workers and the pool had stopped starting them for a while,
	// after too many failed starts.
	ErrUnavailable = errors.New("workers do not start, and the breaker is open")

	// ErrPoison is wrapped by every [*PoisonError].
	ErrPoison = errors.New("workers died of this query")

	// ErrDeaths is wrapped by the [*RejectedError] of a query whose caller's queries
	// have killed Poison.Deaths workers.
	ErrDeaths = errors.New("too many workers died of this caller's queries")

	// ErrSessionLost is wrapped by every [*SessionLostError].
	ErrSessionLost = errors.New("the worker of this key has died, and its session with it")

	// ErrDraining is wrapped by the [*RejectedError] of a query that came after
	// the pool was asked to drain or to stop, or before it was started.
	ErrDraining = errors.New("the pool takes no queries")

	// ErrCancelled is wrapped by the error of a query that its caller cancelled. The
	// error also wraps the context's cause.
	ErrCancelled = errors.New("cancelled")

	// ErrProtocol is wrapped by every [*ProtocolError].
	ErrProtocol = errors.New("the worker broke the protocol")

	// ErrRecycled is the cause in the event of a worker that reached a limit of
	// Config.Recycle; its text has the limit.
	ErrRecycled = errors.New("recycled")

	// ErrReloaded is the cause in the event of a worker that [Pool.Reload] has
	// replaced.
	ErrReloaded = errors.New("reloaded")

	// ErrReloading is returned by [Pool.Reload] while another reload runs.
	ErrReloading = errors.New("a reload is in progress")

	// ErrEvicted is the cause in the event of a worker that was evicted. The error
	// of the query that it was busy with wraps it.
	ErrEvicted = errors.New("evicted")

	// ErrNoWorker is returned by [Pool.Evict] when no worker can be evicted.
	ErrNoWorker = errors.New("there is no worker to evict")
)

// RejectedError says that the pool did not take a query, and when to try again.
type RejectedError struct {
	Pool       string
	RetryAfter time.Duration // an estimate; 0 when there is none
	Err        error         // wraps ErrBusy, ErrUnavailable, ErrDraining, ErrPoison or ErrDeaths
}

// Error returns the reason, with the time to wait.
func (e *RejectedError) Error() string {
	s := fmt.Sprintf("%s: rejected: %v", e.Pool, e.Err)
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(" (retry after %v)", e.RetryAfter.Round(time.Millisecond))
	}
	return s
}

// Unwrap returns Err.
func (e *RejectedError) Unwrap() error { return e.Err }

// DeadlineError says that a query's deadline has passed. It wraps
// [context.DeadlineExceeded] and Err.
type DeadlineError struct {
	Query   string
	Worker  string        // the worker that had it; "" when it still waited for one
	Elapsed time.Duration // since it was submitted
	Stacks  string        // what the worker did then, when it can say so (wire.CanStacks); at most 64 KiB
	Err     error         // why the last worker did not start, when none has started since and Worker is ""; else nil
}

// Error says where the query was, with the worker's stacks.
func (e *DeadlineError) Error() string {
	where := "while it waited for a worker"
	if e.Worker != "" {
		where = "while " + e.Worker + " had it"
	}
	s := fmt.Sprintf("%s: deadline passed after %v %s", e.Query, e.Elapsed.Round(time.Millisecond), where)
	if e.Err != nil {
		s += fmt.Sprintf("; the last one did not start: %v", e.Err)
	}
	if e.Stacks != "" {
		s += "; its stacks:\n" + e.Stacks
	}
	return s
}

// Unwrap returns [context.DeadlineExceeded] and Err.
func (e *DeadlineError) Unwrap() []error {
	if e.Err == nil {
		return []error{context.DeadlineExceeded}
	}
	return []error{context.DeadlineExceeded, e.Err}
}

// PoisonError says that workers died of a query, the last one alone with it. See
// [Poison]. It wraps [ErrPoison].
type PoisonError struct {
	Query       string
	Fingerprint string // what [Pool.Release] takes
	Deaths      int    // of workers, of queries with this fingerprint
	// Err is the last death: a [*CrashError] or a [*ProtocolError], or only their text when
	// the pool did not give the query to a worker.
	Err error
}

// Error says how often workers died, and of what the last one did.
func (e *PoisonError) Error() string {
	return fmt.Sprintf("%s: %v: %d with fingerprint %s, the last alone with it: %v",
		e.Query, ErrPoison, e.Deaths, e.Fingerprint, e.Err)
}

// Unwrap returns [ErrPoison] and the last death.
func (e *PoisonError) Unwrap() []error { return []error{ErrPoison, e.Err} }

// SessionLostError says that the worker of a query's [Key] has died, and with it what it
// knew of the key. The next query of the key begins a new session. It wraps
// [ErrSessionLost] and Err.
type SessionLostError struct {
	Query string
	Key   string
	Err   error // how the worker died while it had the query; nil when no worker has had it
}

// Error names the key, and says how the worker died.
func (e *SessionLostError) Error() string {
	s := fmt.Sprintf("%s: key %q: %v", e.Query, e.Key, ErrSessionLost)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns [ErrSessionLost] and Err.
func (e *SessionLostError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrSessionLost}
	}
	return []error{ErrSessionLost, e.Err}
}

// WorkerError is an error that a worker has answered a query with. The worker
// itself is well.
type WorkerError struct {
	Query, Worker string
	Message       string // the worker's text
}

// Error returns the worker's text.
func (e *WorkerError) Error() string {
	return fmt.Sprintf("%s: %s answered: %s", e.Query, e.Worker, e.Message)
}

// CrashError says that a worker has ended, or closed its connection, with a query
// unanswered or before it was ready.
type CrashError struct {
	Query    string // "" when it had none
	Worker   string
	PID      int
	ExitCode int    // -1 when a signal ended it or the code is not known
	Signal   string // SIGKILL; "" for none
	OOM      bool   // the kernel most likely killed it for lack of memory
	Stderr   string // the end of its standard error
	Err      error  // more detail, nil for none
}

// Error says how the worker ended, with the last line of its standard error.
func (e *CrashError) Error() string {
	var b strings.Builder
	if e.Query != "" {
		b.WriteString(e.Query + ": ")
	}
	fmt.Fprintf(&b, "%s (pid %d) ", e.Worker, e.PID)
	switch {
	case e.OOM:
		b.WriteString("was killed for lack of memory")
	case e.Signal != "":
		b.WriteString("died of " + e.Signal)
	case e.ExitCode >= 0:
		fmt.Fprintf(&b, "exited with code %d", e.ExitCode)
	default:
		b.WriteString("closed its connection")
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if last := stderr.LastLine(e.Stderr); last != "" {
		fmt.Fprintf(&b, "; last line of stderr: %s", last)
	}
	return b.String()
}

// Unwrap returns Err.
func (e *CrashError) Unwrap() error { return e.Err }

// ProtocolError says how a worker broke the protocol. It wraps [ErrProtocol].
type ProtocolError struct {
	Query  string // the query that failed because of it, "" for none
	Worker string
	Err    error // what is wrong: a *wire.TooLongError, a *wire.PartialError, an error that wraps wire.ErrNotJSON …
}

// Error says what is wrong.
func (e *ProtocolError) Error() string {
	s := e.Worker + ": " + ErrProtocol.Error() + ": " + e.Err.Error()
	if e.Query != "" {
		s = e.Query + ": " + s
	}
	return s
}

// Unwrap returns [ErrProtocol] and what is wrong.
func (e *ProtocolError) Unwrap() []error { return []error{ErrProtocol, e.Err} }
