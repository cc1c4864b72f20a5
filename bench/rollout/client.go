package rollout

import "time"

// client has at most one connection. It is simulated from the moment at which its pod
// stops, or at which it opens a connection to such a pod, until it finds a pod that
// does not stop.
type client struct {
	random stream
	due    time.Duration // when it sends its next request
	ends   time.Duration // when it closes its connection, or never
	pod    int32
	source int32
	crowd  uint8
	state  connState
	single bool // it sends one request
	late   bool // HTTP/2: it came after the pod's GOAWAY, and gets its own
}

type connState uint8

const (
	none       connState = iota // the next request opens a connection
	connecting                  // the connection is on its way
	open                        // the pod has accepted it
	left                        // the client is not simulated any more
)

// populate adds the clients of a crowd that are connected to the pod at its T0, and
// schedules the first client that connects to it later.
func (m *sim) populate(i int32, crowd uint8) {
	c := &m.Crowds[crowd]
	for n := range c.Conns {
		random := newStream(m.Seed, 4, uint64(i), uint64(crowd), uint64(n))
		source := int32(random.below(m.sources))
		m.clients = append(m.clients, client{
			random: random,
			crowd:  crowd,
			state:  open,
			pod:    i,
			source: source,
			ends:   never,
		})
		id := int32(len(m.clients) - 1)
		m.opened(id)
		if first := c.Gap.residual(&m.clients[id].random); first >= m.Trip {
			m.idle(id, first-m.Trip)
		} else {
			m.sendAhead(id, first)
		}
	}
	if c.opens() > 0 && m.longest > 0 {
		m.arrivals[int(i)*len(m.Crowds)+int(crowd)] = newStream(m.Seed, 5, uint64(i), uint64(crowd))
		m.nextArrival(i, crowd)
	}
}

// sendAhead adds a request that was on its way at T0, and arrives in d.
func (m *sim) sendAhead(id int32, d time.Duration) {
	cl := &m.clients[id]
	m.tallies[cl.crowd].Sent++
	m.reachIn(d, id)
	if c := &m.Crowds[cl.crowd]; c.HTTP2 {
		m.later(d+c.Gap.draw(&cl.random), func() { m.send(id) })
	}
}

// opened counts a connection of the client, and draws how long the client keeps it.
func (m *sim) opened(id int32) {
	cl := &m.clients[id]
	c, p := &m.Crowds[cl.crowd], &m.pods[cl.pod]
	p.open++
	if c.HTTP2 {
		p.openHTTP2++
	} else if c.Lifetime > 0 {
		cl.ends = m.now + cl.random.exp(c.Lifetime)
	}
}

// nextArrival draws the next connection that the crowd opens to the pod, from a source
// that does not know yet that the pod stops. Connections from other sources go to other
// pods and are not simulated.
func (m *sim) nextArrival(i int32, crowd uint8) {
	c, p := &m.Crowds[crowd], &m.pods[i]
	random := &m.arrivals[int(i)*len(m.Crowds)+int(crowd)]
	pause := time.Duration(float64(time.Second) / c.opens())
	for at := m.now + random.exp(pause); at-p.t0 < m.longest; at += random.exp(pause) {
		source := random.below(m.sources)
		if at-p.t0 < m.Spread.knows(m.Seed, int(i), source, m.sources) {
			m.clients = append(m.clients, client{random: stream(random.next()), crowd: crowd, source: int32(source), single: c.Conns == 0})
			id := int32(len(m.clients) - 1)
			m.queue.add(at, func() { m.arrive(i, id) })
			return
		}
	}
}

// arrive lets a client that is not simulated yet open a connection to the pod.
func (m *sim) arrive(pod, id int32) {
	crowd := m.clients[id].crowd
	m.tallies[crowd].Sent++
	m.dial(id, pod)
	m.nextArrival(pod, crowd)
}

// routes reports whether the source still sends connections to the pod.
func (m *sim) routes(source, i int) bool {
	p := &m.pods[i]
	return !p.stopping || m.now < p.t0+m.Spread.knows(m.Seed, i, source, m.sources)
}

// pick chooses a pod for a new connection as the client's source would. It returns
// false for one that does not stop.
func (m *sim) pick(cl *client) (i int32, stops bool) {
	for range 1000 {
		n := cl.random.below(m.Pods + m.ready)
		if n >= m.Pods {
			return 0, false // a new pod
		}
		if !m.pods[n].stopping {
			return 0, false
		}
		if m.routes(int(cl.source), n) {
			return int32(n), true
		}
	}
	return 0, false // nearly all pods are stopping: it takes a new one
}

func (m *sim) dial(id, pod int32) {
	cl := &m.clients[id]
	cl.pod, cl.state, cl.late, cl.ends = pod, connecting, false, never
	m.later(m.Trip, func() { m.connect(id) })
}

