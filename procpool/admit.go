package procpool

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// attempt is one query with one worker, from the assignment until the worker has
// confirmed its end.
type attempt struct {
	q       *Query
	w       *proc
	id      string // on the wire
	begun   time.Time
	slow    bool        // it was logged as slow; guarded by pool.mu, as confirm is
	confirm *time.Timer // ends the worker unless it confirms the end of the attempt

	// Guarded by the worker's wmu.
	sent       bool
	dropped    bool // it ended before it was sent
	cancelSent bool // the worker was asked to cancel it
}

// admit gives a new query to a worker, queues it, or rejects it. When it returns
// direct, the caller must read the answer itself.
func (p *Pool) admit(ctx context.Context, q *Query) (w *proc, direct *attempt) {
	p.open.Add(1)
	p.count(&p.stats.Submitted)
	p.mu.Lock()
	p.lastID++
	q.seq = p.lastID
	var id [21]byte
	q.id = string(strconv.AppendUint(append(id[:0], 'q'), q.seq, 10))
	queryModel.Begin(&q.machine, q.id, QueryPending, &p.events)
	w, a, err := p.placeLocked(q)
	if err != nil {
		p.endLocked(q, err)
		p.mu.Unlock()
		return nil, nil
	}
	if a != nil {
		if q.messages == nil && !w.reading && w.places == 1 {
			w.reading, w.direct, direct = true, a, a
			_ = w.conn.SetReadDeadline(q.until)
		}
		w.ensureReadingLocked()
	}
	later := a != nil && w.mayWaitToWrite(q)
	if later {
		p.sendLater(w, a)
	}
	p.mu.Unlock()
	// Arm the timer before anything is written: a worker that does not read may
	// block the write.
	if direct == nil || q.size() > smallWrite {
		q.arm()
	}
	q.watch(ctx)
	if a != nil && !later {
		w.send(a)
	}
	return w, direct
}

// smallWrite is how many bytes the socket of a ready worker takes without
// blocking. (The kernel's buffers are larger.)
const smallWrite = 16 << 10

// placeLocked assigns a new query to a worker, queues it, or says why not.
func (p *Pool) placeLocked(q *Query) (*proc, *attempt, error) {
	if p.draining.Load() || !p.running.Load() {
		return nil, nil, &RejectedError{Pool: p.cfg.Name, Err: ErrDraining}
	}
	if err := p.judgeLocked(q, q.begun); err != nil {
		return nil, nil, err
	}
	if q.keyed && !q.anew && p.lost[q.key] {
		return nil, nil, &SessionLostError{Query: q.id, Key: q.key}
	}
	if w := p.pickLocked(q); w != nil {
		return w, p.assignLocked(w, q), nil
	}
	alone := p.waitAloneLocked()
	waiting, room := len(p.queue)-alone, p.cfg.MaxQueue // queries that run alone take no room from others
	switch {
	case q.alone:
		waiting, room = alone, room+1
	case p.boundLocked(q) == nil:
		room += p.comingLocked()
	}
	if p.boundLocked(q) == nil {
		if err := p.brokenLocked(q.alone); err != nil {
			return nil, nil, err
		}
	}
	if waiting >= room {
		busy := &RejectedError{Pool: p.cfg.Name, RetryAfter: p.retryAfterLocked(), Err: ErrBusy}
		if q.alone {
			return nil, nil, busy
		}
		last := p.displaceLocked(q)
		if last == nil {
			return nil, nil, busy
		}
		p.endLocked(last, busy)
	}
	p.enqueueLocked(q)
	p.ensureLocked()
	return nil, nil, nil
}

// comingLocked returns how many queries the workers will take that become free and are not busy
// now: workers that start, and workers that can be started or evicted.
func (p *Pool) comingLocked() int {
	n := p.cfg.MaxWorkers
	for _, w := range p.workers {
		if w.alone {
			continue
		}
		n--
		switch w.machine.State() {
		case WorkerStarting, WorkerShuttingDown, WorkerDead:
			n++
		case WorkerReady:
			if !w.leaving { // it is in p.workers and not picked: it serves another key
				n++
			}
		case WorkerBusy:
			if w.leaving {
				n++
			}
		}
	}
	return max(n, 0) * max(p.mostPlaces, 1) // n is below 0 while there are successors
}

// brokenLocked returns an error when the breaker is open and no worker lives that could take a
// query: the extra worker for one that runs alone, any other for the rest.
func (p *Pool) brokenLocked(alone bool) error {
	if p.cfg.BreakAfter == Off || p.failures < p.cfg.BreakAfter || !time.Now().Before(p.noStartBefore) {
		return nil
	}
	for _, w := range p.workers {
		s := w.machine.State()
		if w.alone == alone && !w.leaving && (s == WorkerStarting || s == WorkerReady || s == WorkerBusy) {
			return nil
		}
	}
	return &RejectedError{
		Pool:       p.cfg.Name,
		RetryAfter: time.Until(p.noStartBefore),
		Err:        fmt.Errorf("%w: %w", ErrUnavailable, p.lastFail),
	}
}

// retryAfterLocked estimates when a worker will be free: after the whole queue.
func (p *Pool) retryAfterLocked() time.Duration {
	return max(p.mean*time.Duration(len(p.queue)+1)/time.Duration(max(len(p.workers), 1)), time.Millisecond)
}
