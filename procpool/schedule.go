package procpool

import (
	"container/list"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// assignLocked makes a ready worker busy with the query. The caller sends it after
// releasing the lock.
func (p *Pool) assignLocked(w *proc, q *Query) *attempt {
	p.unreadyLocked(w)
	q.attempts++
	p.turn = max(p.turn, q.turn)
	a := &attempt{q: q, id: q.id, begun: time.Now()}
	if q.attempts > 1 {
		a.id += "." + strconv.Itoa(q.attempts)
	}
	w.attempts = append(w.attempts, a)
	q.on, q.last = a, w.name
	w.recent[w.given%len(w.recent)] = a.id
	w.given++
	w.ignored = 0
	w.lastActivity = a.begun
	if !w.used {
		w.used, w.keyed, w.key = true, q.keyed, q.key
	}
	if q.sticky() && p.keys[q.key] != w {
		delete(p.lost, q.key) // a new session begins
		p.keys[q.key] = w
		w.keys = append(w.keys, q.key)
	}
	if w.full() {
		_ = w.machine.To(WorkerBusy, nil)
	} else {
		p.ready = append(p.ready, w)
	}
	if q.attempts == 1 {
		_ = q.machine.To(QueryProcessing, nil) // it may have ended meanwhile; send finds out
	}
	return a
}

func (p *Pool) enqueueLocked(l *list.List, q *Query) {
	p.waiting++
	q.in = l
	p.joinLocked(q)
	for e := l.Back(); e != nil; e = e.Prev() { // a retried query is older than others
		if other, ok := e.Value.(*Query); ok && other.before(q) {
			q.at = l.InsertAfter(q, e)
			return
		}
	}
	q.at = l.PushFront(q)
}

func (p *Pool) dequeueLocked(q *Query) {
	if q.at != nil {
		q.in.Remove(q.at)
		q.at, q.in = nil, nil
		p.waiting--
		p.leaveLocked(q)
	}
}

// unreadyLocked removes a worker from the workers that get queries.
func (p *Pool) unreadyLocked(w *proc) {
	p.ready = slices.DeleteFunc(p.ready, func(other *proc) bool { return other == w })
}

// nextLocked assigns the first query that fits to a ready worker, nil when none
// does.
func (p *Pool) nextLocked(w *proc) *attempt {
	var next *Query
	for e := w.waiting.Front(); e != nil && next == nil; e = e.Next() {
		if q, ok := e.Value.(*Query); ok && !w.runs(q) {
			next = q
		}
	}
	for e := p.queue.Front(); e != nil; e = e.Next() {
		q, ok := e.Value.(*Query)
		if !ok || next != nil && next.before(q) {
			break
		}
		if p.mayTakeLocked(w, q) {
			next = q
			break
		}
	}
	if next == nil {
		return nil
	}
	p.dequeueLocked(next)
	return p.assignLocked(w, next)
}

// abandon ends a query before its worker has answered, and asks the worker to stop it. It
// returns false when the query has already ended.
func (p *Pool) abandon(q *Query, to QueryState, err error) bool {
	if !q.finish(to, nil, err) {
		return false
	}
	p.mu.Lock()
	p.dequeueLocked(q)
	a := q.on
	w := p.workerOfLocked(a)
	if w != nil {
		w.awaitConfirmLocked(a)
		w.interruptLocked(a)
		p.alive.Go(func() { w.sendCancel(a) })
	}
	p.mu.Unlock()
	return true
}

// release takes back a worker that has confirmed the end of its attempt. It
// returns the worker's next attempt, nil for none.
func (p *Pool) release(w *proc, a *attempt, answered bool) (next *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.has(a) {
		return nil
	}
	now := time.Now()
	w.drop(a)
	a.q.on = nil
	w.lastActivity = now
	if answered {
		w.queries++
		w.proven, p.deaths = true, 0
		if p.slow(a, now) {
			w.logSlowLocked(a, now, "and has ended")
		}
		took := now.Sub(a.begun)
		p.mean += (took - p.mean) / 8
	}
	state := w.machine.State()
	if state != WorkerBusy && state != WorkerReady || w.leaving {
		return nil // it is shutting down
	}
	if w.alone {
		p.clearLocked(a.q)
		_ = w.machine.To(WorkerReady, nil)
		return p.nextAloneLocked(w)
	}
	if w.retire != nil {
		if w.idle() {
			w.stopLocked(true, w.retire)
		}
		return nil
	}
	if state == WorkerBusy {
		_ = w.machine.To(WorkerReady, nil)
	}
	if w.limits.queries > 0 && w.queries >= w.limits.queries && !w.recycling && p.mayRecycleLocked() {
		w.recycleLocked(fmt.Errorf("%w: it has served %d queries", ErrRecycled, w.queries), false)
		if w.leaving || w.retire != nil {
			return nil
		}
	}
	if why := p.starvedLocked(w, now); why != nil {
		p.counts.evicted.Add(1)
		w.retireLocked(why)
		return nil
	}
	next = p.offerLocked(w)
	switch {
	case next != nil:
		w.ensureReadingLocked()
	case p.queue.Len() > 0 && p.cfg.KeyPerWorker:
		p.ensureLocked() // it may serve none of them: make room
	}
	return next
}

// offerLocked gives a ready worker a waiting query, or keeps it ready.
func (p *Pool) offerLocked(w *proc) *attempt {
	if !slices.Contains(p.ready, w) {
		p.ready = append(p.ready, w)
	}
	return p.nextLocked(w)
}
