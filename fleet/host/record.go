package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Record is a hosted worker as it is stored.
type Record struct {
	ID          string `json:"id" lifecycle:"id"`
	UID         string `json:"uid"`                     // differs when a worker is created again under the same ID
	State       State  `json:"phase" lifecycle:"phase"` // "phase" is the key in every stored record
	Reason      string `json:"reason,omitempty"`        // why it is Failed
	MIMEType    string `json:"mimeType"`
	Topic       string `json:"topic"`
	Stream      string `json:"stream"` // the stream that has the topic
	Group       string `json:"group,omitempty"`
	OutputTopic string `json:"outputTopic,omitempty"`
	Tenant      string `json:"tenant,omitempty"`
	Key         string `json:"key,omitempty"` // the header with a message's key
	Rate        Rate   `json:"rate,omitzero"`
	Runtime
	Generation int        `json:"generation"` // of the code: 1 at the creation
	Digest     string     `json:"digest"`     // SHA-256 of its code, in hex
	Signature  []byte     `json:"signature,omitempty"`
	Rollout    Rollout    `json:"rollout,omitzero"`
	Candidate  *Candidate `json:"candidate,omitempty"` // the version that gets a share of the messages
	History    []Version  `json:"history"`             // the newest last; the newest MaxHistory
	Dropped    int        `json:"dropped,omitempty"`
	Changed    Change     `json:"changed"` // the last change of the record

	bucket   string
	revision uint64
}

// Runtime is what a version of a worker's code runs with.
type Runtime struct {
	Limits  engine.Limits `json:"limits,omitzero"`
	Env     []string      `json:"env,omitempty"` // names of variables, sorted
	Secrets []string      `json:"secrets,omitempty"`
	HTTP    HTTP          `json:"http,omitzero"`
}

// A Record is an entity of package workflow, so every view of such entities shows
// hosted workers too.
var _ workflow.Participant = (*Record)(nil)

// Workflow is the name under which records are registered: [Kind].
func (*Record) Workflow() string { return Kind }

// EntityID is the worker's id.
func (r *Record) EntityID() string { return r.ID }

// Phase is the State as text.
func (r *Record) Phase() string { return string(r.State) }

// IsTerminal reports whether the worker is Deleted.
func (r *Record) IsTerminal() bool { return r.State == StateDeleted }

// KVBucket is the bucket of the records.
func (r *Record) KVBucket() string { return r.bucket }

// KVKey is the id.
func (*Record) KVKey(id string) string { return id }

// ParentEntityID is empty.
func (*Record) ParentEntityID() string { return "" }

// MaxHistory is how many versions of a worker's code a record keeps for a rollback.
// It keeps fewer when they need more than 24 KiB, and always the newest two.
// Record.Dropped counts the older ones, whose code is removed.
const MaxHistory = 100

// Bounds of a record's history, in bytes, and of the revisions of a record that the bucket
// keeps.
const (
	maxHistoryBytes = 24 << 10
	maxSource       = 512
	maxRevisions    = 64
)

// Version is one generation of a worker's code.
type Version struct {
	Generation int    `json:"generation"`
	Digest     string `json:"digest"`
	// Source is "content", a URL, "rollback", or "settings" for the same code with other limits
	// or variables.
	Source    string    `json:"source"`
	Size      int       `json:"size"`
	By        string    `json:"by,omitempty"`
	At        time.Time `json:"at"`
	Signature []byte    `json:"signature,omitempty"` // of package codesign
	// Rollout says what became of a version that is or was a canary: "canary", "promoted",
	// "rolled back" or "replaced".
	Rollout string `json:"rollout,omitempty"`
}

// Change says who changed a worker, when and why.
type Change struct {
	By   string    `json:"by,omitempty"`
	Note string    `json:"note,omitempty"`
	At   time.Time `json:"at"`
}

// text returns the note and the author in one line.
func (c Change) text() string {
	switch {
	case c.By == "":
		return c.Note
	case c.Note == "":
		return "by " + c.By
	}
	return c.Note + " (by " + c.By + ")"
}

