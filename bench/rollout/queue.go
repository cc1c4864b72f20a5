package rollout

import (
	"container/heap"
	"time"
)

// kind says what an event is.
type kind uint8

const (
	podReady   kind = iota // a new pod takes requests
	podStops               // T0 of an old pod
	sleepOver              // the preStop hook has slept
	goAway                 // HTTP/2 connections are told
	windowOver             // the drain window ends
	lookQuiet              // may the listener close?
	lingerOver             // open connections close
	podKilled              // the in-flight slice is over
	arrival                // a client opens its connection to the pod
	connects               // a connection reaches the pod
	sends                  // a client sends its next request
	reaches                // a request reaches the pod
	answers                // its handler returns
	connTold               // one HTTP/2 connection is told
	expires                // a client closes its connection
)

// event happens at a time. Events at the same time happen in the order in which they
// were added.
type event struct {
	at     time.Duration
	order  uint64
	kind   kind
	pod    int32
	client int32
}

// queue is a heap of events, the earliest first.
type queue struct {
	events []event
	order  uint64
}

func (q *queue) Len() int      { return len(q.events) }
func (q *queue) Swap(i, j int) { q.events[i], q.events[j] = q.events[j], q.events[i] }
func (q *queue) Less(i, j int) bool {
	a, b := &q.events[i], &q.events[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// Push and Pop make the queue a heap.Interface. heap.Fix, all that the queue uses, does
// not call them. With heap.Push each event would be allocated.
func (q *queue) Push(any) { panic("unused") }
func (q *queue) Pop() any { panic("unused") }

func (q *queue) add(e event) {
	q.order++
	e.order = q.order
	q.events = append(q.events, e)
	heap.Fix(q, len(q.events)-1)
}

// next takes the earliest event out of the queue, which is not empty.
func (q *queue) next() event {
	first, last := q.events[0], len(q.events)-1
	q.events[0] = q.events[last]
	q.events = q.events[:last]
	if last > 0 {
		heap.Fix(q, 0)
	}
	return first
}
