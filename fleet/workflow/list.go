package workflow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ListOptions select entities of a workflow. The zero value selects all. An entity
// must meet all conditions.
type ListOptions struct {
	// Phase is the phase that they are in. "" means any.
	Phase string

	// Active selects entities whose phase is not terminal in the table, and those in
	// a phase that the table does not have. False does not filter.
	Active bool

	// Match maps JSON names of fields to the values that they must have, of the
	// field's own type: 3 does not match a uint32. The zero value matches an unset
	// field. An unknown name is ErrUnknownField. An index answers for fields tagged
	// indexable; for others, every record that meets the other conditions is decoded.
	Match map[string]any

	// Range maps JSON names of indexed fields, numbers or strings, to the values between
	// which theirs must be. A field that is not indexed is ErrUnknownField, a bound of
	// another type than the field's ErrFieldType. It decodes nothing, and visits every
	// entity that the other conditions select.
	Range map[string]Range

	// InPhaseFor selects entities that have been in their phase for at least this long,
	// by the server's clock. 0 means any time. See also [Manager.Counts].
	InPhaseFor time.Duration

	// OrderBy is the JSON name of an indexed field, a number or a string, whose values
	// order the results; equal ones are ordered by id. Descending reverses the order of
	// the values. "" orders by id. It visits every entity that the conditions select,
	// and goes with Limit and Offset, not with After: the page has no Next.
	OrderBy    string
	Descending bool

	// Contains selects entities whose id has this text.
	Contains string

	// Limit is the maximum number of results. 0 means all.
	Limit int

	// Offset skips that many results. It costs as much as returning them; for long
	// lists use After.
	Offset int

	// After begins after the entity with this id, in the order of ids. Pass a page's
	// last id to get the next page. The entity need not exist any more.
	After string

	// UpdatedAfter selects entities stored later than this, by the server's clock. The
	// zero value means any.
	UpdatedAfter time.Time

	// Fresh waits until the view has everything that the bucket had at the time of the
	// call, and nothing that was removed before it. Without it a list has at least this
	// process's own writes.
	Fresh bool

	// MaxStale waits, like Fresh, until the view is at most that much older than the
	// call. 0 means any age: a list is answered while the server is away. The view of a
	// bucket that can be read is at most a few seconds old.
	MaxStale time.Duration
}

// Record is an entity with its metadata.
type Record struct {
	// Participant is nil for a record that cannot be decoded. The caller owns it.
	Participant Participant
	// Workflow and EntityID identify the entity. The id of a record that cannot be
	// decoded is not known.
	Workflow, EntityID string
	// Key is its key in the bucket.
	Key string
	// Phase is its phase.
	Phase string
	// Terminal reports whether the phase is terminal in the table.
	Terminal bool
	// Revision is the record's, for [IfMatch].
	Revision uint64
	// UpdatedAt is when it was stored, by the server's clock.
	UpdatedAt time.Time
	// Since is when it entered its phase.
	Since time.Time
	// Due is when its deadline moves it, zero for no deadline.
	Due time.Time
	// Timers are its timers, those that have fired too.
	Timers []Timer
	// Degraded says what is wrong with it, a [*DegradedError]; usually nil.
	Degraded error
}

// Page is the result of a [Manager.Query].
type Page struct {
	Records []Record
	// Next is the After of the next page, "" for the last page.
	Next string
	// Total is the number of entities of the workflow in the selected phase, or in
	// any. The other conditions do not change it.
	Total int
	// AsOf is a time, by this process's clock, at which the bucket was as this page has
	// it, apart from later writes. It is zero shortly after the start.
	AsOf time.Time
}

