package procpool

// Priority lets the query overtake those with a lower one that wait. When the queue is
// full it takes the place of the last of them, which is rejected. Queries without this
// option have priority 0. A query of a low priority may wait until its deadline.
func Priority(n int) Option { return func(q *Query) { q.priority = n } }

// share is what a caller has in the queues.
type share struct {
	waiting int
	turn    uint64 // of its last query
}

// before reports whether q is served before other.
func (q *Query) before(other *Query) bool {
	if q.priority != other.priority {
		return q.priority > other.priority
	}
	if q.turn != other.turn {
		return q.turn < other.turn
	}
	return q.seq < other.seq
}

// joinLocked counts a query that begins to wait, and gives it its turn: the callers
// that wait take turns (start-time fair queueing with queries of one length).
func (p *Pool) joinLocked(q *Query) {
	if !p.cfg.FairShares {
		return
	}
	s := p.shares[q.caller]
	if s == nil {
		s = &share{}
		p.shares[q.caller] = s
	}
	s.waiting++
	if q.turn == 0 {
		s.turn = max(s.turn, p.turn) + 1
		q.turn = s.turn
	}
}

// leaveLocked counts a query that waits no more.
func (p *Pool) leaveLocked(q *Query) {
	if s := p.shares[q.caller]; s != nil {
		if s.waiting--; s.waiting == 0 {
			delete(p.shares, q.caller)
		}
	}
}

// displaceLocked makes room in a full queue for a query: in place of one with a lower
// priority, or with FairShares of the caller that has the most, when that has at least
// two more. It removes that query from its queue, and returns it, nil for none.
func (p *Pool) displaceLocked(q *Query) *Query {
	most := ""
	if p.cfg.FairShares {
		mine := 0
		for caller, s := range p.shares {
			if s.waiting > mine {
				most, mine = caller, s.waiting
			}
		}
		own := 0
		if s := p.shares[q.caller]; s != nil {
			own = s.waiting
		}
		if mine < own+2 {
			most = q.caller
		}
	}
	var last *Query
	for _, other := range p.waitingLocked() {
		if other.attempts > 0 || other.in == p.alone || other.priority > q.priority {
			continue
		}
		lower := other.priority < q.priority
		if !lower && (!p.cfg.FairShares || most == q.caller || other.caller != most) {
			continue
		}
		if last == nil || last.before(other) {
			last = other
		}
	}
	if last != nil {
		p.dequeueLocked(last)
	}
	return last
}
