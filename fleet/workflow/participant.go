package workflow

import (
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// Participant is what an entity has to be: plain data with these methods. It is
// stored as JSON; what JSON leaves out is not there after the next read.
type Participant interface {
	// EntityID identifies the entity in its workflow. It must return the field
	// that is tagged id.
	EntityID() string

	// Workflow returns the name that the type was registered under. It is the
	// same for every instance.
	Workflow() string

	// Phase returns the current phase. It must return the field that is tagged
	// phase.
	Phase() string

	// IsTerminal reports whether nothing follows the phase: see
	// [DefaultIsTerminal]. The Manager does not ask it: whether an entity is
	// active is decided by the table, and a phase that the table does not know
	// is degraded and not terminal.
	IsTerminal() bool

	// KVBucket returns the name of the bucket that entities of this type live
	// in, the same for every instance. The Manager does not create it: declare
	// it to the broker, see [Bucket].
	KVBucket() string

	// KVKey returns the key of an entity in the bucket. It must depend on
	// entityID alone, and give each another key: it is called on a sample whose
	// other fields are empty.
	KVKey(entityID string) string

	// ParentEntityID returns the id of the parent, which may be of another
	// workflow, or "" for none.
	ParentEntityID() string
}

// Transitions is the table of a workflow: phases, and what may follow each. A
// phase with nothing after it is terminal.
type Transitions = fsm.Table[string]

// DefaultIsTerminal is the usual body of [Participant].IsTerminal: whether
// nothing follows p's phase in the table. A phase that the table does not know
// is not terminal.
func DefaultIsTerminal(p Participant, transitions Transitions) bool {
	return transitions.Has(p.Phase()) && transitions.IsTerminal(p.Phase())
}

// TransitionSource says what caused a transition. The set is closed: a source
// that is not one of the constants is an error.
type TransitionSource string

const (
	// TransitionSourceRule is a rule's action.
	TransitionSourceRule TransitionSource = "rule"
	// TransitionSourceOperator is a person's, through the operators' API.
	TransitionSourceOperator TransitionSource = "operator"
	// TransitionSourceComponent is the component's that does the work.
	TransitionSourceComponent TransitionSource = "component"
	// TransitionSourceFramework is the Manager's own: Create, Complete, Fail,
	// Delete and deadlines. It also stands for records that say nothing, which
	// others have written.
	TransitionSourceFramework TransitionSource = "framework"
)

func (s TransitionSource) valid() bool {
	switch s {
	case TransitionSourceRule, TransitionSourceOperator, TransitionSourceComponent, TransitionSourceFramework:
		return true
	}
	return false
}

// PhaseDeleted is the To of the event that stands for an entity's deletion.
const PhaseDeleted = "<deleted>"

// TransitionEvent is one entry of an entity's history.
type TransitionEvent struct {
	// From is the phase it left, "" when it was created.
	From string `json:"from"`
	// To is the phase it entered, [PhaseDeleted] for its deletion.
	To string `json:"to"`
	// At is when the server stored it.
	At time.Time `json:"at"`
	// Triggered says what caused it.
	Triggered TransitionSource `json:"triggered"`
	// Note is free text; for Fail the reason.
	Note string `json:"note,omitempty"`
}

// WorkflowDef describes a registered workflow.
type WorkflowDef struct {
	// Workflow is its name.
	Workflow string `json:"workflow"`
	// Transitions is its table.
	Transitions Transitions `json:"transitions"`
	// KVBucket is the bucket that its entities live in.
	KVBucket string `json:"kv_bucket"`
	// OperatorWritableFields are the JSON names of the fields that operators
	// may patch, sorted.
	OperatorWritableFields []string `json:"operator_writable_fields"`
	// IndexedFields are the JSON names of the fields whose Match is answered
	// from an index, sorted.
	IndexedFields []string `json:"indexed_fields"`
	// Version is the version of the records that this process writes.
	Version int `json:"version"`
	// Deadlines are the edges that are taken by themselves.
	Deadlines []Deadline `json:"deadlines,omitempty"`
}

// Deadline says that an entity which has been in phase From for After is moved
// to To.
type Deadline struct {
	From  string        `json:"from"`
	To    string        `json:"to"`
	After time.Duration `json:"after"`
}
