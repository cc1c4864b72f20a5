package workflow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
	"github.com/pleme-io/lifecycle-go/fleet/internal/splice"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Bucket declares a bucket for entities, for broker.Config.Buckets: on disk, with
// the deepest history that a bucket can have, 64 writes of each entity. The caller
// may change the result before declaring it.
func Bucket(name string) jetstream.KeyValueConfig {
	return jetstream.KeyValueConfig{Bucket: name, History: jetstream.KeyValueMaxHistory, Storage: jetstream.FileStorage}
}

// RegisterOption configures a workflow.
type RegisterOption func(*registration)

// WithDeadline adds a deadline: [Manager.Deadlines] moves an entity that has been in
// phase from for the time after to phase to, once. Other writes do not restart the
// time; leaving the phase and entering it again does. A phase has one deadline.
func WithDeadline(from, to string, after time.Duration) RegisterOption {
	return func(r *registration) {
		r.deadlines = append(r.deadlines, Deadline{From: from, To: to, After: after})
	}
}

// WithCompletion names the terminal phase to which [Manager.Complete] moves an entity. A
// table from which more than one terminal phase can be reached needs it, or Complete
// refuses to choose.
func WithCompletion(phase string) RegisterOption {
	return func(r *registration) { r.completes = &phase }
}

// WithVersion sets the version of the records that this process writes, 1 or more,
// and how to read older ones. Without it the version is 0, as is the version of
// records that have none.
//
// migrate gets a record of an older version and returns the current form: JSON in,
// JSON out; it must keep the members that it does not know. The next write of the
// entity, or [Manager.Migrate], stores it.
//
// This process reads a record of a newer version as one of its own, and a write
// changes nothing in it but what the caller changed. A record of a newer version that
// does not decode is degraded. So a new version must keep the name and the type of
// every field that older programs still write: see docs/guides/workflows.md.
func WithVersion(version int, migrate func(from int, record []byte) ([]byte, error)) RegisterOption {
	return func(r *registration) { r.version, r.migrate = version, migrate }
}

type registration struct {
	workflow  string
	factory   func() Participant
	table     Transitions
	deadlines []Deadline
	completes *string // the phase of WithCompletion
	version   int
	migrate   func(int, []byte) ([]byte, error)
	journaled bool // the bucket has a journal
	hooks     []Hook
	viewless  bool // this process does not view it

	name   string      // the bucket's
	sample Participant // for calls of KVKey
	fields *fields
	shape  *splice.Shape
	plain  bool              // a change of phase changes the phase in a record's JSON, and nothing else
	quoted map[string][]byte // the table's phases in JSON
	bucket *bucket
}

// Register declares a workflow, when the program starts. The factory returns a new,
// empty participant, a pointer to a struct. The view of the bucket begins to fill;
// Register does not wait for it, and the server may still be away. See
// [Manager.Ready].
//
// It returns ErrWorkflowAlreadyRegistered for a name that is taken,
// ErrInvalidTransitionsTable for an inconsistent table, ErrMissingIDField,
// ErrMissingPhaseField or ErrInvalidParticipant for a type that cannot work, and
// ErrClosed after Close.
func (m *Manager) Register(workflow string, factory func() Participant, transitions Transitions, opts ...RegisterOption) error {
	r := &registration{workflow: workflow, factory: factory, table: transitions.Clone()}
	for i, opt := range opts {
		if opt == nil {
			return fmt.Errorf("register workflow %q: option %d is nil", workflow, i+1)
		}
		opt(r)
	}
	if err := r.validate(); err != nil {
		return fmt.Errorf("register workflow %q: %w", workflow, err)
	}
	if m.js == nil {
		return fmt.Errorf("register workflow %q: the Manager has no JetStream context: give NewManager a broker's", workflow)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("register workflow %q: %w", workflow, ErrClosed)
	}
	if _, taken := m.registered[workflow]; taken {
		return fmt.Errorf("%w: %q", ErrWorkflowAlreadyRegistered, workflow)
	}
	r.bucket = m.buckets[r.name]
	if r.bucket == nil {
		r.bucket = newBucket(m, r.name)
		m.buckets[r.name] = r.bucket
	}
	r.bucket.view.add(r)
	m.registered[workflow] = r
	return nil
}

