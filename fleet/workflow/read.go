package workflow

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// ReadOption modifies one [Manager.Get].
type ReadOption func(*reading)

// reading is what the options of a read ask for.
type reading struct {
	record  *Record
	removed bool
}

// RecordTo stores the entity with its metadata, such as its revision, in *rec. Get then
// returns a degraded entity without an error, and without a participant if it cannot be
// decoded: see Record.Degraded.
func RecordTo(rec *Record) ReadOption { return func(r *reading) { r.record = rec } }

// Removed makes Get also find an entity that was deleted or archived: it returns the last
// record that the entity had, from the bucket or its [Journal].
func Removed() ReadOption { return func(r *reading) { r.removed = true } }

// Get reads an entity of a workflow from the server; [Manager.LookupByEntityID] finds one
// whose workflow is not known, in this process's views. Get returns ErrEntityNotFound when
// there is none, and a [*DegradedError] when its record cannot be decoded. It returns, and
// logs, an entity whose phase the table does not have.
//
// The caller owns the result; changing it stores nothing.
func (m *Manager) Get(ctx context.Context, workflow, entityID string, opts ...ReadOption) (p Participant, err error) {
	defer wrap(&err, "get %s %q", workflow, entityID)
	var want reading
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("option %d is nil", i+1)
		}
		opt(&want)
	}
	r, key, err := m.locate(workflow, entityID)
	if err != nil {
		return nil, err
	}
	var e *entry
	if want.removed {
		e, err = r.lastRecord(ctx, key)
	} else {
		if r.viewless {
			r.bucket.look(ctx)
		}
		e, err = r.bucket.last(ctx, key)
	}
	if err == nil && e.deleted() {
		err = ErrEntityNotFound
	}
	if err != nil {
		return nil, err
	}
	rec := r.record(e)
	rec.EntityID = entityID
	if rec.Degraded != nil {
		m.log.Warn("record is degraded", "workflow", workflow, "key", key, "error", rec.Degraded)
	}
	switch {
	case want.record != nil:
		*want.record = rec
	case rec.Participant == nil:
		return nil, rec.Degraded
	}
	return rec.Participant, nil
}

// lastRecord reads the last record that an entity had.
func (r *registration) lastRecord(ctx context.Context, key string) (last *entry, err error) {
	err = r.revisions(ctx, key, func(e *entry) bool {
		if !e.deleted() {
			last = e
		}
		return true
	})
	if err == nil && last == nil {
		err = ErrEntityNotFound
	}
	return last, err
}

// LookupByEntityID finds an entity in any workflow. When several workflows have the
// id, it returns the entity of the first workflow by name. It returns ErrEntityNotFound when
// none has it, and a [*DegradedError] when its record cannot be decoded.
func (m *Manager) LookupByEntityID(ctx context.Context, entityID string) (p Participant, err error) {
	defer wrap(&err, "look up %q", entityID)
	for _, r := range m.all() {
		key, err := r.key(entityID)
		if err != nil {
			continue // not a valid id in this workflow
		}
		e, err := r.find(ctx, key)
		if err != nil {
			return nil, err
		}
		if e != nil {
			return r.decode(e)
		}
	}
	if m.isClosed() {
		return nil, ErrClosed
	}
	return nil, ErrEntityNotFound
}

// find returns the entry of an entity from the view, or from the server when there is no
// view. It returns nil for none.
func (r *registration) find(ctx context.Context, key string) (*entry, error) {
	if !r.viewless {
		v := r.bucket.view
		if err := v.wait(ctx, nil); err != nil {
			return nil, err
		}
		return v.entryOf(r, key), nil
	}
	e, err := r.bucket.last(ctx, key)
	if isNotFound(err) || err == nil && (e.deleted() || r.foreign(e) != nil) {
		return nil, nil //nolint:nilnil,nilerr // there is none, or it is another workflow's
	}
	return e, err
}

// Children returns the entities of all workflows whose parent is the given entity,
// ordered by workflow and id.
func (m *Manager) Children(ctx context.Context, parentEntityID string) (children []Participant, err error) {
	defer wrap(&err, "children of %q", parentEntityID)
	children = []Participant{}
	for _, r := range m.all() {
		v, err := r.viewed(ctx)
		if err != nil {
			return nil, err
		}
		var found []entity
		v.mu.RLock()
		if parent := v.indexes[r.workflow].groups[ofParent][parentEntityID]; parent != nil {
			parent.tree.Ascend(func(en *entity) bool {
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

// Ancestors returns the parents of an entity, across workflows: the immediate parent
// first, the root last. It is empty for a root. A missing parent ends the walk, and
// the Manager logs it. Ancestors returns ErrEntityNotFound when the entity does not
// exist, and ErrAncestorCycle, with the ancestors so far, when an entity is its own
// ancestor.
func (m *Manager) Ancestors(ctx context.Context, entityID string) (ancestors []Participant, err error) {
	defer wrap(&err, "ancestors")
	p, err := m.LookupByEntityID(ctx, entityID)
	if err != nil {
		return nil, err
	}
	ancestors = []Participant{}
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
			return ancestors, err
		}
		seen = append(seen, parent)
		ancestors = append(ancestors, p)
	}
	return ancestors, nil
}
