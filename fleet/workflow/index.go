package workflow

import (
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
	version  string // of the record
	data     []byte
	own      bool  // times are by this process's clock: the follower has not seen the write yet
	degraded error // usually nil
	decoded  bool  // it has a phase, and is in the indexes
	phase    *named
	parent   *named // nil for a root
	fields   []*posting
}

// named is the entities that share a phase or a parent.
type named struct {
	name string
	tree *btree.BTreeG[*entity]
}

// posting is the entities that share a value.
type posting struct {
	value any
	tree  *btree.BTreeG[*entity]
}

// index is one workflow's entities. Trees are ordered by id, so that pages are
// stable.
type index struct {
	r        *registration
	all      *btree.BTreeG[*entity]
	active   *btree.BTreeG[*entity]
	degraded map[string]*entity // by key
	phases   map[string]*named
	parents  map[string]*named
	fields   []map[any]*posting
}

func byID(a, b *entity) bool { return a.id < b.id }

// degree keeps the trees flat and their nodes well filled.
const degree = 32

func newIndex(r *registration) *index {
	x := &index{
		r: r, all: btree.NewG(degree, byID), active: btree.NewG(degree, byID),
		degraded: make(map[string]*entity), phases: make(map[string]*named), parents: make(map[string]*named),
		fields: make([]map[any]*posting, len(r.fields.indexed)),
	}
	for i := range x.fields {
		x.fields[i] = make(map[any]*posting)
	}
	return x
}

// make makes an entity from an entry and the result of decoding it. It does not touch
// the view.
func (v *view) make(r *registration, e *entry, p Participant, err error) *entity {
	en := &entity{key: e.key, revision: e.revision, at: e.at.UnixNano(), since: e.since().UnixNano(), version: e.get(headerVersion), data: e.data, degraded: err}
	if p == nil {
		return en
	}
	en.id, en.decoded = p.EntityID(), true
	if err == nil {
		en.degraded = r.unknownPhase(e, p.Phase())
	}
	en.phase = &named{name: p.Phase()}
	if parent := p.ParentEntityID(); parent != "" {
		en.parent = &named{name: parent}
	}
	en.fields = make([]*posting, len(r.fields.indexed))
	for i, f := range r.fields.indexed {
		en.fields[i] = &posting{value: f.of(p).Interface()}
	}
	en.timers, en.keys = e.get(headerTimers), e.keyHeader()
	en.due = r.dueAt(p.Phase(), en.since, en.timers)
	return en
}

func (en *entity) phaseName() string {
	if en.phase == nil {
		return ""
	}
	return en.phase.name
}

// putLocked puts an entity into the view, in place of its previous revision.
func (v *view) putLocked(r *registration, en *entity) {
	x := v.indexes[r.workflow]
	if before := v.entities[en.key]; before != nil {
		if before.index == x && before.decoded && en.decoded && before.id == en.id {
			v.swapLocked(before, en)
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
	v.agenda.set(r, en.key, en.id, en.due)
	en.phase = group(x.phases, en.phase.name, en)
	if en.parent != nil {
		en.parent = group(x.parents, en.parent.name, en)
	}
	for i, f := range en.fields {
		en.fields[i] = post(x.fields[i], f.value, en)
	}
}

// swapLocked gives an entity of the view the content of its new revision. It touches
// only the trees whose order or content changes.
func (v *view) swapLocked(now, en *entity) {
	x := now.index
	if en.degraded != nil {
		x.degraded[now.key] = now
	} else if now.degraded != nil {
		delete(x.degraded, now.key)
	}
	if now.phase.name == en.phase.name {
		en.phase = now.phase
	} else {
		ungroup(x.phases, now.phase, now)
		en.phase = group(x.phases, en.phase.name, now)
		switch was, is := x.r.active(now.phase.name), x.r.active(en.phase.name); {
		case was && !is:
			x.active.Delete(now)
		case is && !was:
			x.active.ReplaceOrInsert(now)
		}
	}
	switch {
	case now.parent != nil && en.parent != nil && now.parent.name == en.parent.name:
		en.parent = now.parent
	default:
		if now.parent != nil {
			ungroup(x.parents, now.parent, now)
		}
		if en.parent != nil {
			en.parent = group(x.parents, en.parent.name, now)
		}
	}
	for i, f := range now.fields {
		if en.fields[i].value == f.value {
			en.fields[i] = f
			continue
		}
		unpost(x.fields[i], f, now)
		en.fields[i] = post(x.fields[i], en.fields[i].value, now)
	}
	en.index, en.id, en.key = now.index, now.id, now.key
	*now = *en
	v.agenda.set(x.r, now.key, now.id, now.due)
}

// unpost removes an entity from those that share a field's value.
func unpost(postings map[any]*posting, p *posting, en *entity) {
	if p.tree.Delete(en); p.tree.Len() == 0 {
		delete(postings, p.value)
	}
}

// post adds an entity to those that share a field's value.
func post(postings map[any]*posting, value any, en *entity) *posting {
	p := postings[value]
	if p == nil {
		p = &posting{value: value, tree: btree.NewG(degree, byID)}
		postings[value] = p
	}
	p.tree.ReplaceOrInsert(en)
	return p
}

// group adds an entity to those that share a phase or a parent.
func group(groups map[string]*named, name string, en *entity) *named {
	g := groups[name]
	if g == nil {
		g = &named{name: name, tree: btree.NewG(degree, byID)}
		groups[name] = g
	}
	g.tree.ReplaceOrInsert(en)
	return g
}

func ungroup(groups map[string]*named, g *named, en *entity) {
	if g.tree.Delete(en); g.tree.Len() == 0 {
		delete(groups, g.name)
	}
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
	v.agenda.set(nil, en.key, "", 0)
	ungroup(x.phases, en.phase, en)
	if en.parent != nil {
		ungroup(x.parents, en.parent, en)
	}
	for i, f := range en.fields {
		unpost(x.fields[i], f, en)
	}
}
