package workflow

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
)

// Range bounds the values of an indexed field. Both bounds belong to it. A nil bound is
// none.
type Range struct {
	Min, Max any
}

// bounds is a Range of a field, checked.
type bounds struct {
	field    *field
	min, max any // of the field's type, or nil
}

// ordered returns an indexed field whose values have an order.
func (r *registration) ordered(name, what string) (*field, error) {
	f := r.fields.byName[name]
	if f == nil || f.indexed < 0 {
		return nil, fmt.Errorf("%w: %s %q: the indexed fields of %q are %v", ErrUnknownField, what, name, r.workflow, r.def().IndexedFields)
	}
	switch f.typ.Kind() {
	case reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return f, nil
	}
	return nil, fmt.Errorf("%w: %s %q: a %v has no order, want a number or a string", ErrFieldType, what, name, f.typ)
}

func (r *registration) within(name string, in Range) (bounds, error) {
	f, err := r.ordered(name, "range")
	if err != nil {
		return bounds{}, err
	}
	for _, bound := range []any{in.Min, in.Max} {
		if bound != nil && reflect.TypeOf(bound) != f.typ {
			return bounds{}, fmt.Errorf("%w: range %q: the bound is a %T and the field a %v", ErrFieldType, name, bound, f.typ)
		}
		if v := reflect.ValueOf(bound); v.CanFloat() && math.IsNaN(v.Float()) {
			return bounds{}, fmt.Errorf("%w: range %q: the bound is NaN, want a number", ErrFieldType, name)
		}
	}
	return bounds{f, in.Min, in.Max}, nil
}

func (b bounds) has(en *entity) bool {
	value := en.field(b.field)
	return (b.min == nil || compare(value, b.min) >= 0) && (b.max == nil || compare(value, b.max) <= 0)
}

// compare compares two values of one type that has an order.
func compare(a, b any) int {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	switch {
	case x.CanInt():
		return cmp.Compare(x.Int(), y.Int())
	case x.CanUint():
		return cmp.Compare(x.Uint(), y.Uint())
	case x.CanFloat():
		return cmp.Compare(x.Float(), y.Float())
	}
	return cmp.Compare(x.String(), y.String())
}

// sorted returns the selected records ordered by a field. It visits all that the other
// conditions select, and keeps as many as the page needs.
func (v *view) sorted(ctx context.Context, q *selection) (page Page, err error) {
	page.Records, page.Total = []Record{}, v.total(q)
	type found struct {
		entity
		p Participant
	}
	var best []found
	inOrder := func(a, b found) int {
		c := compare(a.field(q.by), b.field(q.by))
		if q.Descending {
			c = -c
		}
		return cmp.Or(c, cmp.Compare(a.id, b.id))
	}
	end := math.MaxInt // of the page
	if q.Limit > 0 && q.Limit < end-q.Offset {
		end = q.Offset + q.Limit
	}
	err = v.scan(ctx, q, func(en *entity) bool {
		p, ok := q.decoded(en)
		if !ok {
			return true
		}
		best = append(best, found{*en, p})
		if (len(best)-scanStep)/2 >= end {
			slices.SortFunc(best, inOrder)
			clear(best[end:])
			best = best[:end]
		}
		return true
	})
	slices.SortFunc(best, inOrder)
	for i, f := range best {
		if i >= q.Offset && i < end {
			page.Records = append(page.Records, f.record(q.r, f.p))
		}
	}
	return page, err
}

// PhaseCount is how many entities of a workflow are in a phase.
type PhaseCount struct {
	// Phase is the phase, and Terminal whether it is terminal in the table.
	Phase    string
	Terminal bool
	// Entities is how many are in it.
	Entities int
	// Stuck is how many of them have been in it for as long as the caller asked about,
	// or longer.
	Stuck int
	// Oldest is when the entity entered that has been in it for the longest time, and OldestID is its
	// id. Half of them entered by Median. They are zero when no entity is in the phase.
	Oldest, Median time.Time
	OldestID       string
}

// Counts returns how many entities of a workflow are in each phase, sorted by phase. The
// phases are all of the table, and others that entities are in. Stuck counts entities that
// have been in their phase for at least this long, by the server's clock, and every entity for 0;
// [ListOptions].InPhaseFor lists them. A negative time is an error. Counts visits every entity of
// the view and decodes none.
func (m *Manager) Counts(ctx context.Context, workflow string, longer time.Duration) (list []PhaseCount, err error) {
	defer wrap(&err, "count %s", workflow)
	r, err := m.registration(workflow)
	if err != nil {
		return nil, err
	}
	if longer < 0 {
		return nil, fmt.Errorf("the time in the phase is %v, want 0 or more", longer)
	}
	before := int64(math.MaxInt64)
	if longer > 0 {
		before = m.ago(ctx, r, longer)
	}
	v, err := r.viewed(ctx)
	if err != nil {
		return nil, err
	}
	counts := make(map[string]*PhaseCount)
	count := func(phase string) *PhaseCount {
		if counts[phase] == nil {
			counts[phase] = &PhaseCount{Phase: phase, Terminal: !r.active(phase)}
		}
		return counts[phase]
	}
	for _, phase := range r.table.Phases() {
		count(phase)
	}
	since := make(map[string][]int64)
	err = v.scan(ctx, &selection{r: r}, func(en *entity) bool {
		c := count(en.phaseName())
		c.Entities++
		since[c.Phase] = append(since[c.Phase], en.since)
		if en.since <= before {
			c.Stuck++
		}
		if at := time.Unix(0, en.since); c.Oldest.IsZero() || at.Before(c.Oldest) {
			c.Oldest, c.OldestID = at, en.id
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	list = make([]PhaseCount, 0, len(counts))
	for phase, c := range counts {
		if all := since[phase]; len(all) > 0 {
			slices.Sort(all)
			c.Median = time.Unix(0, all[len(all)/2])
		}
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b PhaseCount) int { return cmp.Compare(a.Phase, b.Phase) })
	return list, nil
}
