package rollout

import (
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
		m.handle(e)
	}
}

func (m *sim) handle(e event) {
	switch e.kind {
	case podReady:
		m.ready++
		m.reconcile()
		if m.ready == m.Pods {
			m.out.Took = m.now
		}
	case podStops:
		m.stop(e.pod)
	case sleepOver:
		m.shutdown(e.pod)
	case goAway:
		m.sendGoAway(e.pod)
	case windowOver:
		m.endWindow(e.pod)
	case lookQuiet:
		m.closeWhenQuiet(e.pod)
	case lingerOver:
		m.shutdown(e.pod)
	case podKilled:
		m.kill(e.pod)
	case arrival:
		m.arrive(e)
	case connects:
		m.connect(e.client)
	case sends:
		m.send(e.client)
	case reaches:
		m.reach(e)
	case answers:
		m.answer(e)
	case connTold:
		m.tell(e)
	case expires:
		m.expire(e.client)
	}
}

// later adds an event of a pod.
func (m *sim) later(d time.Duration, k kind, pod int32) {
	m.queue.add(event{at: m.now + d, kind: k, pod: pod})
}

// laterFor adds an event of a client.
func (m *sim) laterFor(d time.Duration, k kind, pod, client int32) {
	m.queue.add(event{at: m.now + d, kind: k, pod: pod, client: client})
}

// reconcile creates new pods and stops old ones as far as the strategy allows now.
func (m *sim) reconcile() {
	st := m.Strategy
	old := func() int { return m.Pods - m.nextOld }
	for m.nextOld < m.Pods && old()+m.ready > m.Pods-st.Unavailable {
		m.nextDelete = max(m.now, m.nextDelete)
		m.queue.add(event{at: m.nextDelete, kind: podStops, pod: int32(m.nextOld)})
		m.nextDelete += st.pause()
		m.nextOld++
		m.terminating++
	}
	for m.created < m.Pods && old()+m.created < m.Pods+st.Surge && (st.Room == 0 || old()+m.created+m.terminating < st.Room) {
		m.nextCreate = max(m.now, m.nextCreate)
		draw := newStream(m.Seed, 3, uint64(m.created))
		start := st.Startup + time.Duration(draw.unit()*float64(st.Jitter))
		m.queue.add(event{at: m.nextCreate + start, kind: podReady})
		m.nextCreate += st.pause()
		m.created++
	}
	m.out.Peak = max(m.out.Peak, old()+m.created+m.terminating)
}

func (st Strategy) pause() time.Duration {
	if st.Rate == 0 {
		return 0
	}
	return time.Duration(float64(time.Second) / st.Rate)
}

// result checks that every request has come to an end.
func (m *sim) result() (Result, error) {
	for i, c := range m.Crowds {
		t := &m.tallies[i]
		if t.Sent != t.Answered+t.Lost.All() {
			return Result{}, fmt.Errorf("crowd %q: %d requests were sent, %d answered and %d lost: the simulation is wrong", c.Name, t.Sent, t.Answered, t.Lost.All())
		}
		t.Requests = max(c.rate()*float64(m.Pods)*m.out.Took.Seconds(), float64(t.Sent))
	}
	m.out.Crowds = m.tallies
	return m.out, nil
}
