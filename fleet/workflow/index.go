package workflow

import (
	"strings"
	"time"
	"unique"

	"github.com/google/btree"
)

// entity is one record in the view.
type entity struct {
	index    *index
	id       string
	key      string
	revision uint64
	at       int64 // unix nanoseconds
	since    int64
	due      int64  // when its deadline or first timer is, 0 for none
	timers   string // as in the header
	keys     string // as in the header
	paused   bool
	change   uint64 // see entry.lastChange
	pending  int    // as in the header
	version  string // of the record
	data     []byte
	own      bool  // times are by this process's clock: the follower has not seen the write yet
	degraded error // usually nil
	decoded  bool  // it has a phase, and is in the indexes
	phase    *group
	parent   *group // nil for a root
	fields   []*group
}

// group is the entities that share a phase, a parent or the value of an indexed field.
type group struct {
	value any
	tree  *btree.BTreeG[*entity]
}

// groups are the groups of one kind, by value.
type groups map[any]*group

func (gs groups) add(value any, en *entity) *group {
	g := gs[value]
	if g == nil {
		g = &group{value: value, tree: btree.NewG(degree, byID)}
		gs[value] = g
	}
	g.tree.ReplaceOrInsert(en)
	return g
}

// remove removes an entity from a group, which may be nil.
func (gs groups) remove(g *group, en *entity) {
	if g == nil {
		return
	}
	if g.tree.Delete(en); g.tree.Len() == 0 {
		delete(gs, g.value)
	}
}

// move moves an entity from its group to the group that has the value of next, and returns
// it. Both may be nil.
func (gs groups) move(en *entity, now, next *group) *group {
	if now != nil && next != nil && now.value == next.value {
		return now
	}
	gs.remove(now, en)
	if next == nil {
		return nil
	}
	return gs.add(next.value, en)
}

// index is one workflow's entities. Trees are ordered by id, so that pages are
// stable.
type index struct {
	r        *registration
	all      *btree.BTreeG[*entity]
	active   *btree.BTreeG[*entity]
	due      *btree.BTreeG[*entity] // entities with a deadline or a timer, by its time
	degraded map[string]*entity     // by key
	phases   groups
	parents  groups
	fields   []groups // in the order of the indexed fields
}

func byID(a, b *entity) bool { return a.id < b.id }

func byDue(a, b *entity) bool { return a.due < b.due || a.due == b.due && a.id < b.id }

// degree keeps the trees flat and their nodes well filled.
const degree = 32

func newIndex(r *registration) *index {
	x := &index{
		r:        r,
		all:      btree.NewG(degree, byID),
		active:   btree.NewG(degree, byID),
		due:      btree.NewG(degree, byDue),
		degraded: make(map[string]*entity),
		phases:   make(groups),
		parents:  make(groups),
		fields:   make([]groups, len(r.fields.indexed)),
	}
	for i := range x.fields {
		x.fields[i] = make(groups)
	}
	return x
}

// newEntity makes an entity of an entry and the result of decoding it. Its groups have a
// value and no tree until it is in a view. It copies the headers that it keeps, because each of
// them, an empty one too, is a part of the message's whole block.
func newEntity(r *registration, e *entry, p Participant, err error) *entity {
	en := &entity{
		key:      e.key,
		revision: e.revision,
		at:       e.at.UnixNano(),
		since:    e.sinceTime().UnixNano(),
		timers:   strings.Clone(e.timers),
		keys:     strings.Clone(e.keys),
		paused:   e.paused(),
		change:   e.lastChange(),
		pending:  e.pending,
		version:  unique.Make(e.version).Value(),
		data:     e.data,
		degraded: err,
	}
	if p == nil {
		return en
	}
	en.id, en.decoded = p.EntityID(), true
	if err == nil {
		en.degraded = r.unknownPhase(e, p.Phase())
	}
	en.phase = &group{value: p.Phase()}
	if parent := p.ParentEntityID(); parent != "" {
		en.parent = &group{value: parent}
	}
	en.fields = make([]*group, len(r.fields.indexed))
	for i, f := range r.fields.indexed {
		en.fields[i] = &group{value: f.of(p).Interface()}
	}
	en.due = r.dueAt(p.Phase(), en.since, en.timers, en.paused)
	return en
}