// connect handles the arrival of a connection at the pod.
func (m *sim) connect(id int32) {
	cl := &m.clients[id]
	p := &m.pods[cl.pod]
	if p.refuses != never {
		m.tallies[cl.crowd].Lost.Refused++
		m.disconnected(id)
		return
	}
	p.accepted = m.now
	cl.state = open
	m.opened(id)
	if m.Crowds[cl.crowd].HTTP2 && p.goAway != never {
		cl.late = true
	}
	m.reachIn(2*m.Trip, id)
	if m.Crowds[cl.crowd].HTTP2 {
		m.later(m.Crowds[cl.crowd].Gap.draw(&cl.random), func() { m.send(id) })
	}
}

// disconnected handles the failure of a client's connection. The client opens another
// for its next request.
func (m *sim) disconnected(id int32) {
	cl := &m.clients[id]
	cl.state = none
	if cl.single {
		cl.state = left
		return
	}
	m.later(m.Crowds[cl.crowd].Gap.draw(&cl.random), func() { m.send(id) })
}

// idle schedules the client's next request, in d, or the end of its connection when that
// comes first.
func (m *sim) idle(id int32, d time.Duration) {
	cl := &m.clients[id]
	cl.due = m.now + d
	if cl.ends != never && cl.ends < cl.due {
		m.later(max(0, cl.ends-m.now), func() { m.expire(id) })
		return
	}
	m.later(d, func() { m.send(id) })
}

// expire lets a client close its connection.
func (m *sim) expire(id int32) {
	cl := &m.clients[id]
	if p := &m.pods[cl.pod]; p.closed == never {
		p.open--
		m.leaveWhenIdle(cl.pod)
	}
	cl.state = none
	m.later(cl.due-m.now, func() { m.send(id) })
}

// send lets a client send a request, on its open connection or on a new one.
func (m *sim) send(id int32) {
	cl := &m.clients[id]
	if cl.state == left {
		return
	}
	c, p := &m.Crowds[cl.crowd], &m.pods[cl.pod]
	m.tallies[cl.crowd].Sent++
	switch {
	case cl.state == open && c.HTTP2:
		if sent := m.goAwayAt(cl); sent != never && m.now >= sent+m.Trip {
			cl.state = none // the GOAWAY has arrived
		}
	case cl.state == open && p.closed != never && !c.Careless && m.now >= p.closed+m.Trip:
		cl.state = none // the close has arrived, and a careful client notices it
	}
	if cl.state == open {
		m.reachIn(m.Trip, id)
		if c.HTTP2 {
			m.later(c.Gap.draw(&cl.random), func() { m.send(id) })
		}
		return
	}
	pod, stops := m.pick(cl)
	if !stops {
		cl.state = left
		m.tallies[cl.crowd].Answered++
		return
	}
	m.dial(id, pod)
}

// goAwayAt returns when the pod sent GOAWAY on the client's connection, or never.
func (m *sim) goAwayAt(cl *client) time.Duration {
	p := &m.pods[cl.pod]
	if cl.late {
		return p.closed
	}
	return p.goAway
}

// reachIn lets a request of the client reach its pod in d.
func (m *sim) reachIn(d time.Duration, id int32) {
	pod := m.clients[id].pod
	m.later(d, func() { m.reach(pod, id) })
}

// reach handles the arrival of a request on a connection that was open when the client
// sent it.
func (m *sim) reach(pod, id int32) {
	cl, p := &m.clients[id], &m.pods[pod]
	c, t := &m.Crowds[cl.crowd], &m.tallies[cl.crowd]
	if c.HTTP2 {
		sent := m.goAwayAt(cl)
		grace := time.Duration(0)
		if m.Stop.TwoSteps {
			grace = 2 * m.Trip
		}
		if sent != never && m.now > sent+grace {
			t.Lost.GoAway++
			return
		}
	} else if p.closed != never {
		t.Lost.Reset++
		m.disconnected(id)
		return
	}
	p.inFlight++
	m.later(cl.random.exp(c.Service), func() { m.answer(pod, id) })
}

// answer handles the end of a request's handler.
func (m *sim) answer(pod, id int32) {
	cl, p := &m.clients[id], &m.pods[pod]
	c, t := &m.Crowds[cl.crowd], &m.tallies[cl.crowd]
	p.inFlight--
	if p.cut != never {
		t.Lost.Cut++
	} else {
		t.Answered++
	}
	if c.HTTP2 {
		m.leaveWhenIdle(pod)
		return
	}
	if cl.single || m.drains(p) || p.closed != never {
		p.open--
		m.leaveWhenIdle(pod)
		if cl.state = none; cl.single {
			cl.state = left
			return
		}
		cl.ends = never
	}
	m.idle(id, m.Trip+c.Gap.draw(&cl.random))
}