// List returns the selected entities of a workflow, ordered by id. When the view has
// not read the bucket yet, List waits for it until ctx ends. It skips records that
// cannot be decoded; [Manager.Degraded] returns those. It delays no writer, however
// long it takes, and ends with ctx. An entity that changes while List runs is returned
// as it was or as it is.
func (m *Manager) List(ctx context.Context, workflow string, opts ListOptions) ([]Participant, error) {
	page, err := m.Query(ctx, workflow, opts)
	if err != nil {
		return nil, err
	}
	list := make([]Participant, len(page.Records))
	for i, rec := range page.Records {
		list[i] = rec.Participant
	}
	return list, nil
}

// Query is List with metadata and a cursor.
func (m *Manager) Query(ctx context.Context, workflow string, opts ListOptions) (Page, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return Page{}, fmt.Errorf("list: %w", err)
	}
	q, err := m.selection(ctx, r, opts)
	if err != nil {
		return Page{}, fmt.Errorf("list %s: %w", workflow, err)
	}
	v, err := r.view(opts.Phase)
	if err != nil {
		return Page{}, fmt.Errorf("list %s: %w", workflow, err)
	}
	switch {
	case opts.Fresh:
		err = v.catchUp(ctx, time.Now())
	case opts.MaxStale > 0:
		if err = v.wait(ctx, nil); err == nil && v.age() > opts.MaxStale {
			err = v.catchUp(ctx, time.Now())
		}
	default:
		err = v.wait(ctx, nil)
	}
	if err != nil {
		return Page{}, fmt.Errorf("list %s: %w", workflow, err)
	}
	asOf := v.asOf()
	page, err := v.query(ctx, q)
	page.AsOf = asOf
	if err != nil {
		return Page{}, fmt.Errorf("list %s: %w", workflow, err)
	}
	return page, nil
}

// record returns a copy of an entity for the caller. p is its participant, nil when it
// is not decoded yet.
func (en *entity) record(r *registration, p Participant) Record {
	e := en.entry()
	var err error
	if p == nil {
		p, err = r.decode(e)
	}
	rec := r.describe(e, p, err)
	rec.EntityID, rec.Phase = en.id, en.phaseName()
	if rec.Participant == nil && rec.Degraded == nil {
		rec.Degraded = en.degraded
	}
	return rec
}

// record describes an entry.
func (r *registration) record(e *entry) Record {
	p, err := r.decode(e)
	return r.describe(e, p, err)
}

// describe describes an entry, with the result of decoding it.
func (r *registration) describe(e *entry, p Participant, err error) Record {
	rec := Record{Workflow: r.workflow, Key: e.key, Revision: e.revision, UpdatedAt: e.at, Since: e.since(), Timers: readTimers(e.timers())}
	if err != nil {
		rec.Degraded = err
		return rec
	}
	rec.Participant, rec.EntityID, rec.Phase = p, p.EntityID(), p.Phase()
	rec.Terminal = !r.active(rec.Phase)
	if d, ok := r.deadline(rec.Phase); ok {
		rec.Due = rec.Since.Add(d.After)
	}
	if err := r.unknownPhase(e, rec.Phase); err != nil {
		rec.Degraded = err
	}
	return rec
}

// Find reads an entity from the server, with its metadata. It returns
// ErrEntityNotFound when there is none. It returns a degraded entity without an
// error: see Record.Degraded.
func (m *Manager) Find(ctx context.Context, workflow, entityID string) (Record, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return Record{}, fmt.Errorf("get: %w", err)
	}
	key, err := r.key(entityID)
	if err != nil {
		return Record{}, fmt.Errorf("get %s: %w", workflow, err)
	}
	if r.blind {
		r.bucket.look(ctx)
	}
	e, err := r.bucket.last(ctx, key)
	if err == nil && e.deleted() {
		err = ErrEntityNotFound
	}
	if err != nil {
		return Record{}, fmt.Errorf("get %s %q: %w", workflow, entityID, err)
	}
	rec := r.record(e)
	rec.EntityID = entityID
	if rec.Degraded != nil {
		m.log.Warn("record is degraded", "workflow", workflow, "key", key, "error", rec.Degraded)
	}
	return rec, nil
}

