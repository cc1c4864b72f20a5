package workflow

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/btree"
)

// scanStep is how many entities a scan visits while it holds the view's lock. Writers
// wait no longer than that takes, some microseconds.
const scanStep = 128

// selection is what a query asks for.
type selection struct {
	ListOptions
	r    *registration
	fast map[*field]any // values of indexed fields
	slow map[*field]any // values of other fields
	none bool           // a value of another type than the field's matches nothing

	ranges []bounds
	by     *field // to order by, nil for the id
	before int64  // since when they have been in their phase at the latest, unix nanoseconds; 0 for any
}

func (m *Manager) selection(ctx context.Context, r *registration, opts ListOptions) (*selection, error) {
	q := &selection{ListOptions: opts, r: r, fast: make(map[*field]any), slow: make(map[*field]any)}
	if opts.Limit < 0 || opts.Offset < 0 || opts.InPhaseFor < 0 || opts.MaxStale < 0 {
		return nil, fmt.Errorf("limit is %d, offset is %d, the time in the phase is %v and the oldest view %v, want 0 or more",
			opts.Limit, opts.Offset, opts.InPhaseFor, opts.MaxStale)
	}
	if opts.InPhaseFor > 0 {
		q.before = m.ago(ctx, r, opts.InPhaseFor)
	}
	for _, name := range slices.Sorted(maps.Keys(opts.Range)) {
		b, err := r.within(name, opts.Range[name])
		if err != nil {
			return nil, err
		}
		q.ranges = append(q.ranges, b)
	}
	if opts.OrderBy != "" {
		var err error
		if q.by, err = r.ordered(opts.OrderBy, "order by"); err != nil {
			return nil, err
		}
		if opts.After != "" {
			return nil, fmt.Errorf("order by %q after %q: After goes by the order of ids, use Offset", opts.OrderBy, opts.After)
		}
	}
	for name, want := range opts.Match {
		f := r.fields.byName[name]
		switch {
		case f == nil:
			known := slices.Sorted(maps.Keys(r.fields.byName))
			return nil, fmt.Errorf("%w: match %q: the fields of %q are %v", ErrUnknownField, name, r.workflow, known)
		case f.indexed < 0:
			q.slow[f] = want
		case reflect.TypeOf(want) != f.typ:
			q.none = true
		default:
			q.fast[f] = want
		}
	}
	return q, nil
}

// ago returns the instant that long ago, by the server's clock.
func (m *Manager) ago(ctx context.Context, r *registration, d time.Duration) int64 {
	_ = m.clock.look(ctx, r.bucket) // without the server, time goes on by this process's clock
	return m.clock.Now().Add(-d).UnixNano()
}

// query returns the selected records. It holds the view's lock for a few entities at a
// time, and decodes outside of it.
func (v *view) query(ctx context.Context, q *selection) (page Page, err error) {
	// A record that the view decoded decodes again, unless its type is at fault.
	defer func() {
		page.Records = slices.DeleteFunc(page.Records, func(rec Record) bool { return rec.Participant == nil })
	}()
	if q.by != nil {
		return v.sorted(ctx, q)
	}
	page.Records, page.Total = []Record{}, v.total(q)
	skip, last := q.Offset, ""
	err = v.scan(ctx, q, func(en *entity) bool {
		p, ok := q.decoded(en)
		if !ok {
			return true
		}
		if skip > 0 {
			skip--
			return true
		}
		if q.Limit > 0 && len(page.Records) == q.Limit {
			page.Next = last
			return false
		}
		last = en.id
		page.Records = append(page.Records, en.record(q.r, p))
		return true
	})
	return page, err
}

// total is how many entities of the workflow are in the selected phase, or in any.
func (v *view) total(q *selection) int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	x := v.indexes[q.r.workflow]
	if q.Phase == "" {
		return x.all.Len()
	}
	if g := x.groups[ofPhase][q.Phase]; g != nil {
		return g.tree.Len()
	}
	return 0
}

// decoded reports whether an entity has the wanted values in fields without an index.
// If it had to be decoded for that, it returns the participant.
func (q *selection) decoded(en *entity) (Participant, bool) {
	if len(q.slow) == 0 {
		return nil, true
	}
	p, err := q.r.decode(en.entry())
	return p, err == nil && q.has(p)
}

// has reports whether a participant has the wanted values in fields without an index.
func (q *selection) has(p Participant) bool {
	for f, want := range q.slow {
		if !reflect.DeepEqual(f.of(p).Interface(), want) {
			return false
		}
	}
	return true
}

// scan calls visit for copies of the entities that the indexes select, ordered by id,
// until visit returns false or ctx ends. It does not hold the view's lock meanwhile.
func (v *view) scan(ctx context.Context, q *selection, visit func(*entity) bool) error {
	step := make([]entity, 0, scanStep)
	for after, more := q.After, true; more; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// A scan may decode for seconds. Let writers run meanwhile: the scheduler by itself
		// lets it run for 10 ms at a time.
		runtime.Gosched()
		step, after, more = v.step(q, after, step[:0])
		for i := range step {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if !visit(&step[i]) {
				return nil
			}
		}
	}
	return nil
}

// step appends the selected ones of the next entities after an id. It returns the last
// id that it visited, and whether there may be more.
func (v *view) step(q *selection, after string, found []entity) ([]entity, string, bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	tree := q.tree(v.indexes[q.r.workflow])
	if tree == nil {
		return found, after, false
	}
	visited, from := 0, after
	tree.AscendGreaterOrEqual(&entity{id: from}, func(en *entity) bool {
		if en.id == from && from != "" {
			return true
		}
		if q.matches(en) {
			found = append(found, *en)
		}
		after = en.id
		visited++
		return visited < scanStep
	})
	return found, after, visited == scanStep
}

// tree returns the smallest of the trees that have everything that is selected, nil
// for none.
func (q *selection) tree(x *index) *btree.BTreeG[*entity] {
	if q.none {
		return nil
	}
	tree := x.all
	narrow := func(place int, value any) bool {
		g := x.groups[place][value]
		if g != nil && g.tree.Len() < tree.Len() {
			tree = g.tree
		}
		return g != nil
	}
	if q.Active && !narrow(ofActive, active.value) || q.Phase != "" && !narrow(ofPhase, q.Phase) {
		return nil
	}
	for f, want := range q.fast {
		if !narrow(ofFields+f.indexed, want) {
			return nil
		}
	}
	return tree
}

// matches reports whether an entity has the values that the view knows of.
func (q *selection) matches(en *entity) bool {
	if q.Phase != "" && en.phaseName() != q.Phase || q.Active && !q.r.active(en.phaseName()) {
		return false
	}
	if q.Paused && !en.paused {
		return false
	}
	if !strings.Contains(en.id, q.Contains) {
		return false
	}
	if !q.UpdatedAfter.IsZero() && en.at <= instant(q.UpdatedAfter) {
		return false
	}
	if q.before != 0 && en.since > q.before {
		return false
	}
	for f, want := range q.fast {
		if en.field(f) != want {
			return false
		}
	}
	for _, b := range q.ranges {
		if !b.has(en) {
			return false
		}
	}
	return true
}
