package worker

import (
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Status says where in its life a worker is.
type Status string

// The ten statuses. Four of them say how a worker ended: by itself without an
// error (Finished), because it was asked to (Stopped), with an error (Failed), or
// by force because it did not stop when asked (Killed).
const (
	StatusCreated   Status = "Created"   // it exists, and Start was not called
	StatusPending   Status = "Pending"   // something holds it back: a backoff, a rate limit, a breaker
	StatusStarting  Status = "Starting"  // Start was called, initialisation runs
	StatusRunning   Status = "Running"   // it does its work
	StatusSuspended Status = "Suspended" // it pauses, and keeps its resources
	StatusStopping  Status = "Stopping"  // Stop was called or its context cancelled, it winds down
	StatusStopped   Status = "Stopped"   // it ended because it was asked to
	StatusFinished  Status = "Finished"  // it ended by itself, without an error
	StatusFailed    Status = "Failed"    // it ended with an error
	StatusKilled    Status = "Killed"    // it was asked to stop, did not, and was ended by force or abandoned
)

// Transitions returns a copy of the table of every worker.
func Transitions() fsm.Table[Status] { return transitions.Clone() }

// Five edges are not in the original description of the state machine: for a stop that comes
// before a start (Created to Stopped) or during one (Starting to Stopped and to Stopping), a
// stop that ends before it shows (Running to Stopped), and a suspended process that dies
// (Suspended to Failed).
var transitions = fsm.Table[Status]{
	StatusCreated:   {StatusStarting, StatusPending, StatusStopped},
	StatusPending:   {StatusStarting, StatusStopped},
	StatusStarting:  {StatusRunning, StatusFailed, StatusStopping, StatusStopped},
	StatusRunning:   {StatusSuspended, StatusStopping, StatusFinished, StatusFailed, StatusStopped},
	StatusSuspended: {StatusRunning, StatusStopping, StatusFailed},
	StatusStopping:  {StatusStopped, StatusFailed, StatusKilled},
	StatusStopped:   {},
	StatusFinished:  {},
	StatusFailed:    {},
	StatusKilled:    {},
}

// life is the model of the lives of workers.
var life = fsm.NewModel(KindWorker, transitions)

// Terminal reports whether a worker in s has ended.
func (s Status) Terminal() bool { return life.IsTerminal(s) }

// Begun reports whether a worker in s has started: its initialisation is over, or it has
// ended.
func (s Status) Begun() bool {
	return s != StatusCreated && s != StatusPending && s != StatusStarting
}

// FinalStatus decides how a life ended. It is a pure function of three facts:
// whether the worker was killed, whether it was asked to stop, and the error it
// ended with. The first of these that is true decides, with one exception: an
// error that is [ErrInterrupted] is the answer to a request, and means
// [StatusStopped].
func FinalStatus(killed, stopRequested bool, err error) Status {
	switch {
	case killed:
		return StatusKilled
	case call.Is(err, ErrInterrupted):
		return StatusStopped
	case err != nil:
		return StatusFailed
	case stopRequested:
		return StatusStopped
	default:
		return StatusFinished
	}
}

// Health says whether a running worker can do its work. It is independent of the
// status: a process can run and have lost its database.
type Health string

// The healths. A worker that was never probed is [HealthUnknown].
const (
	HealthUnknown   Health = ""
	HealthHealthy   Health = "Healthy"
	HealthUnhealthy Health = "Unhealthy"
)
