package workflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
	"github.com/pleme-io/lifecycle-go/fsm"
)

// DefaultPatience is how long a write keeps trying when the caller's context has
// no deadline.
const DefaultPatience = 30 * time.Second

// Manager stores entities, changes them along their tables and answers queries
// about them. A process needs only one. All methods may be called concurrently.
type Manager struct {
	js      jetstream.JetStream
	log     *slog.Logger
	alarm   alarm           // rings when something comes due earlier than before
	clock   clock           // the server's
	alive   context.Context // ends with Close
	end     context.CancelFunc
	watches sync.WaitGroup // added to under mu, while not closed
	ops     string         // the prefix of the ids of its operations
	lastOp  atomic.Uint64

	mu         sync.RWMutex // guards the fields below
	registered map[string]*registration
	buckets    map[string]*bucket
	closed     bool
}

// NewManager returns a Manager on a JetStream context, such as a broker's. It sends
// nothing before the first Register. A nil logger is slog.Default.
func NewManager(js jetstream.JetStream, logger *slog.Logger) *Manager {
	if logger == nil {
		logger = slog.Default()
	}
	m := &Manager{js: js, log: logger, ops: nuid.Next() + ".", registered: make(map[string]*registration), buckets: make(map[string]*bucket)}
	m.alive, m.end = context.WithCancel(context.Background())
	return m
}

// Close is [Manager.CloseContext] with 10 s.
func (m *Manager) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return m.CloseContext(ctx)
}

// closeTime bounds Close.
const closeTime = 10 * time.Second

// CloseContext ends the views and watches and returns when they have ended. When ctx
// ends first, it returns an error that names the bucket of a view that has not: a
// participant's method does not return. The caller closes the connection. A later call
// waits for what is left. Other calls return ErrClosed afterwards.
func (m *Manager) CloseContext(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	buckets := slices.Collect(maps.Values(m.buckets))
	m.mu.Unlock()
	m.end()
	for _, b := range buckets {
		b.view.end()
	}
	for _, b := range buckets {
		select {
		case <-b.view.done:
		case <-ctx.Done():
			return fmt.Errorf("close: the view of bucket %s has not ended: %w", b.name, context.Cause(ctx))
		}
	}
	ended := make(chan struct{})
	go func() {
		m.watches.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close: a watch has not ended: %w", context.Cause(ctx))
	}
}

// Ready waits until the views have read their buckets. It returns ErrStale for a view
// that has not been up to date for 10 s, because the server or the bucket is away.
//
// In a process that has begun a write, Ready also finds out whether the buckets take
// writes: a server whose disk was full may answer reads and no writes. When nothing was
// stored in a bucket for 10 s, Ready stores a marker under a reserved key, which no
// query and no watch shows.
//
// With
// app.Probe("missions", lifecycle.ProbeFunc(mgr.Ready)) a process becomes ready when
// its queries are answered at once, and stays ready while the answers are true.
func (m *Manager) Ready(ctx context.Context) error {
	for _, r := range m.all() {
		v := r.bucket.view
		if r.blind {
			continue
		}
		if err := v.wait(ctx, nil); err != nil {
			return fmt.Errorf("workflow %q: %w", r.workflow, err)
		}
		if !v.asOf().IsZero() && v.age() > r.bucket.pace.Of(staleTime) {
			return fmt.Errorf("workflow %q: %w", r.workflow, v.late(ErrStale))
		}
	}
	if m.lastOp.Load() == 0 {
		return nil
	}
	for _, b := range m.allBuckets() {
		if err := canary.Check(ctx, m.js, b.name, staleTime); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) registration(workflow string) (*registration, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil, ErrClosed
	}
	r := m.registered[workflow]
	if r == nil {
		return nil, fmt.Errorf("%w: %q", ErrWorkflowNotRegistered, workflow)
	}
	return r, nil
}

// all returns every workflow, sorted by name.
func (m *Manager) all() []*registration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	regs := make([]*registration, 0, len(m.registered))
	for _, r := range m.registered {
		regs = append(regs, r)
	}
	slices.SortFunc(regs, func(a, b *registration) int { return strings.Compare(a.workflow, b.workflow) })
	return regs
}

// allBuckets returns every bucket of the registered workflows.
func (m *Manager) allBuckets() []*bucket {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Values(m.buckets))
}

