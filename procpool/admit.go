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
	p.counts.submitted.Add(1)
	p.mu.Lock()
	p.lastID++
	q.seq = p.lastID
	var id [21]byte
	q.id = string(strconv.AppendUint(append(id[:0], 'q'), q.seq, 10))
	queryModel.Begin(&q.machine, q.id, QueryPending, &p.events)
	w, a, reject := p.placeLocked(q)
	if a != nil {
		if q.messages == nil && !w.reading && w.places == 1 {
			w.reading, w.direct, direct = true, a, a
			w.armReadLocked(q)
		}
		w.ensureReadingLocked()
	}
	later := a != nil && w.mayWaitToWrite(q)
	if later {
		p.sendLater(w, a)
	}
	displaced := q.displaces
	var busy error
	if displaced != nil {
		busy = &RejectedError{Pool: p.cfg.Name, RetryAfter: p.retryAfterLocked(), Err: ErrBusy}
	}
	q.displaces = nil
	p.mu.Unlock()
	if displaced != nil {
		displaced.finish(QueryRejected, nil, busy)
	}
	if reject != nil {
		endedBy{q, reject}.end()
		return nil, nil
	}
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
	reject := func(err error, after time.Duration) error {
		return &RejectedError{Pool: p.cfg.Name, RetryAfter: after, Err: err}
	}
	if p.draining || !p.running.Load() {
		return nil, nil, reject(ErrDraining, 0)
	}
	if err := p.judgeLocked(q, q.begun); err != nil {
		return nil, nil, err
	}
	if q.sticky() && !q.anew && p.lost[q.key] {
		return nil, nil, &SessionLostError{Query: q.id, Key: q.key}
	}
	if q.alone {
		if err := p.brokenLocked(true); err != nil {
			return nil, nil, err
		}
		if p.alone.Len() > p.cfg.MaxQueue {
			return nil, nil, reject(ErrBusy, p.retryAfterLocked())
		}
		p.enqueueLocked(p.alone, q)
		p.ensureLocked()
		return nil, nil, nil
	}
	if w := p.pickLocked(q); w != nil {
		return w, p.assignLocked(w, q), nil
	}
	bound := p.keys[q.key]
	if !q.sticky() || bound == nil || !bound.usable() {
		bound = nil
	}
	if bound == nil {
		if err := p.brokenLocked(false); err != nil {
			return nil, nil, err
		}
	}
	room := p.cfg.MaxQueue
	if bound == nil {
		room += p.comingLocked()
	}
	if p.waiting-p.alone.Len() >= room { // queries that run alone take no room from others
		if q.displaces = p.displaceLocked(q); q.displaces == nil {
			return nil, nil, reject(ErrBusy, p.retryAfterLocked())
		}
	}
	if bound != nil {
		p.enqueueLocked(&bound.waiting, q)
		return nil, nil, nil
	}
	p.enqueueLocked(p.queue, q)
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
	return max(p.mean*time.Duration(p.waiting+1)/time.Duration(max(len(p.workers), 1)), time.Millisecond)
}
