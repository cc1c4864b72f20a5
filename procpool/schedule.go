package procpool

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// assignLocked gives a worker that has a place the query. The caller sends it after
// releasing the lock.
func (p *Pool) assignLocked(w *proc, q *Query) *attempt {
	q.attempts++
	p.turn = max(p.turn, q.turn)
	a := &attempt{q: q, w: w, id: q.id, begun: time.Now()}
	if q.attempts > 1 {
		a.id += "." + strconv.Itoa(q.attempts)
	}
	if w.given == 0 {
		w.keyed, w.key = q.keyed, q.key
	}
	w.attempts = append(w.attempts, a)
	q.on, q.last = a, w.name
	w.recent[w.given%len(w.recent)] = a.id
	w.given++
	w.ignored = 0
	w.lastActivity = a.begun
	if q.keyed && p.keys[q.key] != w {
		delete(p.lost, q.key) // a new session begins
		p.keys[q.key] = w
		w.keys = append(w.keys, q.key)
	}
	if w.full() {
		_ = w.machine.To(WorkerBusy, nil)
	}
	if q.attempts == 1 {
		_ = q.machine.To(QueryProcessing, nil) // it may have ended meanwhile; send finds out
	}
	return a
}

// enqueueLocked lets the query wait for a worker. The queue is in the order in which queries are
// served: a retried query is older than others.
func (p *Pool) enqueueLocked(q *Query) {
	p.joinLocked(q)
	i, _ := slices.BinarySearchFunc(p.queue, q, (*Query).compare)
	p.queue = slices.Insert(p.queue, i, q)
}

func (p *Pool) dequeueLocked(q *Query) {
	if i := slices.Index(p.queue, q); i >= 0 {
		p.queue = slices.Delete(p.queue, i, i+1)
		p.leaveLocked(q)
	}
}

// waitAloneLocked returns how many queries wait for the extra worker.
func (p *Pool) waitAloneLocked() (n int) {
	for _, q := range p.queue {
		if q.alone {
			n++
		}
	}
	return n
}

// waitForAnyLocked returns how many queries wait for any other worker. The rest waits for the
// workers of their keys.
func (p *Pool) waitForAnyLocked() (n int) {
	for _, q := range p.queue {
		if !q.alone && p.boundLocked(q) == nil {
			n++
		}
	}
	return n
}

// nextLocked assigns the first query that the worker may take, nil when it has no place or there
// is none.
func (p *Pool) nextLocked(w *proc) *attempt {
	if !w.isFree() {
		return nil
	}
	for _, q := range p.queue {
		if p.mayTakeLocked(w, q) {
			p.dequeueLocked(q)
			return p.assignLocked(w, q)
		}
	}
	return nil
}

// abandon ends a query before its worker has answered, and asks the worker to stop it. It
// returns false when the query has already ended.
func (p *Pool) abandon(q *Query, to QueryState, err error) bool {
	if !q.finish(to, nil, err) {
		return false
	}
	p.mu.Lock()
	p.dequeueLocked(q)
	if a := q.on; a != nil {
		a.w.awaitConfirmLocked(a)
		a.w.interruptLocked(a)
		p.alive.Go(func() { a.w.sendCancel(a) })
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
		_ = w.machine.To(WorkerReady, nil)
		p.clearLocked(a.q)
		return p.nextAloneLocked(w)
	}
	if w.retiring {
		switch {
		case w.idle():
			w.stopLocked(true, w.due)
		case a.q.keyed:
			p.rematchLocked() // the next query of the key waits for this one
		}
		return nil
	}
	if state == WorkerBusy {
		_ = w.machine.To(WorkerReady, nil)
	}
	if w.limits.queries > 0 && w.queries >= w.limits.queries && w.due == nil && p.mayRecycleLocked() {
		w.recycleLocked(fmt.Errorf("%w: it has served %d queries", ErrRecycled, w.queries), false)
		if w.leaving || w.retiring {
			return nil
		}
	}
	if why := p.starvedLocked(w, now); why != nil {
		p.count(&p.stats.Evicted)
		w.retireLocked(why)
		return nil
	}
	next = p.nextLocked(w)
	switch {
	case next != nil:
		w.ensureReadingLocked()
	case p.cfg.KeyPerWorker && len(p.queue) > 0:
		p.ensureLocked() // it may serve none of them: make room
	}
	return next
}
