package host

import "github.com/pleme-io/lifecycle-go/fsm"

// State is the state of a hosted worker, as its record stores it. It is the wanted
// state: Running means that a host should run the worker. Package workflow calls it
// the entity's phase.
type State string

// The states. Deploying, Failed and Deleting are not in the model's table.
const (
	StateDeploying State = "Deploying" // its record exists; its consumer may not exist yet
	StateRunning   State = "Running"   // it handles messages
	StateStopped   State = "Stopped"   // it handles no messages and keeps its code and state
	StateFailed    State = "Failed"    // it should run, and its host cannot load the code
	StateDeleting  State = "Deleting"  // it finishes its message, and its host removes it
	StateDeleted   State = "Deleted"   // its consumer and its code are gone
)

// States returns the table of a hosted worker's states. An edge from a state to
// itself is a change of code. The caller owns the table.
func States() fsm.Table[State] {
	return fsm.Table[State]{
		StateDeploying: {StateRunning, StateStopped, StateFailed, StateDeleting},
		StateRunning:   {StateRunning, StateStopped, StateFailed, StateDeleting},
		StateStopped:   {StateStopped, StateRunning, StateDeleting},
		StateFailed:    {StateFailed, StateRunning, StateStopped, StateDeleting},
		StateDeleting:  {StateDeleted},
		StateDeleted:   {},
	}
}

// wanted reports whether a host should run a worker in state s.
func (s State) wanted() bool {
	return s == StateDeploying || s == StateRunning || s == StateFailed
}

// leaving reports whether a worker in state s is being deleted, or was.
func (s State) leaving() bool { return s == StateDeleting || s == StateDeleted }
