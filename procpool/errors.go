package procpool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrBusy is wrapped by the [*RejectedError] of a query for which every
	// worker was busy and the queue was full.
	ErrBusy = errors.New("every worker is busy and the queue is full")

	// ErrUnavailable is wrapped by the [*RejectedError] of a query that came
	// while there were no workers and starting more had failed too often to be
	// tried again at once.
	ErrUnavailable = errors.New("workers do not start or do not stay, and the breaker is open")

	// ErrDraining is wrapped by the [*RejectedError] of a query that came after
	// the pool was told to drain or to stop, or before it was started.
	ErrDraining = errors.New("the pool takes no queries")

	// ErrCancelled is wrapped by the error of a query that its caller has given
	// up. The context's cause is wrapped too.
	ErrCancelled = errors.New("cancelled")

	// ErrProtocol is wrapped by every [*ProtocolError].
	ErrProtocol = errors.New("the worker broke the protocol")

	// ErrRecycled is the cause in the event of a worker that has served its
	// time; the reason is in its text.
	ErrRecycled = errors.New("recycled")

	// ErrEvicted is the cause in the event of a worker that had to make room,
	// and wrapped by the error of the query that it was busy with.
	ErrEvicted = errors.New("evicted")

	// ErrNoWorker is returned by [Pool.Evict] when no worker can be evicted.
	ErrNoWorker = errors.New("there is no worker to evict")
)

// RejectedError says that the pool did not take a query, and when it is worth
// while to ask again.
type RejectedError struct {
	Pool       string
	RetryAfter time.Duration // an estimate; 0 when there is none
	Err        error         // wraps ErrBusy, ErrUnavailable or ErrDraining
}

// Error says why.
func (e *RejectedError) Error() string {
	s := fmt.Sprintf("%s: rejected: %v", e.Pool, e.Err)
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(" (retry after %v)", e.RetryAfter.Round(time.Millisecond))
	}
	return s
}

// Unwrap returns why.
func (e *RejectedError) Unwrap() error { return e.Err }

// DeadlineError says that a query's deadline has passed. It wraps
// [context.DeadlineExceeded].
type DeadlineError struct {
	Query   string
	Worker  string        // who had it; "" when it was still waiting for a worker
	Elapsed time.Duration // since it was submitted
}

// Error says where it was.
func (e *DeadlineError) Error() string {
	where := "while it waited for a worker"
	if e.Worker != "" {
		where = "while " + e.Worker + " had it"
	}
	return fmt.Sprintf("%s: deadline passed after %v %s", e.Query, e.Elapsed.Round(time.Millisecond), where)
}

// Unwrap returns [context.DeadlineExceeded].
func (*DeadlineError) Unwrap() error { return context.DeadlineExceeded }

// WorkerError is what a worker has answered a query with in place of a result.
// The worker itself is well.
type WorkerError struct {
	Query, Worker string
	Message       string // the worker's own words
}

// Error gives the worker's words.
func (e *WorkerError) Error() string {
	return fmt.Sprintf("%s: %s answered: %s", e.Query, e.Worker, e.Message)
}

// CrashError says that a worker has ended, or closed its connection, with a
// query unanswered or before it was ready.
type CrashError struct {
	Query    string // "" when it had none
	Worker   string
	PID      int
	ExitCode int    // -1 when a signal ended it or it is not known
	Signal   string // SIGKILL; "" for none
	OOM      bool   // the kernel killed it for want of memory, as far as one can tell
	Stderr   string // the end of what it wrote to its standard error
	Err      error  // more about it, nil when there is none
}

// Error says how it ended, with the last line of its standard error.
func (e *CrashError) Error() string {
	var b strings.Builder
	if e.Query != "" {
		b.WriteString(e.Query + ": ")
	}
	fmt.Fprintf(&b, "%s (pid %d) ", e.Worker, e.PID)
	switch {
	case e.OOM:
		b.WriteString("was killed for want of memory")
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
	if last := lastLine(e.Stderr); last != "" {
		fmt.Fprintf(&b, "; its last words: %s", last)
	}
	return b.String()
}

// Unwrap returns Err.
func (e *CrashError) Unwrap() error { return e.Err }

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// ProtocolError says what a worker has sent that it should not have. It wraps
// [ErrProtocol].
type ProtocolError struct {
	Query  string // the query that was lost by it, "" for none
	Worker string
	Err    error // what is wrong: a *wire.TooLongError, a *wire.PartialError, one that wraps wire.ErrNotJSON …
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