func (r *registration) validate() error {
	if r.workflow == "" {
		return fmt.Errorf("%w: its name is empty", ErrInvalidParticipant)
	}
	if r.workflow != strings.TrimSpace(r.workflow) || strings.ContainsFunc(r.workflow, unicode.IsControl) {
		return fmt.Errorf("%w: its name has control characters, or spaces at an end", ErrInvalidParticipant)
	}
	if err := r.table.Validate(); err != nil {
		return err
	}
	if r.factory == nil {
		return fmt.Errorf("%w: the factory is nil", ErrInvalidParticipant)
	}
	return call.Do("factory", func() (err error) {
		r.sample = r.factory()
		if r.fields, err = readFields(r.sample); err != nil {
			return err
		}
		return errors.Join(r.checkSample(), r.checkOptions(), r.checkHooks())
	})
}

// checkSample checks the methods of the type against its tags.
func (r *registration) checkSample() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %T: "+format, append([]any{ErrInvalidParticipant, r.sample}, args...)...))
	}
	if got := r.sample.Workflow(); got != r.workflow {
		fault("Workflow() returns %q, want the name that it is registered under, %q", got, r.workflow)
	}
	const probe = "lifecycle-probe"
	p := r.factory()
	if p == r.sample {
		fault("the factory returned the same value twice, want a new one each time")
		return errors.Join(faults...)
	}
	r.fields.id.of(p).SetString(probe + "-id")
	r.fields.phase.of(p).SetString(probe)
	if got := p.EntityID(); got != probe+"-id" {
		fault("EntityID() does not return the field tagged id (%s)", r.fields.id.name)
	}
	if got := p.Phase(); got != probe {
		fault("Phase() does not return the field tagged phase (%s)", r.fields.phase.name)
	}
	r.name = r.sample.KVBucket()
	if !bucketName.MatchString(r.name) {
		fault("KVBucket() returns %q, want letters, digits, - and _", r.name)
	}
	if r.sample.KVKey("a") == r.sample.KVKey("b") {
		fault("KVKey returns %q for two ids, want another key for each", r.sample.KVKey("a"))
	}
	data, err := json.Marshal(p)
	if err != nil {
		fault("it cannot be stored: %v", err)
		return errors.Join(faults...)
	}
	back := r.factory()
	if json.Unmarshal(data, back) != nil || back.EntityID() != p.EntityID() || back.Phase() != p.Phase() {
		fault("its id or phase is lost in JSON: %s", data)
		return errors.Join(faults...)
	}
	r.checkShape(p, data)
	return errors.Join(faults...)
}

// checkShape finds out how records of the type can be changed, and whether a change of
// phase needs no decoding: see plain. p is a participant and data its encoding.
func (r *registration) checkShape(p Participant, data []byte) {
	r.shape = splice.Of(reflect.TypeOf(p))
	r.quoted = make(map[string][]byte)
	for phase := range r.table {
		r.quoted[phase], _ = json.Marshal(phase) // a string has an encoding
	}
	r.plain = r.shape.Plain(r.fields.phase.name) && r.fields.phase.indexed < 0 && !r.parentByPhase()
	for phase := range r.table {
		r.plain = r.plain && r.phaseAlone(p, data, phase)
	}
}

// phaseAlone reports whether the encoding of a participant in a phase differs from data in the
// phase alone.
func (r *registration) phaseAlone(p Participant, data []byte, phase string) bool {
	r.fields.phase.of(p).SetString(phase)
	want, err := json.Marshal(p)
	changed := r.rephase(data, phase)
	back := r.factory()
	return err == nil && bytes.Equal(changed, want) && json.Unmarshal(changed, back) == nil && back.Phase() == phase
}

// parentByPhase reports whether a participant's parent depends on its phase, as far as
// one whose strings are all set shows it.
func (r *registration) parentByPhase() bool {
	parents := make(map[string]bool)
	err := call.Do("participant", func() error {
		p := r.factory()
		for name, f := range r.fields.byName {
			if f.typ.Kind() == reflect.String {
				f.of(p).SetString("probe-" + name)
			}
		}
		for phase := range r.table {
			r.fields.phase.of(p).SetString(phase)
			parents[p.ParentEntityID()] = true
		}
		return nil
	})
	return err == nil && len(parents) > 1
}

