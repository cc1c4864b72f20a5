package workflow

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/google/btree"
)

// ListOptions say which entities of a workflow are wanted. The zero value wants
// all. All conditions must hold.
type ListOptions struct {
	// Phase is the phase that they are in. "" means any.
	Phase string

	// Active wants those whose phase something may follow, by the table, and
	// those whose phase the table does not know: they are not over. False does
	// not filter.
	Active bool

	// Match maps JSON names of fields to the values that they must have, of the
	// field's own type: 3 does not match a uint32. The zero value matches an
	// unset field. A name that no field has matches nothing. Fields tagged
	// indexable are looked up in an index; for others every record that the other
	// conditions leave is decoded.
	Match map[string]any

	// Limit is how many are returned at most. 0 means all.
	Limit int

	// Offset skips that many. It costs as much as returning them; for long
	// lists use After.
	Offset int

	// After begins behind the entity of this id, in the order of ids: a page's
	// last id is the next one's After. It need not exist any more.
	After string

	// UpdatedAfter wants those stored later than this, by the server's clock.
	// The zero value means any.
	UpdatedAfter time.Time

	// Fresh waits until the view is as new as the bucket's last revision at the
	// time of the call. Without it a list has at least this process's own writes.
	Fresh bool
}

// Record is an entity with what is known beside it.
type Record struct {
	// Participant is the caller's own. It is nil for a record that cannot be
	// decoded.
	Participant Participant
	// Workflow and EntityID say whose it is. The id of a record that cannot be
	// decoded is not known.
	Workflow, EntityID string
	// Key is its key in the bucket.
	Key string
	// Phase is the one it is in.
	Phase string
	// Terminal reports whether nothing may follow the phase, by the table.
	Terminal bool
	// Revision is the record's, for [IfMatch].
	Revision uint64
	// UpdatedAt is when it was stored, by the server's clock.
	UpdatedAt time.Time
	// Since is when it entered its phase.
	Since time.Time
	// Due is when its deadline will move it, zero for none.
	Due time.Time
	// Degraded says what is wrong with it, a [*DegradedError]; nil for most.
	Degraded error
}

// Page is the answer to a [Manager.Query].
type Page struct {
	Records []Record
	// Next is the After of the page behind this one, "" when this is the last.
	Next string
	// Total is the number of entities of the workflow in the wanted phase, or in
	// any, whatever else was asked for.
	Total int
}

// List returns the entities of a workflow that opts asks for, in the order of
// their ids. It waits for the view when that has not read the bucket yet, as
// long as ctx lasts. Records that cannot be decoded are left out and reported
// by [Manager.Degraded].
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

// Query is List with all that is known of each, and with a cursor.
func (m *Manager) Query(ctx context.Context, workflow string, opts ListOptions) (Page, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return Page{}, fmt.Errorf("list: %w", err)
	}
	if opts.Limit < 0 || opts.Offset < 0 {
		return Page{}, fmt.Errorf("list %s: limit is %d and offset is %d, want 0 or more", workflow, opts.Limit, opts.Offset)
	}
	v := r.bucket.view
	if opts.Fresh {
		err = v.catchUp(ctx)
	} else {
		err = v.wait(ctx, nil)
	}
	if err != nil {
		return Page{}, fmt.Errorf("list %s: %w", workflow, err)
	}
	page, found := v.query(r, opts)
	page.Records = make([]Record, 0, len(found))
	for _, en := range found {
		if rec := en.record(r); rec.Participant != nil {
			page.Records = append(page.Records, rec)
		}
	}
	return page, nil
}

