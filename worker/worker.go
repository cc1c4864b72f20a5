// Package worker runs functions, programs and containers as workers. A [Worker] is in
// one of ten statuses, changes it along one table ([Transitions]), and makes an event
// of every change.
//
// [Func] runs a function, [Process] a program, [Container] a container. [Restarter]
// runs one function again and again. [Supervisor] keeps any number of workers alive,
// other supervisors too. [NewReaper] is for PID 1. Four things hold for every kind:
//
//   - [FinalStatus] decides once how a worker ended: from whether it was killed,
//     whether it was asked to stop, and its error.
//   - Done and Err give the same answer to every caller, early, late and any number
//     of times.
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

// Worker is anything with a life. Embed [BaseWorker] to make one.
type Worker interface {
	// Name tells it from its siblings.
	Name() string
	// Start begins its life, which lasts until it ends by itself, Stop is
	// called or ctx is cancelled. It returns once the worker has begun, which
	// may be before it is Running. A worker starts once: a second Start, or one
	// after Stop, is an error that wraps [ErrNotStartable].
	Start(ctx context.Context) error
	// Stop asks it to end and waits until it has. When ctx ends first, the worker
	// is killed or abandoned. When Stop returns it is in a terminal status. The
	// error is nil when it ended by itself in time, and says what was killed or
	// abandoned otherwise. Stop may be called before Start, twice, and from many
	// goroutines.
	Stop(ctx context.Context) error
	// Done is closed once the worker is in a terminal status.
	Done() <-chan struct{}
	// Err returns the error that the worker ended with: nil before that, and for a
	// worker that ended without one. It is [ErrInterrupted] when the worker was
	// stopped and returned its context's error.
	Err() error
	// State describes it and its children. It never waits.
	State() State
}

// State describes a worker at one moment. It is plain data: the caller owns it.
type State struct {
	Name      string    `json:"name"`
	Kind      string    `json:"kind"`
	Status    Status    `json:"status"`
	Health    Health    `json:"health,omitempty"`
	Reason    string    `json:"reason,omitempty"`   // why it is pending
	Due       time.Time `json:"due,omitzero"`       // when a pending one will start
	PID       int       `json:"pid,omitempty"`      // of a process
	Exit      *Exit     `json:"exit,omitempty"`     // how it ended; for a supervisor's child or a restarted function that has not, how the instance or run before did
	Restarts  int       `json:"restarts,omitempty"` // how often it was started again
	StartedAt time.Time `json:"startedAt,omitzero"` // when this instance reached Running
	UpdatedAt time.Time `json:"updatedAt,omitzero"` // when its status or health last changed
	Error     string    `json:"error,omitempty"`    // what it ended with
	Children  []State   `json:"children,omitempty"`
}

// KindWorker is the Kind of every event that a worker's change of status makes.
const KindWorker = "worker"

// StateChange is the event of a worker's change of status: Kind is
// [KindWorker], From and To are statuses.
type StateChange = fsm.Event

// PanicError is a panic that was caught: the name of the worker, the value and the
// stack.
type PanicError = call.PanicError

var (
	// ErrGoexit ends a worker whose function called runtime.Goexit in place of
	// returning.
	ErrGoexit = call.ErrGoexit

	// ErrInterrupted marks the error of a worker that ended because it was
	// asked to: its own cancelled context given back, or the signal that we
	// sent. Such a worker is Stopped, not Failed.
	ErrInterrupted = errors.New("interrupted")

	// ErrNotStartable is returned by Start for a worker that has been started or
	// stopped before. Make a new one: a worker starts once.
	ErrNotStartable = errors.New("worker cannot be started again")

	// ErrStartCondition ends a worker whose function returned nil without having
	// met the start condition that it was declared with.
	ErrStartCondition = errors.New("returned before its start condition was met")

	// ErrStopRequested is the context.Cause that a worker sees when Stop was
	// called. A context that was cancelled otherwise keeps its own cause.
	ErrStopRequested = errors.New("stop requested")
)

// AbandonedError says that a worker, hook or drainer did not return by its
// deadline. Its goroutine goes on until it returns by itself: Go cannot end it.
type AbandonedError = call.AbandonedError