// slot returns the name of the worker's slot. A slot is a group, or one worker without
// a group. It is assigned to a host as one and has one consumer.
func (r *Record) slot() string {
	switch {
	case r.Group == "":
		return "w-" + r.ID
	case r.Tenant == "":
		return "g-" + r.Group
	}
	// The length keeps the names of two tenants and groups apart that are the same together.
	return fmt.Sprintf("t%d-%s-%s", len(r.Tenant), r.Tenant, r.Group)
}

// isGroup reports whether a slot is a group's.
func isGroup(slot string) bool { return !strings.HasPrefix(slot, "w-") }

func (r *Record) addVersion(v Version) {
	if n := len(r.History); n > 0 { // the newest version may have been a canary
		r.Generation = max(r.Generation, r.History[n-1].Generation)
	}
	r.Generation++
	v.Generation = r.Generation
	v.Source, v.By = text.Clip(v.Source, maxSource), text.Clip(v.By, maxSource)
	r.Digest, r.Signature = v.Digest, v.Signature
	r.History = append(r.History, v)
	size, keep := 0, 0
	for _, v := range slices.Backward(r.History) {
		const names = 100 // of the fields, and the numbers
		size += len(v.Digest) + len(v.Source) + len(v.By) + 2*len(v.Signature) + len(v.Rollout) + names
		if keep == MaxHistory || keep >= 2 && size > maxHistoryBytes {
			break
		}
		keep++
	}
	over := len(r.History) - keep
	r.History = r.History[over:]
	r.Dropped += over
}

// version returns the place in the history of the newest version of the code with this
// digest, or with one that begins with these eight digits or more.
func (r *Record) version(digest string) (int, error) {
	found := -1
	for i, v := range slices.Backward(r.History) {
		if len(digest) < 8 || !strings.HasPrefix(v.Digest, strings.ToLower(digest)) {
			continue
		}
		if found >= 0 && r.History[found].Digest != v.Digest {
			return 0, fmt.Errorf("worker %s: %w: more than one digest begins with %s", r.ID, ErrInvalid, digest)
		}
		if found < 0 {
			found = i
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("worker %s to %.80q: %w", r.ID, digest, ErrNoVersion)
	}
	return found, nil
}

func uid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return hex.EncodeToString(b[:])
}

// records stores workers, one key each. It changes them by compare and set, along the
// table.
type records struct {
	kv      jetstream.KeyValue
	manager *workflow.Manager
	table   fsm.Table[State]
}

// newRecords registers the workflow. The caller closes the manager.
func newRecords(js jetstream.JetStream, kv jetstream.KeyValue, log *slog.Logger) (*records, error) {
	s := &records{kv: kv, manager: workflow.NewManager(js, log), table: States()}
	plain := make(workflow.Transitions, len(s.table))
	for from, to := range s.table {
		plain[string(from)] = []string{}
		for _, p := range to {
			plain[string(from)] = append(plain[string(from)], string(p))
		}
	}
	none := func() workflow.Participant { return &Record{bucket: kv.Bucket()} }
	if err := s.manager.Register(Kind, none, plain); err != nil {
		return nil, errors.Join(err, s.manager.Close())
	}
	return s, nil
}

