package workflow

import (
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/google/btree"
)

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
	groups   []*group
}

// The places of an entity's groups. A root has none by its parent, and one in a terminal phase none
// of the active ones.
const (
	ofPhase = iota
	ofParent
	ofActive
	ofFields // the first indexed field
)

// group is the entities that share a phase, a parent or the value of an indexed field.
type group struct {
	value any
	tree  *btree.BTreeG[*entity]
}

// active is the group of the entities whose phase is not terminal.
var active = &group{value: true}

// groups are the groups of one kind, by value.
type groups map[any]*group

// move moves an entity from its group to the group that has the value of next, and returns
// it. Both may be nil.
func (gs groups) move(en *entity, now, next *group) *group {
	if now != nil && next != nil && now.value == next.value {
		return now
	}
	if now != nil {
		if now.tree.Delete(en); now.tree.Len() == 0 {
			delete(gs, now.value)
		}
	}
	if next == nil {
		return nil
	}
	g := gs[next.value]
	if g == nil {
		g = &group{value: next.value, tree: btree.NewG(degree, byID)}
		gs[g.value] = g
	}
	g.tree.ReplaceOrInsert(en)
	return g
}

// index is one workflow's entities. Trees are ordered by id, so that pages are
// stable.
type index struct {
	r        *registration
	all      *btree.BTreeG[*entity]
	due      *btree.BTreeG[*entity] // entities with a deadline or a timer, by its time
	degraded map[string]*entity     // by key
	groups   []groups
}

func byID(a, b *entity) bool { return a.id < b.id }

func byDue(a, b *entity) bool { return a.due < b.due || a.due == b.due && a.id < b.id }

// degree keeps the trees flat and their nodes well filled.
const degree = 32

func newIndex(r *registration) *index {
	x := &index{
		r:        r,
		all:      btree.NewG(degree, byID),
		due:      btree.NewG(degree, byDue),
		degraded: make(map[string]*entity),
		groups:   make([]groups, ofFields+len(r.fields.indexed)),
	}
	for i := range x.groups {
		x.groups[i] = make(groups)
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
	en.groups = make([]*group, ofFields+len(r.fields.indexed))
	en.enter(r, p.Phase())
	if parent := p.ParentEntityID(); parent != "" {
		en.groups[ofParent] = &group{value: parent}
	}
	for i, f := range r.fields.indexed {
		en.groups[ofFields+i] = &group{value: f.of(p).Interface()}
	}
	return en
}

// enter sets what an entity has by its phase.
func (en *entity) enter(r *registration, phase string) {
	en.groups[ofPhase], en.groups[ofActive] = &group{value: phase}, nil
	if r.active(phase) {
		en.groups[ofActive] = active
	}
	en.due = r.dueAt(phase, en.since, en.timers, en.paused)
}

// inPhase returns a copy of an entity with the effect of a write that only enters a phase.
func (en *entity) inPhase(e *entry, phase string) *entity {
	next := *en
	next.revision, next.at, next.since = e.revision, e.at.UnixNano(), e.at.UnixNano()
	next.data, next.timers, next.keys = e.data, e.timers, e.keys
	next.change, next.pending, next.paused = e.lastChange(), e.pending, e.paused()
	next.groups = slices.Clone(en.groups)
	next.enter(en.index.r, phase)
	return &next
}

func (en *entity) phaseName() string {
	if !en.decoded {
		return ""
	}
	return en.groups[ofPhase].value.(string) //nolint:errcheck,forcetypeassert // a phase is a string
}

func (en *entity) field(f *field) any { return en.groups[ofFields+f.indexed].value }

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

// putLocked puts an entity into the view, in place of its previous revision. It touches
// only the trees whose order or content changes: to drop and put an entity takes three times as
// long, in a view of 1,000 entities and in one of 200,000.
func (v *view) putLocked(r *registration, en *entity) {
	x, now := v.indexes[r.workflow], v.entities[en.key]
	if now != nil && (now.index != x || now.decoded != en.decoded || now.id != en.id) {
		v.dropLocked(now)
		now = nil
	}
	if now == nil {
		now = &entity{index: x, id: en.id, key: en.key, groups: make([]*group, len(en.groups))}
		v.entities[now.key] = now
		if en.decoded {
			x.all.ReplaceOrInsert(now)
		}
	}
	delete(x.degraded, now.key)
	if en.degraded != nil {
		x.degraded[now.key] = now
	}
	for i, g := range en.groups {
		en.groups[i] = x.groups[i].move(now, now.groups[i], g)
	}
	x.due.Delete(now)
	en.index, en.id, en.key = now.index, now.id, now.key
	*now = *en
	v.scheduleLocked(now)
}

func (v *view) dropLocked(en *entity) {
	delete(v.entities, en.key)
	x := en.index
	delete(x.degraded, en.key)
	if !en.decoded {
		return
	}
	x.all.Delete(en)
	x.due.Delete(en)
	for i, g := range en.groups {
		x.groups[i].move(en, g, nil)
	}
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
