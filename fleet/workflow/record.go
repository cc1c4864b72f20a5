package workflow

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// decode makes a participant from a record, and migrates an old one. The error is a
// *DegradedError.
func (r *registration) decode(e *entry) (Participant, error) {
	p, _, err := r.open(e)
	return p, err
}

// open is decode that also returns the JSON that it decoded: the record's own, or its
// migrated form.
func (r *registration) open(e *entry) (p Participant, data []byte, err error) {
	if err := r.foreign(e); err != nil {
		return nil, nil, err
	}
	// The type's own methods may panic on unexpected values, and the view's
	// goroutine must go on.
	err = call.Do("participant", func() (err error) {
		if p, data, err = r.parse(e.version, e.data); err != nil {
			return err
		}
		if key := r.sample.KVKey(p.EntityID()); key != e.key {
			return fmt.Errorf("its id is %q, which belongs under the key %q", p.EntityID(), key)
		}
		_, _ = p.Phase(), p.ParentEntityID()
		return nil
	})
	if err != nil {
		return nil, nil, r.degraded(e, err)
	}
	return p, data, nil
}

// foreign returns an error for a record that another workflow keeps under a key of
// this one, nil otherwise.
func (r *registration) foreign(e *entry) error {
	if e.workflow != "" && e.workflow != r.workflow {
		return r.degraded(e, fmt.Errorf("it is an entity of workflow %q: give each workflow of a bucket keys of its own", e.workflow))
	}
	return nil
}

func (r *registration) degraded(e *entry, err error) *DegradedError {
	return &DegradedError{Bucket: r.name, Key: e.key, Revision: e.revision, Err: err}
}

func (r *registration) parse(versionText string, data []byte) (Participant, []byte, error) {
	version, err := versionOf(versionText)
	if err != nil {
		return nil, nil, err
	}
	if version < r.version {
		if data, err = r.migrate(version, data); err != nil {
			return nil, nil, fmt.Errorf("migrate from version %d to %d: %w", version, r.version, err)
		}
	}
	p := r.factory()
	if err := json.Unmarshal(data, p); err != nil {
		err = fmt.Errorf("it is not a record of %q: %w", r.workflow, err)
		if version > r.version {
			err = fmt.Errorf("it is of version %d, and this process knows versions up to %d: update the program: %w", version, r.version, err)
		}
		return nil, nil, err
	}
	if string(data) == "null" {
		return nil, nil, errors.New("it is the JSON value null")
	}
	return p, data, nil
}

func versionOf(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	version, err := strconv.Atoi(text)
	if err != nil || version < 0 {
		return 0, fmt.Errorf("its version is %q, want a number", text)
	}
	return version, nil
}

func (r *registration) encode(p Participant) (data []byte, err error) {
	err = call.Do("participant", func() (err error) {
		data, err = json.Marshal(p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("encode a record of %q: %w", r.workflow, err)
	}
	return data, nil
}

// revise returns the JSON base with the changes between before and the encoding of p. Members
// that the program does not know stay.
func (r *registration) revise(base, before []byte, p Participant) ([]byte, error) {
	after, err := r.encode(p)
	if err != nil {
		return nil, err
	}
	return r.shape.Apply(base, before, after), nil
}

// rephase returns the JSON of a record in another phase of the table.
func (r *registration) rephase(base []byte, phase string) []byte {
	return r.shape.Set(base, r.fields.phase.name, r.quoted[phase])
}

// active reports whether the phase is not terminal. A phase that the table does not
// have is active.
func (r *registration) active(phase string) bool {
	return !r.table.Has(phase) || !r.table.IsTerminal(phase)
}

// unknownPhase returns an error for a phase that the table does not have, nil
// otherwise.
func (r *registration) unknownPhase(e *entry, phase string) error {
	if r.table.Has(phase) {
		return nil
	}
	return r.degraded(e, fmt.Errorf("the table of %q does not know its phase %q", r.workflow, phase))
}
