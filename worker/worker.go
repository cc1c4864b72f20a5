// Package worker runs functions, programs and containers as workers. A [Worker]
// has one of ten statuses. One table ([Transitions]) defines the allowed changes,
// and every change makes an event.
//
// [Func] runs a function, [Process] a program, [Container] a container.
// [Restarter] runs one function again and again. [Supervisor] keeps any number of
// workers alive, which may be supervisors too. [NewReaper] is for PID 1. Four rules
// hold for every kind:
//
//   - [FinalStatus] decides once how a worker ended, from three facts: whether it
//     was killed, whether it was asked to stop, and its error.
//   - Done and Err give every caller the same answer, at any time after the end
//     and any number of times.
//   - When Stop returns, the worker is in a terminal status. Stop returns by the
//     deadline of its context: a function that does not return is abandoned, named
//     with its stack, and counts as killed.
//   - A panic and a runtime.Goexit are errors.
//
// Two things end the whole process, because Go cannot catch them: a panic in a
// goroutine that the function started by itself, and a fatal error of the runtime
// (concurrent map writes, out of memory).
package worker

import (
	"context"
	"errors"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Worker is a part of a process that starts once and ends once. Embed
// [BaseWorker] to make one.
type Worker interface {
	// Name identifies the worker among its siblings.
	Name() string
	// Start starts the worker. The worker runs until it ends by itself, Stop is
	// called or ctx is cancelled. Start may return before the worker is Running.
	// A worker starts only once: a second Start, and a Start after Stop, return
	// an error that wraps [ErrNotStartable].
	Start(ctx context.Context) error
	// Stop asks the worker to end and waits until it has ended. When ctx ends
	// first, Stop kills or abandons the worker. When Stop returns, the worker is
	// in a terminal status. The error is nil when the worker ended by itself in
	// time; otherwise it says what was killed or abandoned. Stop may be called
	// before Start, twice, and from many goroutines.
	Stop(ctx context.Context) error
	// Done returns a channel that is closed once the worker is in a terminal
	// status.
	Done() <-chan struct{}
	// Err returns the error that the worker ended with. It is nil before the end,
	// and for a worker that ended without an error. It wraps [ErrInterrupted]
	// when the worker was stopped and returned its context's error.
	Err() error
	// State describes the worker and its children. It never waits.
	State() State
}

// State describes a worker at one moment. It is plain data: the caller owns it.
type State struct {
	Name   string    `json:"name"`
	Kind   string    `json:"kind"`
	Status Status    `json:"status"`
	Health Health    `json:"health,omitempty"`
	Reason string    `json:"reason,omitempty"` // why the worker is pending, or starting for so long
	Due    time.Time `json:"due,omitzero"`     // when a pending worker may start
	PID    int       `json:"pid,omitempty"`    // of a process
	// Exit is how the worker ended. While a supervisor's child or a restarted function runs,
	// it is how the instance or the run before it ended.
	Exit      *Exit     `json:"exit,omitempty"`
	Restarts  int       `json:"restarts,omitempty"` // how often it was started again
	StartedAt time.Time `json:"startedAt,omitzero"` // when this instance reached Running
	UpdatedAt time.Time `json:"updatedAt,omitzero"` // when its status or health last changed
	Error     string    `json:"error,omitempty"`    // the error that the worker ended with
	Children  []State   `json:"children,omitempty"`

	// Progress is the last sign of progress that the worker's function has given with
	// [Progress], to within ten seconds; of a server for which several requests wait, when it last
	// finished one or sent something. ProgressGap is the longest time between two of them.
	Progress    time.Time     `json:"progress,omitzero"`
	ProgressGap time.Duration `json:"progressGap,omitempty"`

	Containment *Containment `json:"containment,omitempty"` // of a process that has limits or a cgroup
}

// KindWorker is the Kind of the events of workers.
const KindWorker = "worker"

// StateChange is the event of a worker's change of status. Its Kind is
// [KindWorker]; From and To are statuses.
type StateChange = fsm.Event

// PanicError is a panic that was caught. Its fields are Name, of the worker; Value, the
// argument of panic; and Stack, the goroutine's stack.
type PanicError = call.PanicError

var (
	// ErrGoexit ends a worker whose function called runtime.Goexit instead of
	// returning.
	ErrGoexit = call.ErrGoexit

	// ErrInterrupted marks the error of a worker that ended because it was asked
	// to. The function returned the error of its cancelled context, or the
	// process died of the signal that its worker sent. Such a worker is Stopped,
	// not Failed.
	ErrInterrupted = errors.New("interrupted")

	// ErrNotStartable is returned by Start for a worker that was started or
	// stopped before. Make a new worker: a worker starts only once.
	ErrNotStartable = errors.New("worker cannot be started again")

	// ErrStartCondition ends a worker with a start condition whose function
	// returned nil before it called [MarkStarted].
	ErrStartCondition = errors.New("returned before its start condition was met")

	// ErrStopRequested is the context.Cause that a worker sees after Stop was
	// called. When the context was cancelled in another way, it keeps its own
	// cause.
	ErrStopRequested = errors.New("stop requested")
)

// AbandonedError says that a worker, hook or drainer did not return by its
// deadline. Its goroutine goes on until it returns by itself: Go cannot end it. Its fields
// are the Name of the call; Where, the line at which it was blocked; and Stack, the
// goroutine's stack.
type AbandonedError = call.AbandonedError
