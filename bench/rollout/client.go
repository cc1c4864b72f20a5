package rollout

import "time"

// client has at most one connection. It is simulated from the moment at which its pod
// stops, or at which it opens a connection to such a pod, until it finds a pod that
// does not stop.
type client struct {
	random stream
	due    time.Duration // when it sends its next request
	ends   time.Duration // when it closes its connection, or never
	told   time.Duration // when its own GOAWAY was sent, or never
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

// resend is how often the library looks for HTTP/2 connections that came late.
const resend = 100 * time.Millisecond

// populate adds the clients of a crowd that are connected to the pod at its T0, and
// schedules the first of those that connect to it later.
func (m *sim) populate(i int32, crowd uint8) {
	c := &m.Crowds[crowd]
	for n := range c.Conns {
		random := newStream(m.Seed, 4, uint64(i), uint64(crowd), uint64(n))
		source := int32(random.below(m.sources))
		m.clients = append(m.clients, client{random: random, crowd: crowd, state: open, pod: i, source: source, ends: never, told: never})
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
	m.laterFor(d, reaches, cl.pod, id)
	if c := &m.Crowds[cl.crowd]; c.HTTP2 {
		m.laterFor(d+c.Gap.draw(&cl.random), sends, cl.pod, id)
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
			m.queue.add(event{at: at, kind: arrival, pod: i, client: int32(len(m.clients) - 1)})
			return
		}
	}
}

// arrive lets a client that is not simulated yet open a connection to the pod.
func (m *sim) arrive(e event) {
	crowd := m.clients[e.client].crowd
	m.tallies[crowd].Sent++
	m.dial(e.client, e.pod)
	m.nextArrival(e.pod, crowd)
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
	cl.pod, cl.state, cl.late, cl.told, cl.ends = pod, connecting, false, never, never
	m.laterFor(m.Trip, connects, pod, id)
}

// connect handles the arrival of a connection at the pod.
func (m *sim) connect(id int32) {
	cl := &m.clients[id]
	p := &m.pods[cl.pod]
	if p.deaf != never {
		m.tallies[cl.crowd].Lost.Refused++
		m.disconnected(id)
		return
	}
	p.accepted = m.now
	cl.state = open
	m.opened(id)
	if m.Crowds[cl.crowd].HTTP2 && p.told != never {
		cl.late = true
		m.laterFor(time.Duration(cl.random.unit()*float64(resend)), connTold, cl.pod, id)
	}
	m.laterFor(2*m.Trip, reaches, cl.pod, id)
	if m.Crowds[cl.crowd].HTTP2 {
		m.laterFor(m.Crowds[cl.crowd].Gap.draw(&cl.random), sends, cl.pod, id)
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
	m.laterFor(m.Crowds[cl.crowd].Gap.draw(&cl.random), sends, cl.pod, id)
}

// idle schedules the client's next request, in d, or the end of its connection when that
// comes first.
func (m *sim) idle(id int32, d time.Duration) {
	cl := &m.clients[id]
	cl.due = m.now + d
	if cl.ends != never && cl.ends < cl.due {
		m.laterFor(max(0, cl.ends-m.now), expires, cl.pod, id)
		return
	}
	m.laterFor(d, sends, cl.pod, id)
}

// expire lets a client close its connection.
func (m *sim) expire(id int32) {
	cl := &m.clients[id]
	if p := &m.pods[cl.pod]; p.closed == never {
		p.open--
		m.leaveWhenIdle(cl.pod)
	}
	cl.state = none
	m.laterFor(cl.due-m.now, sends, cl.pod, id)
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
		if told := m.toldAt(cl); told != never && m.now >= told+m.Trip {
			cl.state = none // the GOAWAY has arrived
		}
	case cl.state == open && p.closed != never && !c.Careless && m.now >= p.closed+m.Trip:
		cl.state = none // the close has arrived, and a careful client notices it
	}
	if cl.state == open {
		m.laterFor(m.Trip, reaches, cl.pod, id)
		if c.HTTP2 {
			m.laterFor(c.Gap.draw(&cl.random), sends, cl.pod, id)
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

// toldAt returns when the pod sent GOAWAY on the client's connection, or never.
func (m *sim) toldAt(cl *client) time.Duration {
	p := &m.pods[cl.pod]
	if !cl.late {
		return p.told
	}
	if cl.told == never {
		return p.closed
	}
	return cl.told
}

// tell sends GOAWAY to a client that came late.
func (m *sim) tell(e event) {
	cl, p := &m.clients[e.client], &m.pods[e.pod]
	if cl.pod != e.pod || !cl.late || cl.told != never || p.closed != never {
		return
	}
	cl.told = m.now
	p.open--
	p.openHTTP2--
	m.leaveWhenIdle(e.pod)
}

// reach handles the arrival of a request on a connection that was open when the client
// sent it.
func (m *sim) reach(e event) {
	cl, p := &m.clients[e.client], &m.pods[e.pod]
	c, t := &m.Crowds[cl.crowd], &m.tallies[cl.crowd]
	if c.HTTP2 {
		told := m.toldAt(cl)
		grace := time.Duration(0)
		if m.Stop.TwoSteps {
			grace = 2 * m.Trip
		}
		switch {
		case told == never || m.now <= told+grace:
		case c.Replays:
			t.Answered++
			t.Replayed++
			return
		default:
			t.Lost.GoAway++
			return
		}
	} else if p.closed != never {
		t.Lost.Reset++
		m.disconnected(e.client)
		return
	}
	p.inFlight++
	m.laterFor(cl.random.exp(c.Service), answers, e.pod, e.client)
}

// answer handles the end of a request's handler.
func (m *sim) answer(e event) {
	cl, p := &m.clients[e.client], &m.pods[e.pod]
	c, t := &m.Crowds[cl.crowd], &m.tallies[cl.crowd]
	p.inFlight--
	if p.cut != never {
		t.Lost.Cut++
	} else {
		t.Answered++
	}
	if c.HTTP2 {
		m.leaveWhenIdle(e.pod)
		return
	}
	if cl.single || m.drains(p) || p.closed != never {
		p.open--
		m.leaveWhenIdle(e.pod)
		if cl.state = none; cl.single {
			cl.state = left
			return
		}
		cl.ends = never
	}
	m.idle(e.client, m.Trip+c.Gap.draw(&cl.random))
}
