package workflow

import (
	"context"
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

	// Paused selects entities that are paused: see [Manager.Pause]. False does not filter.
	Paused bool

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
	// Paused says that it rests until [Manager.Resume].
	Paused bool
	// Due is when its deadline moves it, zero for no deadline. A paused entity waits longer.
	Due time.Time
	// Timers are its timers, also fired ones.
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
func (m *Manager) Query(ctx context.Context, workflow string, opts ListOptions) (page Page, err error) {
	defer wrap(&err, "list %s", workflow)
	r, err := m.registration(workflow)
	if err != nil {
		return page, err
	}
	q, err := m.selection(ctx, r, opts)
	if err != nil {
		return page, err
	}
	v, err := r.viewed(ctx)
	if err == nil && (opts.Fresh || opts.MaxStale > 0 && v.age() > opts.MaxStale) {
		err = v.catchUp(ctx, time.Now())
	}
	if err != nil {
		return page, err
	}
	asOf := v.asOf()
	page, err = v.query(ctx, q)
	page.AsOf = asOf
	return page, err
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

func (r *registration) record(e *entry) Record {
	p, err := r.decode(e)
	return r.describe(e, p, err)
}

// describe describes an entry, with the result of decoding it.
func (r *registration) describe(e *entry, p Participant, err error) Record {
	rec := Record{
		Workflow:  r.workflow,
		Key:       e.key,
		Revision:  e.revision,
		UpdatedAt: e.at,
		Since:     e.sinceTime(),
		Timers:    readTimers(e.timers),
		Paused:    e.paused(),
	}
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
