package host

import "github.com/pleme-io/lifecycle-go/fsm"

// State is where in its life a hosted worker is, as its record stores it. It says
// what is wanted: a worker that is Running is one that some host is to run. To
// package workflow it is the entity's phase.
type State string

// The states. Deploying, Failed and Deleting are not in the seed's table.
const (
	StateDeploying State = "Deploying" // its record exists, its consumer may not yet
	StateRunning   State = "Running"   // it is to handle messages
	StateStopped   State = "Stopped"   // it is to keep what it has and handle nothing
	StateFailed    State = "Failed"    // it is to run, and the host that should cannot load it
	StateDeleting  State = "Deleting"  // it finishes what it handles, and goes
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

// AddedEdges returns the edges of [States] that the seed's drawing does not
// have.
func AddedEdges() []fsm.Edge[State] {
	drawn := map[fsm.Edge[State]]bool{
		{From: StateStopped, To: StateRunning}: true,
		{From: StateRunning, To: StateStopped}: true,
	}
	var added []fsm.Edge[State]
	for _, e := range States().Edges() {
		if !drawn[e] {
			added = append(added, e)
		}
	}
	return added
}

// wanted reports whether a worker in state s is to be run.
func (s State) wanted() bool {
	return s == StateDeploying || s == StateRunning || s == StateFailed
}
