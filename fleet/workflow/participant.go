package workflow

import (
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/trace"
)

// Participant is an entity: plain data with these methods. It is stored as JSON, so
// fields that JSON leaves out are empty after the next read.
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

	// IsTerminal reports whether the phase is terminal: see [DefaultIsTerminal]. The
	// Manager does not call it: the table decides whether an entity is active, and
	// an entity in a phase that the table does not have is degraded and active.
	IsTerminal() bool

	// KVBucket returns the name of the bucket for entities of this type, the same
	// for every instance. The Manager does not create the bucket: declare it to the
	// broker, see [Bucket].
	KVBucket() string

	// KVKey returns the key of an entity in the bucket. It must depend only on
	// entityID and return a different key for each: it is called on a sample whose
	// other fields are empty.
	KVKey(entityID string) string

	// ParentEntityID returns the id of the parent, which may be of another
	// workflow, or "" for none. It must depend on stored fields only, and not on the
	// phase: the view takes over the parent when a write changes the phase alone.
	// Register finds most types that do otherwise, and decodes their records for
	// each change.
	ParentEntityID() string
}

// Transitions is the table of a workflow: its phases, and the phases that each may
// change to. A phase that may change to none is terminal.
type Transitions = fsm.Table[string]

// DefaultIsTerminal is the usual body of [Participant].IsTerminal. It reports whether
// p's phase is terminal in the table. A phase that the table does not have is not
// terminal.
func DefaultIsTerminal(p Participant, transitions Transitions) bool {
	return transitions.Has(p.Phase()) && transitions.IsTerminal(p.Phase())
}

// TransitionSource says what caused a transition. The constants are the only valid
// values.
type TransitionSource string

const (
	// TransitionSourceRule is the action of a rule.
	TransitionSourceRule TransitionSource = "rule"
	// TransitionSourceOperator is a person, through the operators' API.
	TransitionSourceOperator TransitionSource = "operator"
	// TransitionSourceComponent is the component that does the work.
	TransitionSourceComponent TransitionSource = "component"
	// TransitionSourceFramework is the Manager itself: Create, Complete, Fail,
	// Delete and deadlines. It is also the source of records without one, which
	// other programs wrote.
	TransitionSourceFramework TransitionSource = "framework"
)

func (s TransitionSource) valid() bool {
	switch s {
	case TransitionSourceRule, TransitionSourceOperator, TransitionSourceComponent, TransitionSourceFramework:
		return true
	}
	return false
}

// PhaseDeleted is the To of the event of an entity's deletion.
const PhaseDeleted = "<deleted>"

// TransitionEvent is one entry of an entity's history.
type TransitionEvent struct {
	// From is the phase before, "" for the creation.
	From string `json:"from"`
	// To is the phase after, [PhaseDeleted] for the deletion.
	To string `json:"to"`
	// At is when the server stored it.
	At time.Time `json:"at"`
	// Revision is the revision of the entity's record that the write made.
	Revision uint64 `json:"revision"`
	// Triggered says what caused it.
	Triggered TransitionSource `json:"triggered"`
	// Note is free text; for Fail the reason.
	Note string `json:"note,omitempty"`
	// Pause is "pause" or "resume" for [Manager.Pause] and [Manager.Resume], and "" for a
	// change of phase. From and To are the entity's phase then.
	Pause string `json:"pause,omitempty"`
	// Trace is the trace that the write belongs to: see [Trace].
	Trace trace.Context `json:"trace,omitzero"`
}

// WorkflowDef describes a registered workflow.
type WorkflowDef struct {
	// Workflow is its name.
	Workflow string `json:"workflow"`
	// Transitions is its table.
	Transitions Transitions `json:"transitions"`
	// KVBucket is the bucket of its entities.
	KVBucket string `json:"kv_bucket"`
	// OperatorWritableFields are the JSON names of the fields that operators
	// may patch, sorted.
	OperatorWritableFields []string `json:"operator_writable_fields"`
	// IndexedFields are the JSON names of the fields whose Match an index answers,
	// sorted.
	IndexedFields []string `json:"indexed_fields"`
	// Version is the version of the records that this process writes.
	Version int `json:"version"`
	// Deadlines are the edges that [Manager.Deadlines] takes.
	Deadlines []Deadline `json:"deadlines,omitempty"`
	// Completion is the phase of [WithCompletion], or "".
	Completion string `json:"completion,omitempty"`
	// Hooks are the names of its hooks, in the order of registration.
	Hooks []string `json:"hooks,omitempty"`
}

// Deadline says that an entity that has been in phase From for the time After is
// moved to To.
type Deadline struct {
	From  string        `json:"from"`
	To    string        `json:"to"`
	After time.Duration `json:"after"`
}