// query walks the smallest of the trees that the options name. Entities are
// never changed but for their times, so they may be read after it.
func (v *view) query(r *registration, opts ListOptions) (page Page, found []entity) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	x := v.indexes[r.workflow]
	page.Total = x.all.Len()
	tree := x.all
	narrow := func(t *btree.BTreeG[*entity]) {
		if t.Len() < tree.Len() {
			tree = t
		}
	}
	if opts.Active {
		narrow(x.active)
	}
	if opts.Phase != "" {
		p := x.phases[opts.Phase]
		if p == nil {
			page.Total = 0
			return page, nil
		}
		page.Total = p.tree.Len()
		narrow(p.tree)
	}
	slow := make(map[*field]any)
	fast := make(map[*field]any)
	for name, want := range opts.Match {
		f := r.fields.byName[name]
		switch {
		case f == nil:
			return page, nil
		case f.indexed < 0:
			slow[f] = want
			continue
		case reflect.TypeOf(want) != f.typ:
			return page, nil
		}
		p := x.fields[f.indexed][want]
		if p == nil {
			return page, nil
		}
		fast[f] = want
		narrow(p.tree)
	}
	skip := opts.Offset
	visit := func(en *entity) bool {
		if en.id == opts.After && opts.After != "" || !v.matches(r, en, opts, fast, slow) {
			return true
		}
		if skip > 0 {
			skip--
			return true
		}
		if opts.Limit > 0 && len(found) == opts.Limit {
			page.Next = found[len(found)-1].id
			return false
		}
		found = append(found, *en)
		return true
	}
	tree.AscendGreaterOrEqual(&entity{id: opts.After}, visit)
	return page, found
}

func (v *view) matches(r *registration, en *entity, opts ListOptions, fast, slow map[*field]any) bool {
	if opts.Phase != "" && en.phaseName() != opts.Phase || opts.Active && !r.active(en.phaseName()) {
		return false
	}
	if !opts.UpdatedAfter.IsZero() && en.at <= opts.UpdatedAfter.UnixNano() {
		return false
	}
	for f, want := range fast {
		if en.fields[f.indexed].value != want {
			return false
		}
	}
	if len(slow) == 0 {
		return true
	}
	p, err := r.decode(en.entry())
	if err != nil {
		return false
	}
	for f, want := range slow {
		if !reflect.DeepEqual(f.of(p).Interface(), want) {
			return false
		}
	}
	return true
}

// record makes an entity the caller's.
func (en *entity) record(r *registration) Record {
	e := en.entry()
	rec := r.record(e)
	rec.EntityID, rec.Phase = en.id, en.phaseName()
	if rec.Participant == nil && rec.Degraded == nil {
		rec.Degraded = en.degraded
	}
	return rec
}

// record describes an entry.
func (r *registration) record(e *entry) Record {
	rec := Record{Workflow: r.workflow, Key: e.key, Revision: e.revision, UpdatedAt: e.at, Since: e.since()}
	p, err := r.decode(e)
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

// Find reads an entity from the server, with all that is known of it. It returns
// ErrEntityNotFound when there is none. A degraded one is no error here: see
// Record.Degraded.
func (m *Manager) Find(ctx context.Context, workflow, entityID string) (Record, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return Record{}, fmt.Errorf("get: %w", err)
	}
	key, err := r.key(entityID)
	if err != nil {
		return Record{}, fmt.Errorf("get %s: %w", workflow, err)
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

// Children returns the entities of every workflow whose parent is the given
// one, by workflow and id. They need not know each other's workflow.
func (m *Manager) Children(ctx context.Context, parentEntityID string) ([]Participant, error) {
	children := []Participant{}
	for _, r := range m.all() {
		v := r.bucket.view
		if err := v.wait(ctx, nil); err != nil {
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

// LookupByEntityID finds an entity whatever its workflow is, the first by the
// workflow's name when several have the id. It returns ErrEntityNotFound when
// none has, and a [*DegradedError] when its record cannot be decoded.
func (m *Manager) LookupByEntityID(ctx context.Context, entityID string) (Participant, error) {
	for _, r := range m.all() {
		key, err := r.key(entityID)
		if err != nil {
			continue // not one of this workflow's
		}
		v := r.bucket.view
		if err := v.wait(ctx, nil); err != nil {
			return nil, fmt.Errorf("look up %q: %w", entityID, err)
		}
		v.mu.RLock()
		en := v.entities[key]
		var e *entry
		if en != nil && en.index.r == r {
			e = en.entry()
		}
		v.mu.RUnlock()
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

// Ancestors returns the parents of an entity, across workflows: the first is its
// immediate parent, the last the root. It is empty for a root. A parent that
// does not exist ends the walk, with a line in the log. It returns
// ErrEntityNotFound when there is no such entity, and ErrAncestorCycle, with
// what was found so far, when one is its own ancestor.
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
