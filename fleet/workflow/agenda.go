package workflow

import (
	"container/heap"
	"hash/maphash"
	"sync"
)

// agenda is what comes due in a view, in a heap for each shard of the keys. The view
// puts each record in. Deadlines takes what is due out, and puts back what it could not
// write: an entity that cannot be written waits for its next turn and delays no other.
type agenda struct {
	seed   maphash.Seed
	shards [16]shard
	ring   func() // called when something comes due earlier than before
}

type shard struct {
	mu    sync.Mutex // guards the fields below
	queue queueOfDue
	byKey map[string]*appointment
}

// appointment is one entity that comes due.
type appointment struct {
	r     *registration
	key   string
	id    string
	due   int64 // by the server's clock, in Unix nanoseconds
	at    int64 // when to try: due, or later after failures
	tries int   // failures since it was put in
	index int   // in the heap, -1 while it is taken out
}

func newAgenda(ring func()) *agenda {
	a := &agenda{seed: maphash.MakeSeed(), ring: ring}
	for i := range a.shards {
		a.shards[i].byKey = make(map[string]*appointment)
	}
	return a
}

func (a *agenda) shard(key string) *shard {
	return &a.shards[maphash.String(a.seed, key)%uint64(len(a.shards))]
}

// set puts in when an entity comes due. due 0 takes it out.
func (a *agenda) set(r *registration, key, id string, due int64) {
	s := a.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byKey[key]
	if old != nil && due != 0 && old.due == due && old.r == r && old.id == id {
		return // it keeps its place, and what is known of its failures
	}
	if old != nil {
		delete(s.byKey, key)
		if old.index >= 0 {
			heap.Remove(&s.queue, old.index)
		}
	}
	if due == 0 {
		return
	}
	made := &appointment{r: r, key: key, id: id, due: due, at: due}
	s.byKey[key] = made
	heap.Push(&s.queue, made)
	if made.index == 0 {
		a.ring()
	}
}

// clear takes everything out.
func (a *agenda) clear() {
	for i := range a.shards {
		s := &a.shards[i]
		s.mu.Lock()
		s.queue = nil
		clear(s.byKey)
		s.mu.Unlock()
	}
}

// take takes out at most n appointments whose time has come. next is when the next of
// the others comes, 0 when there is none.
func (a *agenda) take(now int64, n int) (due []*appointment, next int64) {
	for i := range a.shards {
		s := &a.shards[i]
		s.mu.Lock()
		for len(s.queue) > 0 && s.queue[0].at <= now && len(due) < n {
			due = append(due, s.queue.first())
		}
		if len(s.queue) > 0 && (next == 0 || s.queue[0].at < next) {
			next = s.queue[0].at
		}
		s.mu.Unlock()
	}
	return due, next
}

// back puts an appointment in again, for a later time. It does nothing when the view
// has seen the entity change meanwhile.
func (a *agenda) back(ap *appointment, at int64) {
	s := a.shard(ap.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[ap.key] != ap || ap.index >= 0 {
		return
	}
	ap.at = at
	ap.tries++
	heap.Push(&s.queue, ap)
	if ap.index == 0 {
		a.ring()
	}
}

// queueOfDue is a heap.Interface, ordered by time.
type queueOfDue []*appointment

func (q queueOfDue) Len() int           { return len(q) }
func (q queueOfDue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queueOfDue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// first takes the first out.
func (q *queueOfDue) first() *appointment {
	return heap.Pop(q).(*appointment) //nolint:errcheck,forcetypeassert // only appointments are pushed
}

// Push is for package heap.
func (q *queueOfDue) Push(x any) {
	ap := x.(*appointment) //nolint:errcheck,forcetypeassert // only appointments are pushed
	ap.index = len(*q)
	*q = append(*q, ap)
}

// Pop is for package heap.
func (q *queueOfDue) Pop() any {
	last := len(*q) - 1
	ap := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	ap.index = -1
	return ap
}