// inPhase returns a copy of an entity with the effect of a write that only enters a phase.
func (en *entity) inPhase(e *entry, phase string) *entity {
	next := *en
	next.revision, next.at, next.since = e.revision, e.at.UnixNano(), e.at.UnixNano()
	next.data, next.timers, next.keys = e.data, e.timers, e.keys
	next.change, next.pending, next.paused = e.lastChange(), e.pending, e.paused()
	next.phase = &group{value: phase}
	next.due = en.index.r.dueAt(phase, next.since, next.timers, next.paused)
	return &next
}

func (en *entity) phaseName() string {
	if en.phase == nil {
		return ""
	}
	return en.phase.value.(string) //nolint:errcheck,forcetypeassert // a phase is a string
}

// entry returns the entity's present revision as an entry.
func (en *entity) entry() *entry {
	pause := pausing("")
	if en.paused {
		pause = pauseHolds
	}
	return &entry{
		key:      en.key,
		revision: en.revision,
		at:       time.Unix(0, en.at),
		data:     en.data,
		phase:    en.phaseName(),
		guessed:  en.own && en.since == en.at,
		meta: meta{
			version: en.version,
			since:   en.since,
			timers:  en.timers,
			keys:    en.keys,
			pause:   pause,
			change:  en.change,
			pending: en.pending,
		},
	}
}

// putLocked puts an entity into the view, in place of its previous revision.
func (v *view) putLocked(r *registration, en *entity) {
	x := v.indexes[r.workflow]
	if before := v.entities[en.key]; before != nil {
		if before.index == x && before.decoded && en.decoded && before.id == en.id {
			v.replaceLocked(before, en)
			return
		}
		v.dropLocked(before)
	}
	v.entities[en.key] = en
	en.index = x
	if en.degraded != nil {
		x.degraded[en.key] = en
	}
	if !en.decoded {
		return
	}
	x.all.ReplaceOrInsert(en)
	if r.active(en.phaseName()) {
		x.active.ReplaceOrInsert(en)
	}
	en.phase = x.phases.move(en, nil, en.phase)
	en.parent = x.parents.move(en, nil, en.parent)
	for i, f := range en.fields {
		en.fields[i] = x.fields[i].move(en, nil, f)
	}
	v.scheduleLocked(en)
}

// scheduleLocked adds an entity to the index of due times, if the entity has a due time.
func (v *view) scheduleLocked(en *entity) {
	if en.due == 0 {
		return
	}
	due := en.index.due
	due.ReplaceOrInsert(en)
	if first, _ := due.Min(); first == en {
		v.m.earlier.notify()
	}
}

// eachDue calls visit for the entities of each workflow that come due, the first in time
// first, until visit returns false for that workflow. visit runs under the view's lock and must
// not call the view.
func (v *view) eachDue(visit func(*entity) bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, x := range v.indexes {
		x.due.Ascend(visit)
	}
}

// replaceLocked gives an entity of the view the content of its new revision. It touches
// only the trees whose order or content changes: to drop and put an entity takes three times as
// long, in a view of 1,000 entities and in one of 200,000.
func (v *view) replaceLocked(now, en *entity) {
	x := now.index
	if en.degraded != nil {
		x.degraded[now.key] = now
	} else if now.degraded != nil {
		delete(x.degraded, now.key)
	}
	switch was, is := x.r.active(now.phaseName()), x.r.active(en.phaseName()); {
	case was && !is:
		x.active.Delete(now)
	case is && !was:
		x.active.ReplaceOrInsert(now)
	}
	en.phase = x.phases.move(now, now.phase, en.phase)
	en.parent = x.parents.move(now, now.parent, en.parent)
	for i, f := range now.fields {
		en.fields[i] = x.fields[i].move(now, f, en.fields[i])
	}
	x.due.Delete(now)
	en.index, en.id, en.key = now.index, now.id, now.key
	*now = *en
	v.scheduleLocked(now)
}

// dropLocked removes an entity from the view.
func (v *view) dropLocked(en *entity) {
	delete(v.entities, en.key)
	x := en.index
	delete(x.degraded, en.key)
	if !en.decoded {
		return
	}
	x.all.Delete(en)
	x.active.Delete(en)
	x.due.Delete(en)
	x.phases.remove(en.phase, en)
	x.parents.remove(en.parent, en)
	for i, f := range en.fields {
		x.fields[i].remove(f, en)
	}
}
