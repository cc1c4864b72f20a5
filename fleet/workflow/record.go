package workflow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// entry is one revision of one key.
type entry struct {
	key      string
	revision uint64
	at       time.Time // when the server stored it
	header   nats.Header
	data     []byte
	guessed  bool   // when its phase began is by this process's clock, not the server's
	known    *known // what the view knows of it, in place of headers; nil for an entry of the server
}

// known is what the view knows of an entry that it has decoded.
type known struct {
	phase, version string
	since          int64  // unix nanoseconds
	timers, keys   string // as in the headers
}

// timers returns the entity's timers as they are stored.
func (e *entry) timers() string {
	if e.known != nil {
		return e.known.timers
	}
	return e.get(headerTimers)
}

// version returns the version of the record.
func (e *entry) version() string {
	if e.known != nil {
		return e.known.version
	}
	return e.get(headerVersion)
}

// deleted reports whether the entry is a deletion: by this package, by the nats
// command or by the bucket's limits.
func (e *entry) deleted() bool {
	op := e.get(headerOperation)
	return op == "DEL" || op == "PURGE" || e.get("Nats-Marker-Reason") != ""
}

// erased reports whether the entry took the place of earlier writes, and another program
// or a limit of the bucket wrote it.
func (e *entry) erased() bool {
	_, known := e.predecessor()
	return !known && (e.get(headerOperation) == "PURGE" || e.get("Nats-Marker-Reason") != "")
}

// since returns when the phase was entered.
func (e *entry) since() time.Time {
	if e.known != nil {
		return time.Unix(0, e.known.since)
	}
	if ns, err := strconv.ParseInt(e.get(headerSince), 10, 64); err == nil {
		return time.Unix(0, ns)
	}
	return e.at
}

// predecessor returns the revision that the write was decided on. Records written by
// other programs do not have it.
func (e *entry) predecessor() (uint64, bool) {
	on := e.get(headerOn)
	if on == "" {
		on = e.get(headerExpected) // of a program before there were journals
	}
	n, err := strconv.ParseUint(on, 10, 64)
	return n, err == nil
}

// source returns what caused the transition.
func (e *entry) source() TransitionSource {
	if s := TransitionSource(e.get(headerSource)); s.valid() {
		return s
	}
	return TransitionSourceFramework
}

// note returns the transition's note.
func (e *entry) note() string {
	raw := e.get(headerNote)
	if text, err := url.PathUnescape(raw); err == nil {
		return text
	}
	return raw
}

// decode makes a participant from a record, and migrates an old one. The error is a
// *DegradedError.
func (r *registration) decode(e *entry) (Participant, error) {
	p, _, err := r.open(e)
	return p, err
}

// open is decode that also returns the JSON that it decoded: the record's, or what
// became of it in a migration.
func (r *registration) open(e *entry) (p Participant, data []byte, err error) {
	if err := r.foreign(e); err != nil {
		return nil, nil, err
	}
	// The type's own methods may panic on unexpected values, and the view's
	// goroutine must go on.
	err = call.Do("participant", func() (err error) {
		if p, data, err = r.parse(e.version(), e.data); err != nil {
			return err
		}
		if key := r.sample.KVKey(p.EntityID()); key != e.key {
			return fmt.Errorf("its id is %q, which belongs under the key %q", p.EntityID(), key)
		}
		return askAll(p)
	})
	if err != nil {
		return nil, nil, r.degraded(e, err)
	}
	return p, data, nil
}

// foreign returns an error for a record that another workflow keeps under a key of
// this one, nil otherwise.
func (r *registration) foreign(e *entry) error {
	if of := e.get(headerWorkflow); of != "" && of != r.workflow {
		return r.degraded(e, fmt.Errorf("it is an entity of workflow %q: give each workflow of a bucket keys of its own", of))
	}
	return nil
}

// askAll calls the methods that the view will call, where a panic is recovered.
func askAll(p Participant) error {
	_, _, _ = p.EntityID(), p.Phase(), p.ParentEntityID()
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
		if data, err = migrate(r.migrate, version, data); err != nil {
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

// encode returns the JSON of a participant.
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

// revise returns the JSON base with the changes that made p of the participant whose
// encoding was before. What the program does not know stays.
func (r *registration) revise(base, before []byte, p Participant) ([]byte, error) {
	after, err := r.encode(p)
	if err != nil {
		return nil, err
	}
	data := r.shape.Apply(base, before, after)
	// The program's own functions may read the result in another way.
	if r.shape.Custom() && !r.reads(data, after) {
		return after, nil
	}
	return data, nil
}

// reads reports whether data decodes to the participant whose encoding is want.
func (r *registration) reads(data, want []byte) bool {
	var p Participant
	err := call.Do("participant", func() (err error) {
		p, _, err = r.parse(strconv.Itoa(r.version), data)
		return err
	})
	if err != nil {
		return false
	}
	again, err := r.encode(p)
	return err == nil && bytes.Equal(again, want)
}

// rephase returns the JSON of a record in another phase of the table.
func (r *registration) rephase(base []byte, phase string) []byte {
	return r.shape.Set(base, r.fields.phase.name, r.quoted[phase])
}

// migrate calls the program's function and recovers a panic.
func migrate(fn func(int, []byte) ([]byte, error), from int, data []byte) (out []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("it panicked: %v", v)
		}
	}()
	return fn(from, data)
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

// change is the metadata that a write stores with the record.
type change struct {
	op     string // the operation's id
	moved  bool   // this write enters the phase: it changes, or the edge is a self-edge
	from   string
	to     string // the phase to enter, when it moved
	source TransitionSource
	note   string
	since  time.Time // when the phase was entered, for a write that keeps it
	purge  bool      // this deletion removes the earlier writes from the bucket
	fired  string    // the timer that fires with this write
	timers string    // the header of the entity's timers after it
	keys   string    // the header of its idempotency keys
}