// Create stores a new entity, in any phase of its table. It returns
// ErrEntityExists when there is an entity of that id. The id of a deleted entity
// may be used again.
func (m *Manager) Create(ctx context.Context, initial Participant, opts ...WriteOption) error {
	if v := reflect.ValueOf(initial); initial == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("create: %w: it is nil", ErrInvalidParticipant)
	}
	r, err := m.registration(initial.Workflow())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	id := initial.EntityID()
	fail := func(err error) error { return fmt.Errorf("create %s %q: %w", r.workflow, id, err) }
	if got, want := fmt.Sprintf("%T", initial), fmt.Sprintf("%T", r.sample); got != want {
		return fail(fmt.Errorf("%w: it is a %s, want a %s", ErrInvalidParticipant, got, want))
	}
	if !r.table.Has(initial.Phase()) {
		return fail(fmt.Errorf("%w: its phase is %q, want one of %s", ErrInvalidTransition, initial.Phase(), strings.Join(r.table.Phases(), ", ")))
	}
	o, err := m.operation(r, id, options(opts), func(cur *entry) (decision, error) {
		if cur != nil && !cur.deleted() {
			return decision{}, ErrEntityExists
		}
		data, err := r.encode(initial)
		d := decision{next: initial, data: data, phase: initial.Phase(), version: strconv.Itoa(r.version)}
		d.change = change{moved: true, source: TransitionSourceFramework}
		return d, err
	}, r.unknown)
	if err == nil {
		o.quick = true
		err = o.run(ctx)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// Get reads an entity from the server. It returns ErrEntityNotFound when there is
// none, and a [*DegradedError] when its record cannot be decoded. It returns, and
// logs, an entity whose phase the table does not have.
//
// The caller owns the result; changing it stores nothing.
func (m *Manager) Get(ctx context.Context, workflow, entityID string) (Participant, error) {
	rec, err := m.Find(ctx, workflow, entityID)
	if err != nil {
		return nil, err
	}
	if rec.Degraded != nil && rec.Participant == nil {
		return nil, fmt.Errorf("get %s %q: %w", workflow, entityID, rec.Degraded)
	}
	return rec.Participant, nil
}

// Update changes an entity: mutator gets it and changes it in place. The mutator
// runs again when another writer was faster, so it must have no other effect, and
// it must not call the Manager. When it returns an error, Update returns that error
// and writes nothing.
//
// Writers of this process take turns at an entity. Updates that wait for the same entity
// become one write, unless they have an option other than [WithKey]: each mutator gets the
// record as the one before left it, on its caller's goroutine, and each caller its own
// result. When another process was faster,
// Update tries again after a random pause until ctx ends (DefaultPatience when it
// has no deadline), and then returns ErrUpdateRetriesExhausted. Other errors:
// ErrEntityNotFound; ErrImmutableField when the mutator changed the id or the phase;
// a [*DegradedError] for a record that cannot be decoded; ErrOutcomeUnknown when the
// server went away during the write and did not come back in time.
func (m *Manager) Update(ctx context.Context, workflow, entityID string, mutator func(Participant) error, opts ...WriteOption) error {
	r, err := m.registration(workflow)
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if mutator == nil {
		return fmt.Errorf("update %s %q: the mutator is nil, want a function that changes the entity", workflow, entityID)
	}
	o, err := m.mutation(r, entityID, options(opts), keepPhase, mutator)
	if err == nil {
		o.joins = o.w.joins()
		err = o.run(ctx)
	}
	if err != nil {
		return fmt.Errorf("update %s %q: %w", workflow, entityID, err)
	}
	return nil
}

// keepPhase is the decision of a write that changes no phase.
func keepPhase(string, *entry) (change, error) { return change{}, nil }

// Transition moves an entity to another phase when the table has that edge from
// the entity's phase at the moment of the write. source and note are stored in the
// same message; History returns them.
//
// It returns ErrTerminalPhase when the entity's phase is terminal,
// ErrInvalidTransition when the table does not have the edge or the phase, and the
// errors of Update.
func (m *Manager) Transition(ctx context.Context, workflow, entityID, newPhase string, source TransitionSource, note string, opts ...WriteOption) error {
	return m.TransitionWith(ctx, workflow, entityID, newPhase, source, note, nil, opts...)
}

// TransitionWith is Transition with a mutator. It runs after the edge was found
// allowed and before the phase changes. Both changes are one write, or none.
func (m *Manager) TransitionWith(ctx context.Context, workflow, entityID, newPhase string, source TransitionSource, note string, mutator func(Participant) error, opts ...WriteOption) error {
	r, err := m.registration(workflow)
	if err != nil {
		return fmt.Errorf("transition: %w", err)
	}
	return m.transition(ctx, r, entityID, source, note, mutator, options(opts), func(string, *entry) (string, error) { return newPhase, nil })
}

// transition moves an entity to the phase that choose returns for its current
// phase. It calls choose for each attempt.
func (m *Manager) transition(ctx context.Context, r *registration, entityID string, source TransitionSource, note string, mutator func(Participant) error, w writing, choose func(from string, cur *entry) (string, error)) error {
	o, err := m.transit(r, entityID, source, note, mutator, w, choose)
	if err == nil {
		err = o.run(ctx)
	}
	return r.untransited(entityID, err)
}

// transit returns the operation of a transition.
func (m *Manager) transit(r *registration, entityID string, source TransitionSource, note string, mutator func(Participant) error, w writing, choose func(from string, cur *entry) (string, error)) (*operation, error) {
	if !source.valid() {
		return nil, fmt.Errorf("its source is %q, want rule, operator, component or framework", source)
	}
	return m.mutation(r, entityID, w, func(from string, cur *entry) (change, error) {
		to, err := choose(from, cur)
		if err != nil {
			return change{}, err
		}
		if !r.table.IsValidTransition(from, to) {
			return change{}, r.refusal(entityID, from, to, cur)
		}
		return change{moved: true, from: from, to: to, source: source, note: note}, nil
	}, mutator)
}

// untransited adds to the error of a transition what was to be moved.
func (r *registration) untransited(entityID string, err error) error {
	if err == nil {
		return nil
	}
	if _, names := errors.AsType[*fsm.TransitionError](err); names { // its text names the entity
		return err
	}
	return fmt.Errorf("transition of %s %q: %w", r.workflow, entityID, err)
}

// refusal returns why the table does not allow an edge.
func (r *registration) refusal(entityID, from, to string, cur *entry) error {
	refused := &fsm.TransitionError{Kind: r.workflow, Name: entityID, From: from, To: to, Allowed: slices.Sorted(slices.Values(r.table[from]))}
	switch {
	case !r.table.Has(to):
		return fmt.Errorf("%w: the table has no phase %q, it has %s", refused, to, strings.Join(r.table.Phases(), ", "))
	case !r.table.Has(from):
		return errors.Join(r.unknownPhase(cur, from), refused)
	case r.table.IsTerminal(from):
		return fmt.Errorf("%w: %q, which is terminal", ErrTerminalPhase, from)
	}
	return refused
}

// Complete moves an entity to the first terminal phase, by name, that the table
// allows from its phase. It decides on the record that the write replaces, so no
// other write can come in between. It returns ErrTerminalPhase when the entity's
// phase is terminal, and ErrInvalidTransition when the table allows no terminal
// phase from it.
func (m *Manager) Complete(ctx context.Context, workflow, entityID string, opts ...WriteOption) error {
	r, err := m.registration(workflow)
	if err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	return m.transition(ctx, r, entityID, TransitionSourceFramework, "", nil, options(opts), func(from string, cur *entry) (string, error) {
		if err := r.unknownPhase(cur, from); err != nil {
			return "", errors.Join(err, fmt.Errorf("%w: from %q", ErrInvalidTransition, from))
		}
		if r.table.IsTerminal(from) {
			return "", fmt.Errorf("%w: %q", ErrTerminalPhase, from)
		}
		for _, to := range r.table.TerminalPhases() {
			if r.table.IsValidTransition(from, to) {
				return to, nil
			}
		}
		return "", fmt.Errorf("%w: no terminal phase may follow %q, only %s", ErrInvalidTransition, from, strings.Join(r.table[from], ", "))
	})
}

// Fail moves an entity to the phase "failed" with the reason as its note. It
// returns ErrInvalidTransition when the table has no such phase, and an error when
// the reason is empty.
func (m *Manager) Fail(ctx context.Context, workflow, entityID, reason string, opts ...WriteOption) error {
	r, err := m.registration(workflow)
	if err != nil {
		return fmt.Errorf("fail: %w", err)
	}
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("fail %s %q: the reason is empty: the history needs one", workflow, entityID)
	}
	return m.transition(ctx, r, entityID, TransitionSourceFramework, reason, nil, options(opts), func(string, *entry) (string, error) {
		if !r.table.Has("failed") || !r.table.IsTerminal("failed") {
			return "", fmt.Errorf("%w: the table of %q has no terminal phase \"failed\": use Transition", ErrInvalidTransition, workflow)
		}
		return "failed", nil
	})
}

// Delete removes an entity in any phase, also one whose record is degraded, but
// not an entity of another workflow. Its history stays, as far as the bucket
// keeps it, with the deletion as the last event. Delete returns ErrEntityNotFound
// when the entity does not exist.
func (m *Manager) Delete(ctx context.Context, workflow, entityID string, opts ...WriteOption) error {
	r, err := m.registration(workflow)
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if err := m.remove(ctx, r, entityID, options(opts), change{}); err != nil {
		return fmt.Errorf("delete %s %q: %w", workflow, entityID, err)
	}
	return nil
}

// remove deletes an entity. c has the note, and whether to purge its earlier writes.
func (m *Manager) remove(ctx context.Context, r *registration, entityID string, w writing, c change) error {
	o, err := m.operation(r, entityID, w, func(cur *entry) (decision, error) {
		if cur == nil || cur.deleted() {
			return decision{}, ErrEntityNotFound
		}
		if err := r.foreign(cur); err != nil {
			return decision{}, err
		}
		c.from, c.source = "", TransitionSourceFramework
		if p, err := r.decode(cur); err == nil {
			c.from = p.Phase()
		}
		return decision{change: c}, nil
	}, r.known)
	if err != nil {
		return err
	}
	return o.run(ctx)
}
