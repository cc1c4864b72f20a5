package rollout

import (
	"container/heap"
	"time"
)

// event happens at a time. Events at the same time happen in the order in which they
// were added.
type event struct {
	at     time.Duration
	order  int
	happen func()
}

// queue is a heap of events, the earliest first.
type queue struct {
	events []event
	added  int
}

func (q *queue) Len() int      { return len(q.events) }
func (q *queue) Swap(i, j int) { q.events[i], q.events[j] = q.events[j], q.events[i] }
func (q *queue) Less(i, j int) bool {
	a, b := &q.events[i], &q.events[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

func (q *queue) Push(x any) {
	e, _ := x.(event) // add pushes no other
	q.events = append(q.events, e)
}

func (q *queue) Pop() any {
	last := len(q.events) - 1
	e := q.events[last]
	q.events = q.events[:last]
	return e
}

func (q *queue) add(at time.Duration, happen func()) {
	q.added++
	heap.Push(q, event{at, q.added, happen})
}

// next takes the earliest event out of the queue, which is not empty.
func (q *queue) next() event {
	e, _ := heap.Pop(q).(event)
	return e
}
