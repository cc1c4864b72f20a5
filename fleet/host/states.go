package host

import "github.com/pleme-io/lifecycle-go/fsm"

// Phase is where in its life a hosted worker is, as it is stored. It is what is
// wanted: that a worker is Running means that some host is to run it.
type Phase string

// The phases. Deploying, Failed and Deleting are not in the seed's table.
const (
	PhaseDeploying Phase = "Deploying" // its record exists, its consumer may not yet
	PhaseRunning   Phase = "Running"   // it is to handle messages
	PhaseStopped   Phase = "Stopped"   // it is to keep what it has and handle nothing
	PhaseFailed    Phase = "Failed"    // it is to run, and the host that should cannot load it
	PhaseDeleting  Phase = "Deleting"  // it finishes what it handles, and goes
	PhaseDeleted   Phase = "Deleted"   // its consumer and its code are gone
)

// Phases returns the table that every hosted worker lives by. An edge from a
// phase to itself is a change of code. The caller owns what it gets.
func Phases() fsm.Table[Phase] {
	return fsm.Table[Phase]{
		PhaseDeploying: {PhaseRunning, PhaseStopped, PhaseFailed, PhaseDeleting},
		PhaseRunning:   {PhaseRunning, PhaseStopped, PhaseFailed, PhaseDeleting},
		PhaseStopped:   {PhaseStopped, PhaseRunning, PhaseDeleting},
		PhaseFailed:    {PhaseFailed, PhaseRunning, PhaseStopped, PhaseDeleting},
		PhaseDeleting:  {PhaseDeleted},
		PhaseDeleted:   {},
	}
}

// AddedEdges returns the edges of [Phases] that the seed's drawing does not
// have.
func AddedEdges() []fsm.Edge[Phase] {
	drawn := map[fsm.Edge[Phase]]bool{
		{From: PhaseStopped, To: PhaseRunning}: true,
		{From: PhaseRunning, To: PhaseStopped}: true,
	}
	var added []fsm.Edge[Phase]
	for _, e := range Phases().Edges() {
		if !drawn[e] {
			added = append(added, e)
		}
	}
	return added
}

// wanted reports whether a worker in p is to be run.
func (p Phase) wanted() bool {
	return p == PhaseDeploying || p == PhaseRunning || p == PhaseFailed
}