// Children returns the entities of all workflows whose parent is the given entity,
// ordered by workflow and id.
func (m *Manager) Children(ctx context.Context, parentEntityID string) ([]Participant, error) {
	children := []Participant{}
	for _, r := range m.all() {
		v, err := r.view("")
		if err == nil {
			err = v.wait(ctx, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("children of %q: %w", parentEntityID, err)
		}
		var found []entity
		v.mu.RLock()
		if p := v.indexes[r.workflow].parents[parentEntityID]; p != nil {
			p.tree.Ascend(func(en *entity) bool {
				found = append(found, *en)
				return true
			})
		}
		v.mu.RUnlock()
		for i := range found {
			if p, err := r.decode(found[i].entry()); err == nil {
				children = append(children, p)
			}
		}
	}
	return children, nil
}

// LookupByEntityID finds an entity in any workflow. When several workflows have the
// id, it returns that of the first workflow by name. It returns ErrEntityNotFound when
// none has it, and a [*DegradedError] when its record cannot be decoded.
func (m *Manager) LookupByEntityID(ctx context.Context, entityID string) (Participant, error) {
	for _, r := range m.all() {
		key, err := r.key(entityID)
		if err != nil {
			continue // not a valid id in this workflow
		}
		e, err := r.bucket.lookup(ctx, r, key)
		if err != nil {
			return nil, fmt.Errorf("look up %q: %w", entityID, err)
		}
		if e == nil {
			continue
		}
		p, err := r.decode(e)
		if err != nil {
			return nil, fmt.Errorf("look up %q: %w", entityID, err)
		}
		return p, nil
	}
	if m.isClosed() {
		return nil, fmt.Errorf("look up %q: %w", entityID, ErrClosed)
	}
	return nil, fmt.Errorf("look up %q: %w", entityID, ErrEntityNotFound)
}

// lookup returns the entry of an entity from the view, or from the server when the view
// may lack it. It returns nil for none.
func (b *bucket) lookup(ctx context.Context, r *registration, key string) (*entry, error) {
	if !r.blind {
		v := b.view
		if err := v.wait(ctx, nil); err != nil {
			return nil, err
		}
		if e, ok := v.has(r, key); ok {
			return e, nil
		}
	}
	if !r.partial() {
		return nil, nil
	}
	e, err := b.last(ctx, key)
	if isNotFound(err) || err == nil && (e.deleted() || r.foreign(e) != nil) {
		return nil, nil //nolint:nilerr // there is none, or it is another workflow's
	}
	return e, err
}

// Ancestors returns the parents of an entity, across workflows: the immediate parent
// first, the root last. It is empty for a root. A missing parent ends the walk, and
// the Manager logs it. Ancestors returns ErrEntityNotFound when the entity does not
// exist, and ErrAncestorCycle, with the ancestors so far, when an entity is its own
// ancestor.
func (m *Manager) Ancestors(ctx context.Context, entityID string) ([]Participant, error) {
	p, err := m.LookupByEntityID(ctx, entityID)
	if err != nil {
		return nil, fmt.Errorf("ancestors: %w", err)
	}
	ancestors := []Participant{}
	seen := []string{entityID}
	for p.ParentEntityID() != "" {
		parent := p.ParentEntityID()
		if slices.Contains(seen, parent) {
			return ancestors, fmt.Errorf("%w: %v leads back to %q", ErrAncestorCycle, seen, parent)
		}
		p, err = m.LookupByEntityID(ctx, parent)
		if errors.Is(err, ErrEntityNotFound) || errors.Is(err, ErrDegraded) {
			m.log.Warn("an ancestor cannot be read", "entity", entityID, "ancestor", parent, "error", err)
			return ancestors, nil
		}
		if err != nil {
			return ancestors, fmt.Errorf("ancestors: %w", err)
		}
		seen = append(seen, parent)
		ancestors = append(ancestors, p)
	}
	return ancestors, nil
}

func (m *Manager) isClosed() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.closed
}