func (r *registration) checkOptions() error {
	var faults []error
	fault := func(kind error, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{kind}, args...)...))
	}
	seen := make(map[string]bool)
	for _, d := range r.deadlines {
		switch {
		case !r.table.IsValidTransition(d.From, d.To):
			fault(ErrInvalidTransitionsTable, "the table has no edge %q -> %q for the deadline", d.From, d.To)
		case d.After <= 0:
			fault(ErrInvalidTransitionsTable, "the deadline %q -> %q is after %v, want a time above zero", d.From, d.To, d.After)
		case seen[d.From]:
			fault(ErrInvalidTransitionsTable, "phase %q has two deadlines, want one", d.From)
		}
		seen[d.From] = true
	}
	if phase := r.completes; phase != nil && !slices.Contains(r.table.TerminalPhases(), *phase) {
		fault(ErrInvalidTransitionsTable, "the completion is %q, want a terminal phase: %s", *phase, strings.Join(r.table.TerminalPhases(), ", "))
	}
	if r.version < 0 {
		fault(ErrInvalidParticipant, "version is %d, want 1 or more", r.version)
	}
	if r.version > 0 && r.migrate == nil {
		fault(ErrInvalidParticipant, "version %d has no function that migrates older records", r.version)
	}
	return errors.Join(faults...)
}

var (
	bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	validKey   = regexp.MustCompile(`^[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*$`)
)

// maxKey is the maximum length of a key in bytes. When a subject does not fit
// into the server's protocol line, 4096 bytes by default, the server closes the
// connection, for all its users.
const maxKey = 1024

// key returns the key of an entity, or an error when it is not valid in a bucket.
func (r *registration) key(entityID string) (string, error) {
	if entityID == "" {
		return "", fmt.Errorf("%w: it is empty", ErrInvalidEntityID)
	}
	var key string
	err := call.Do("KVKey", func() error {
		key = r.sample.KVKey(entityID)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("%w: %q: %w", ErrInvalidEntityID, entityID, err)
	}
	if len(key) > maxKey {
		return "", fmt.Errorf("%w: its key has %d bytes, want %d at most", ErrInvalidEntityID, len(key), maxKey)
	}
	if key == canary.Key {
		return "", fmt.Errorf("%w: %q has the key %q, which is reserved", ErrInvalidEntityID, entityID, key)
	}
	if !validKey.MatchString(key) {
		const want = "letters, digits and - / _ = with single dots between"
		return "", fmt.Errorf("%w: %q has the key %q, want %s", ErrInvalidEntityID, entityID, key, want)
	}
	return key, nil
}

func (r *registration) deadline(phase string) (Deadline, bool) {
	for _, d := range r.deadlines {
		if d.From == phase {
			return d, true
		}
	}
	return Deadline{}, false
}

func (r *registration) def() WorkflowDef {
	completion := ""
	if r.completes != nil {
		completion = *r.completes
	}
	var hooks []string
	for _, h := range r.hooks {
		hooks = append(hooks, h.Name)
	}
	return WorkflowDef{
		Workflow:               r.workflow,
		Transitions:            r.table.Clone(),
		KVBucket:               r.name,
		Version:                r.version,
		OperatorWritableFields: r.fields.names(func(f *field) bool { return f.writable }),
		IndexedFields:          r.fields.names(func(f *field) bool { return f.indexed >= 0 }),
		Deadlines:              slices.Clone(r.deadlines),
		Completion:             completion,
		Hooks:                  hooks,
	}
}

// GetWorkflowDefinition describes a workflow. It returns
// ErrWorkflowNotRegistered when there is none of that name.
func (m *Manager) GetWorkflowDefinition(workflow string) (WorkflowDef, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return WorkflowDef{}, err
	}
	return r.def(), nil
}

// ListWorkflows describes every registered workflow, sorted by name.
func (m *Manager) ListWorkflows() []WorkflowDef {
	regs := m.all()
	defs := make([]WorkflowDef, len(regs))
	for i, r := range regs {
		defs[i] = r.def()
	}
	return defs
}