func (s *records) get(ctx context.Context, id string) (*Record, error) {
	if err := checkID("worker id", id); err != nil {
		return nil, err
	}
	var found workflow.Record
	_, err := s.manager.Get(ctx, Kind, id, workflow.RecordTo(&found)) // with every acknowledged write
	if errors.Is(err, workflow.ErrEntityNotFound) {
		return nil, fmt.Errorf("worker %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("worker %s: read record: %w", id, err)
	}
	r, ok := found.Participant.(*Record)
	if !ok {
		err := errors.Join(found.Degraded, errors.New("it is not a record"))
		return nil, fmt.Errorf("record %s, revision %d: %w", id, found.Revision, err)
	}
	return r, r.check(id, found.Revision)
}

// entries returns the newest entry of each key of the bucket.
func (s *records) entries(ctx context.Context, opts ...jetstream.WatchOpt) ([]jetstream.KeyValueEntry, error) {
	watch, err := s.kv.WatchAll(ctx, opts...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = watch.Stop() }()
	var all []jetstream.KeyValueEntry
	for {
		select {
		case entry, ok := <-watch.Updates():
			switch {
			case !ok:
				return nil, errors.New("the connection was closed")
			case entry == nil:
				return all, nil
			}
			all = append(all, entry)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// decode reads a record. The error for an invalid record names its key.
func decode(entry jetstream.KeyValueEntry) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(entry.Value(), r); err != nil {
		return nil, fmt.Errorf("record %s, revision %d: %w", entry.Key(), entry.Revision(), err)
	}
	return r, r.check(entry.Key(), entry.Revision())
}

// check notes the revision of a record. It returns an error for a record of another worker,
// and for one whose names cannot be parts of subjects. No host writes such a record, and a
// host that acted upon it would reach what other workers have stored: a name may be a
// wildcard.
func (r *Record) check(key string, revision uint64) error {
	r.revision = revision
	errs := []error{checkID("id", r.ID), checkID("uid", r.UID)}
	if r.ID != key {
		errs = append(errs, fmt.Errorf("the record belongs to the worker %q", r.ID))
	}
	if r.Tenant != "" {
		errs = append(errs, checkID("tenant", r.Tenant))
	}
	if r.Group != "" {
		errs = append(errs, checkID("group", r.Group))
	}
	if !validPattern(r.Topic) {
		errs = append(errs, fmt.Errorf("topic %.200q: %w", r.Topic, ErrInvalid))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("record %s, revision %d: %w", key, revision, err)
	}
	return nil
}

func (s *records) create(ctx context.Context, r *Record) error {
	r.bucket = s.kv.Bucket()
	err := s.manager.Create(ctx, r, workflow.RevisionTo(&r.revision))
	if errors.Is(err, workflow.ErrEntityExists) {
		return fmt.Errorf("worker %s: %w", r.ID, ErrExists)
	}
	if err != nil {
		return fmt.Errorf("worker %s: write record: %w", r.ID, err)
	}
	return nil
}

// update changes a record by compare and set. It calls change with the stored record,
// and again when another process has changed the record meanwhile. change returns
// false when there is nothing to do. A change of state that the table does not allow
// is an [fsm.TransitionError].
func (s *records) update(
	ctx context.Context, id string, by Change, change func(*Record) (bool, error),
) (*Record, error) {
	for {
		r, err := s.get(ctx, id)
		if err != nil {
			return nil, err
		}
		from := r.State
		ok, err := change(r)
		if err != nil || !ok {
			return r, err
		}
		by.At = time.Now().UTC()
		r.Changed = by
		var revision uint64
		write := func(p workflow.Participant) error {
			stored, ok := p.(*Record)
			if !ok {
				return fmt.Errorf("a %T is not a record", p)
			}
			bucket := stored.bucket
			*stored = *r
			stored.State, stored.bucket = from, bucket // the manager changes the state
			return nil
		}
		err = s.manager.TransitionWith(ctx, Kind, id, string(r.State), workflow.TransitionSourceOperator, by.text(), write,
			workflow.IfMatch(r.revision), workflow.RevisionTo(&revision))
		if err == nil {
			r.revision = revision
			return r, nil
		}
		if errors.Is(err, workflow.ErrEntityNotFound) {
			return nil, fmt.Errorf("worker %s: %w", id, ErrNotFound)
		}
		if hasType[*fsm.TransitionError](err) { // its text names the worker
			return nil, err
		}
		if !errors.Is(err, workflow.ErrRevisionMismatch) { // after a mismatch, call change with the newer record
			return nil, fmt.Errorf("worker %s: write record: %w", id, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// remove removes a record if it has not changed since it was read. Otherwise the
// error wraps ErrNotFound.
func (s *records) remove(ctx context.Context, r *Record) error {
	err := s.manager.Delete(ctx, Kind, r.ID, workflow.IfMatch(r.revision))
	if errors.Is(err, workflow.ErrEntityNotFound) || errors.Is(err, workflow.ErrRevisionMismatch) {
		return fmt.Errorf("worker %s: %w", r.ID, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("worker %s: remove record: %w", r.ID, err)
	}
	return nil
}

// checkID returns an error unless id can be a token of a subject and the name of a
// consumer.
func checkID(what, id string) error {
	if id == "" || len(id) > 100 || id != identity.Token(id) {
		return fmt.Errorf("%s %.120q: %w: want 1 to 100 letters, digits, - and _", what, id, ErrInvalid)
	}
	return nil
}
