package workflow

import (
	"errors"
	"fmt"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// Compare with errors.Is.
var (
	// ErrWorkflowNotRegistered is returned for a workflow that was never registered
	// with this Manager. It is a mistake in the program.
	ErrWorkflowNotRegistered = errors.New("workflow: workflow not registered")

	// ErrWorkflowAlreadyRegistered is returned by Register for a registered name.
	ErrWorkflowAlreadyRegistered = errors.New("workflow: workflow already registered")

	// ErrEntityNotFound is returned when no entity has that id, or it was deleted. A
	// missing bucket or server is another error.
	ErrEntityNotFound = errors.New("workflow: entity not found")

	// ErrEntityExists is returned by Create when an entity has that id.
	ErrEntityExists = errors.New("workflow: entity already exists")

	// ErrInvalidTransition is returned for a change of phase that the table does not
	// have. The error is usually an *fsm.TransitionError, which says what the table
	// has. From a terminal phase the error is ErrTerminalPhase.
	ErrInvalidTransition = fsm.ErrInvalidTransition

	// ErrTerminalPhase is returned for a change of phase of an entity whose phase is
	// terminal.
	ErrTerminalPhase = errors.New("workflow: entity is in terminal phase")

	// ErrMissingIDField is returned by Register for a struct without a field tagged
	// id.
	ErrMissingIDField = errors.New("workflow: state struct missing field with lifecycle:\"id\" tag")

	// ErrMissingPhaseField is returned by Register for a struct without a field
	// tagged phase.
	ErrMissingPhaseField = errors.New("workflow: state struct missing field with lifecycle:\"phase\" tag")

	// ErrInvalidParticipant is returned by Register for a factory or a struct with
	// another fault: nil, not a pointer to a struct, two fields with one tag, a tag
	// on an unexported field.
	ErrInvalidParticipant = errors.New("workflow: invalid participant")

	// ErrFieldNotOperatorWritable is returned for a field without the tag
	// operator_writable, and for an unknown field.
	ErrFieldNotOperatorWritable = errors.New("workflow: field is not operator_writable")

	// ErrUnknownField is returned for a Match on a name that no field of the workflow
	// has.
	ErrUnknownField = errors.New("workflow: no such field")

	// ErrFieldType is returned for a patch with a value of another type than the
	// field's.
	ErrFieldType = errors.New("workflow: value is not of the field's type")

	// ErrInvalidTransitionsTable is returned by Register for an inconsistent table.
	ErrInvalidTransitionsTable = fsm.ErrInvalidTable

	// ErrUpdateRetriesExhausted is returned when the caller's time is over and other
	// writers were faster at every attempt. Nothing was written. Let fewer processes
	// write one entity.
	ErrUpdateRetriesExhausted = errors.New("workflow: Update retry budget exhausted (persistent CAS contention)")

	// ErrOutcomeUnknown is returned when a write was sent, and the caller's time was
	// over or the connection was closed before the outcome was known. Read the entity
	// before you try again.
	ErrOutcomeUnknown = errors.New("workflow: outcome of the write is unknown")

	// ErrImmutableField is returned when a mutator changed the id or the phase.
	// Nothing was written. Only Transition changes phases.
	ErrImmutableField = errors.New("workflow: field must not be changed here")

	// ErrRevisionMismatch is returned for a write with [IfMatch] when the
	// record has another revision. The error is a [*RevisionError].
	ErrRevisionMismatch = errors.New("workflow: revision does not match")

	// ErrDegraded is returned for a record that the Manager cannot work with: it is
	// not JSON of the registered type, or is in a phase that the table does not have.
	// The error is a [*DegradedError].
	ErrDegraded = errors.New("workflow: record is degraded")

	// ErrInvalidEntityID is returned for an id whose key is not valid in a bucket.
	ErrInvalidEntityID = errors.New("workflow: invalid entity id")

	// ErrAncestorCycle is returned by Ancestors when an entity is its own
	// ancestor.
	ErrAncestorCycle = errors.New("workflow: ancestors form a cycle")

	// ErrNoView is returned for a query that needs a view, in a process that has none: see
	// [WithoutView].
	ErrNoView = errors.New("workflow: not in this process's view")

	// ErrStale is returned by Ready for a view that is not up to date any more.
	ErrStale = errors.New("workflow: view is stale")

	// ErrClosed is returned after Close.
	ErrClosed = errors.New("workflow: manager is closed")
)

// wrap adds to the error of a method what was to be done.
func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf(format+": %w", append(args, *err)...)
	}
}

// RevisionError says which revision was wanted and which one the record has. It wraps
// [ErrRevisionMismatch].
type RevisionError struct {
	Key      string
	Want, Is uint64
}

// Error names the key and both revisions.
func (e *RevisionError) Error() string {
	return fmt.Sprintf("%v: %s is at revision %d, want %d: it has changed meanwhile; read it again",
		ErrRevisionMismatch, e.Key, e.Is, e.Want)
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
