package procpool

import (
	"cmp"
	"slices"
)

// share is what a caller has in the queue.
type share struct {
	waiting int
	turn    uint64 // of its last query
}

// compare orders the queries that wait: the first one is served first.
func (q *Query) compare(other *Query) int {
	return cmp.Or(cmp.Compare(q.turn, other.turn), cmp.Compare(q.seq, other.seq))
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

// displaceLocked makes room in a full queue for a query: with FairShares in place of the last one
// of the caller that has the most, when that has at least two more. It removes that query from the
// queue, and returns it, nil for none.
func (p *Pool) displaceLocked(q *Query) *Query {
	most, waiting := "", 0
	for caller, s := range p.shares {
		if s.waiting > waiting {
			most, waiting = caller, s.waiting
		}
	}
	own := 0
	if s := p.shares[q.caller]; s != nil {
		own = s.waiting
	}
	if waiting < own+2 {
		return nil
	}
	for _, last := range slices.Backward(p.queue) {
		if last.caller == most && last.attempts == 0 && !last.alone {
			p.dequeueLocked(last)
			return last
		}
	}
	return nil
}
