package workflow

import (
	"errors"
	"fmt"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// Compare with errors.Is.
var (
	// ErrWorkflowNotRegistered is returned for a workflow that was never
	// registered with this Manager: a mistake in the program.
	ErrWorkflowNotRegistered = errors.New("lifecycle: workflow not registered")

	// ErrWorkflowAlreadyRegistered is returned by Register for a name that is
	// taken.
	ErrWorkflowAlreadyRegistered = errors.New("lifecycle: workflow already registered")

	// ErrEntityNotFound is returned when there is no entity of that id, or none
	// any more. That the bucket or the server is not there is another error.
	ErrEntityNotFound = errors.New("lifecycle: entity not found")

	// ErrEntityExists is returned by Create when there is one.
	ErrEntityExists = errors.New("lifecycle: entity already exists")

	// ErrInvalidTransition is returned for a change of phase that the table
	// does not have; the error is an *fsm.TransitionError, mostly, which says
	// what it does have. From a terminal phase it is ErrTerminalPhase.
	ErrInvalidTransition = fsm.ErrInvalidTransition

	// ErrTerminalPhase is returned for a change of phase of an entity whose
	// phase nothing follows.
	ErrTerminalPhase = errors.New("lifecycle: entity is in terminal phase")

	// ErrMissingIDField is returned by Register for a struct that has no field
	// tagged id.
	ErrMissingIDField = errors.New("lifecycle: state struct missing field with lifecycle:\"id\" tag")

	// ErrMissingPhaseField is returned by Register for a struct that has no
	// field tagged phase.
	ErrMissingPhaseField = errors.New("lifecycle: state struct missing field with lifecycle:\"phase\" tag")

	// ErrInvalidParticipant is returned by Register for a factory or a struct
	// that cannot work in any other way than a missing field: nil, not a
	// pointer to a struct, two fields of one tag, a tag on an unexported field.
	ErrInvalidParticipant = errors.New("lifecycle: invalid participant")

	// ErrFieldNotOperatorWritable is returned for a field that is not tagged
	// operator_writable, and for one that does not exist.
	ErrFieldNotOperatorWritable = errors.New("lifecycle: field is not operator_writable")

	// ErrFieldType is returned for a patch whose value is not of the field's
	// type.
	ErrFieldType = errors.New("lifecycle: value is not of the field's type")

	// ErrInvalidTransitionsTable is returned by Register for a table that is
	// not consistent.
	ErrInvalidTransitionsTable = fsm.ErrInvalidTable

	// ErrUpdateRetriesExhausted is returned when the caller's time is over and
	// every attempt met a record that others had changed in between. Nothing
	// was written. Many coordinators at one entity is a matter of the design.
	ErrUpdateRetriesExhausted = errors.New("lifecycle: Update retry budget exhausted (persistent CAS contention)")

	// ErrOutcomeUnknown is returned when a write was sent and the caller's time
	// was over, or the connection closed for good, before it could be told whether it was carried out. Read the
	// entity before anything else.
	ErrOutcomeUnknown = errors.New("lifecycle: outcome of the write is unknown")

	// ErrImmutableField is returned when a mutator changed the id or the phase.
	// Nothing was written. Phases change by Transition alone.
	ErrImmutableField = errors.New("lifecycle: field must not be changed here")

	// ErrRevisionMismatch is returned for a write with [IfMatch] when the
	// record has another revision. The error is a [*RevisionError].
	ErrRevisionMismatch = errors.New("lifecycle: revision does not match")

	// ErrDegraded is returned for a record that cannot be worked with: it is not
	// JSON of the registered type, of a newer version, or in a phase that the
	// table does not know. The error is a [*DegradedError].
	ErrDegraded = errors.New("lifecycle: record is degraded")

	// ErrInvalidEntityID is returned for an id whose key a bucket cannot have.
	ErrInvalidEntityID = errors.New("lifecycle: invalid entity id")

	// ErrAncestorCycle is returned by Ancestors when an entity is its own
	// ancestor.
	ErrAncestorCycle = errors.New("lifecycle: ancestors form a cycle")

	// ErrClosed is returned after Close.
	ErrClosed = errors.New("lifecycle: manager is closed")
)

// RevisionError says which revision was wanted and which one there is. It wraps
// [ErrRevisionMismatch].
type RevisionError struct {
	Key      string
	Want, Is uint64
}

// Error names the key and both revisions.
func (e *RevisionError) Error() string {
	return fmt.Sprintf("%v: %s is at revision %d, want %d: somebody has changed it; read it again", ErrRevisionMismatch, e.Key, e.Is, e.Want)
}

// Unwrap returns [ErrRevisionMismatch].
func (e *RevisionError) Unwrap() error { return ErrRevisionMismatch }

// DegradedError says what is wrong with a record. It wraps [ErrDegraded].
type DegradedError struct {
	Bucket, Key string
	Revision    uint64
	Err         error
}

// Error names the record and what is wrong with it.
func (e *DegradedError) Error() string {
	return fmt.Sprintf("%v: %s/%s at revision %d: %v", ErrDegraded, e.Bucket, e.Key, e.Revision, e.Err)
}

// Unwrap returns [ErrDegraded] and what is wrong with the record.
func (e *DegradedError) Unwrap() []error { return []error{ErrDegraded, e.Err} }
