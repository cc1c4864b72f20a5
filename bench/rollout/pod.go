package rollout

import "time"

// never stands for a moment that has not come.
const never = time.Duration(-1)

// pod is an old pod. Before its stop it has no state, because it answers every request.
type pod struct {
	stopping bool
	t0       time.Duration
	// The moments of its stop, or never.
	goAway  time.Duration // HTTP/2 connections got GOAWAY
	over    time.Duration // the window ended
	refuses time.Duration // the listener closed
	closed  time.Duration // idle connections closed, and no request is read any more
	cut     time.Duration // the requests that were left were cut
	gone    bool

	accepted  time.Duration // the last connection
	open      int           // connections
	openHTTP2 int           // how many of these are HTTP/2 and have no GOAWAY yet
	inFlight  int           // requests
}

// stop begins the pod's stop, at its T0. It schedules the steps of the stop and adds the
// pod's clients.
func (m *sim) stop(i int32) {
	p := &m.pods[i]
	*p = pod{stopping: true, t0: m.now, goAway: never, over: never, refuses: never, closed: never, cut: never}
	if s := m.Stop; !s.Drain {
		m.later(s.Sleep, func() { m.shutdown(i) })
	} else {
		m.later(s.Sleep+m.window(int(i)), func() { m.endWindow(i) })
	}
	for c := range m.Crowds {
		m.populate(i, uint8(c))
	}
}

// window returns the length of the pod's drain window.
func (m *sim) window(i int) time.Duration {
	if !m.Stop.Follow {
		return m.Stop.Window
	}
	return min(m.Stop.Window, max(m.Stop.Least, m.Spread.slice(m.Seed, i)+m.Stop.Margin))
}

// drains reports whether the pod has begun to say goodbye.
func (m *sim) drains(p *pod) bool { return m.Stop.Drain && m.now >= p.t0+m.Stop.Sleep }

// sendGoAway sends GOAWAY on the HTTP/2 connections. The pod does not wait for these connections:
// their clients leave within a round trip.
func (m *sim) sendGoAway(i int32) {
	p := &m.pods[i]
	if p.goAway != never {
		return
	}
	p.goAway = m.now
	p.open -= p.openHTTP2
	p.openHTTP2 = 0
	m.leaveWhenIdle(i)
}

func (m *sim) endWindow(i int32) {
	m.pods[i].over = m.now
	m.later(m.Stop.InFlight, func() { m.kill(i) })
	m.sendGoAway(i)
	m.closeWhenQuiet(i)
}

// closeWhenQuiet closes the listener once nothing was accepted for AcceptQuiet and for half
// of the time since T0, or after AcceptMax.
func (m *sim) closeWhenQuiet(i int32) {
	p := &m.pods[i]
	if p.refuses != never {
		return
	}
	t0 := p.t0 + m.Stop.Sleep
	due := max(p.over, p.accepted) + m.Stop.AcceptQuiet
	if p.accepted > t0 && m.Stop.AcceptQuiet > 0 {
		due = max(due, p.accepted+(p.accepted-t0))
	}
	due = min(due, p.over+m.Stop.AcceptMax)
	if due > m.now {
		m.later(due-m.now, func() { m.closeWhenQuiet(i) })
		return
	}
	p.refuses = m.now
	m.later(max(p.over+m.Stop.Linger, m.now+m.Stop.Linger/2)-m.now, func() { m.shutdown(i) })
	m.leaveWhenIdle(i)
}

// leaveWhenIdle ends the pod early: Linger when no connection is open, and the wait for
// requests when none runs.
func (m *sim) leaveWhenIdle(i int32) {
	p := &m.pods[i]
	if p.gone || p.refuses == never {
		return
	}
	if p.closed == never && p.open == 0 {
		m.shutdown(i)
		return
	}
	if p.closed != never && p.inFlight == 0 {
		m.end(i)
	}
}

// shutdown does what http.Server.Shutdown does: the listener and idle connections close, and
// requests that arrive from now on are dropped.
func (m *sim) shutdown(i int32) {
	p := &m.pods[i]
	if p.closed != never || p.gone {
		return
	}
	if p.refuses == never {
		p.refuses = m.now
	}
	p.closed = m.now
	m.sendGoAway(i)
	if !m.Stop.Drain {
		m.later(m.Stop.InFlight, func() { m.kill(i) })
	}
	m.leaveWhenIdle(i)
}

// kill cuts the requests that are left.
func (m *sim) kill(i int32) {
	p := &m.pods[i]
	if p.gone {
		return
	}
	m.shutdown(i)
	p.cut = m.now
	m.end(i)
}

func (m *sim) end(i int32) {
	p := &m.pods[i]
	if p.gone {
		return
	}
	p.gone = true
	m.out.Terminating += m.now - p.t0
	m.out.Gone = max(m.out.Gone, m.now)
	m.terminating--
	m.reconcile()
}
