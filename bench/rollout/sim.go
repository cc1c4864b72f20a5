package rollout

import (
	"container/heap"
	"fmt"
	"time"
)

// sim is a running simulation. It has one goroutine.
type sim struct {
	Scenario
	now     time.Duration
	queue   queue
	sources int
	longest time.Duration // from T0 until every source knows

	pods    []pod // the old ones
	clients []client
	// arrivals draws the new connections of each pod and crowd.
	arrivals []stream

	control
	tallies []Tally
	out     Result
}

// control is the state of the Deployment.
type control struct {
	nextOld     int // old pods are stopped in the order of their numbers
	created     int // new pods
	ready       int // of these
	terminating int
	nextCreate  time.Duration // by Strategy.Rate
	nextDelete  time.Duration
}

func newSim(s Scenario) *sim {
	m := &sim{Scenario: s, sources: s.Spread.Sources, longest: s.Spread.Longest()}
	if m.sources == 0 {
		m.sources = s.Nodes
	}
	m.pods = make([]pod, s.Pods)
	m.arrivals = make([]stream, s.Pods*len(s.Crowds))
	m.tallies = make([]Tally, len(s.Crowds))
	return m
}

func (m *sim) run() {
	m.reconcile()
	for m.queue.Len() > 0 {
		e := m.queue.next()
		m.now = e.at
		m.out.Events++
		e.happen()
	}
}

// later adds an event.
func (m *sim) later(d time.Duration, happen func()) { m.queue.add(m.now+d, happen) }

// reconcile creates new pods and stops old ones as far as the strategy allows now.
func (m *sim) reconcile() {
	st := m.Strategy
	old := func() int { return m.Pods - m.nextOld }
	for m.nextOld < m.Pods && old()+m.ready > m.Pods-st.Unavailable {
		m.nextDelete = max(m.now, m.nextDelete)
		next := int32(m.nextOld)
		m.queue.add(m.nextDelete, func() { m.stop(next) })
		m.nextDelete += st.pause()
		m.nextOld++
		m.terminating++
	}
	hasRoom := func() bool { return st.Room == 0 || old()+m.created+m.terminating < st.Room }
	for m.created < m.Pods && old()+m.created < m.Pods+st.Surge && hasRoom() {
		m.nextCreate = max(m.now, m.nextCreate)
		draw := newStream(m.Seed, 3, uint64(m.created))
		start := st.Startup + time.Duration(draw.unit()*float64(st.Jitter))
		m.queue.add(m.nextCreate+start, m.podReady)
		m.nextCreate += st.pause()
		m.created++
	}
	m.out.Peak = max(m.out.Peak, old()+m.created+m.terminating)
}

// podReady lets a new pod take requests.
func (m *sim) podReady() {
	m.ready++
	m.reconcile()
	if m.ready == m.Pods {
		m.out.Took = m.now
	}
}

func (st Strategy) pause() time.Duration {
	if st.Rate == 0 {
		return 0
	}
	return time.Duration(float64(time.Second) / st.Rate)
}

// result returns what has happened. Every request has come to an end, or the simulation is
// wrong.
func (m *sim) result() Result {
	for i, c := range m.Crowds {
		t := &m.tallies[i]
		if t.Sent != t.Answered+t.Lost.All() {
			panic(fmt.Sprintf("crowd %q: %d requests were sent, %d answered and %d lost", c.Name, t.Sent, t.Answered, t.Lost.All()))
		}
		t.Requests = max(c.rate()*float64(m.Pods)*m.out.Took.Seconds(), float64(t.Sent))
	}
	m.out.Crowds = m.tallies
	return m.out
}

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
