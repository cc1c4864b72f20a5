// Package worker runs things that have a life of their own and keeps account of
// it: each is a [Worker], in one of ten statuses, that changes along one table
// ([Transitions]) and tells every change to whoever listens.
//
// [Func] runs a function, [Process] a program, [Container] a container;
// [Restarter] runs one function again and again, and [Supervisor] keeps any number
// of workers alive, supervisors too. [NewReaper] is for PID 1. Whatever the kind,
// four things hold:
//
//   - how a life ended is decided once, by [FinalStatus], from whether it was
//     killed, whether it was asked to stop, and its error;
//   - Done and Err can be asked by anybody, early, late and any number of times,
//     with the same answer;
//   - Stop always ends in a terminal status by the deadline of its context: a
//     function that will not return is abandoned, named with its stack, and
//     counts as killed;
//   - a panic and a runtime.Goexit are errors.
//
// What Go cannot do holds here too: a panic in a goroutine that the function
// started by itself, and a fatal error of the runtime (concurrent map writes,
// out of memory), end the whole process.
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
	// Stop asks it to end and waits until it has. When ctx ends first, what is
	// left of it is killed or abandoned; either way it is in a terminal status
	// when Stop returns. The error is nil when it ended by itself in time, and
	// says what was killed or abandoned otherwise. It may be called before
	// Start, twice, and from many goroutines.
	Stop(ctx context.Context) error
	// Done is closed once the worker is in a terminal status.
	Done() <-chan struct{}
	// Err returns what the worker ended with: nil before that and for one that
	// finished or stopped without a word, an error that is [ErrInterrupted] for
	// one that answered a stop with an error that means just this.
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
	Exit      *Exit     `json:"exit,omitempty"`     // how it ended; for a supervisor's child that has not, how the instance before it did
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

// PanicError is a panic that was caught: who, with what, and the stack.
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
	// stopped before. Make a new one: a life is lived once.
	ErrNotStartable = errors.New("worker cannot be started again")

	// ErrStartCondition ends a worker whose function returned nil without having
	// met the start condition that it was declared with.
	ErrStartCondition = errors.New("returned before its start condition was met")

	// ErrStopRequested is the context.Cause that a worker sees when Stop was
	// called. A context cancelled by somebody else keeps its own cause.
	ErrStopRequested = errors.New("stop requested")
)

// AbandonedError says that a worker, hook or drainer did not return by its
// deadline. Its goroutine goes on until it returns by itself: Go cannot end it.
type AbandonedError = call.AbandonedError
