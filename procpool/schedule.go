package procpool

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// attempt is one query with one worker, from the assignment until the worker has
// confirmed its end.
type attempt struct {
	q     *Query
	id    string // on the wire
	begun time.Time

	// Guarded by the worker's wmu.
	sent    bool
	dropped bool // it ended before it was sent
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
	q.machine = fsm.MustNew(KindQuery, q.id, queryTable, QueryPending, &p.events)
	w, a, reject := p.placeLocked(q)
	if a != nil {
		if q.messages == nil && !w.reading {
			w.reading, w.direct, direct = true, a, a
			w.armReadLocked(q)
		}
		w.ensureReadingLocked()
	}
	p.mu.Unlock()
	if reject != nil {
		q.finish(QueryRejected, nil, reject)
		return nil, nil
	}
	// Arm the timer before anything is written: a worker that does not read may
	// block the write.
	if direct == nil || len(q.payload) > smallWrite {
		q.arm()
	}
	q.watch(ctx)
	if a != nil {
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
	if w := p.pickLocked(q); w != nil {
		return w, p.assignLocked(w, q), nil
	}
	bound := p.keys[q.key]
	if !q.keyed || bound == nil || !bound.usable() {
		bound = nil
	}
	if bound == nil && p.brokenLocked() {
		return nil, nil, reject(fmt.Errorf("%w: %w", ErrUnavailable, p.lastFail), time.Until(p.notUntil))
	}
	room := p.cfg.MaxQueue
	if bound == nil {
		room += p.comingLocked(q)
	}
	if p.waiting >= room {
		return nil, nil, reject(ErrBusy, p.retryAfterLocked())
	}
	if bound != nil {
		p.enqueueLocked(&bound.waiting, q)
		return nil, nil, nil
	}
	p.enqueueLocked(p.queue, q)
	p.ensureLocked()
	return nil, nil, nil
}

// comingLocked returns how many workers will become free that are not busy now:
// those that start, and those that can be started or evicted.
func (p *Pool) comingLocked(q *Query) int {
	n := p.cfg.MaxWorkers - len(p.workers)
	for _, w := range p.workers {
		switch w.machine.State() {
		case WorkerStarting, WorkerShuttingDown:
			n++
		case WorkerReady:
			if !w.leaving { // it is in p.workers and not picked: it serves another key
				n++
			}
		case WorkerBusy:
			if q.evictBusy && p.cfg.KeyPerWorker || w.leaving {
				n++
			}
		case WorkerDead:
			n++
		}
	}
	return n
}

// brokenLocked reports whether the breaker is open and no worker lives that could
// take a query.
func (p *Pool) brokenLocked() bool {
	if p.cfg.BreakAfter == Off || p.failures < p.cfg.BreakAfter || !time.Now().Before(p.notUntil) {
		return false
	}
	return !slices.ContainsFunc(p.workers, func(w *proc) bool {
		s := w.machine.State()
		return !w.leaving && (s == WorkerStarting || s == WorkerReady || s == WorkerBusy)
	})
}

// retryAfterLocked estimates when a worker will be free: after the whole queue.
func (p *Pool) retryAfterLocked() time.Duration {
	return max(p.mean*time.Duration(p.waiting+1)/time.Duration(max(len(p.workers), 1)), time.Millisecond)
}

// fits reports whether the worker may serve the query.
func (p *Pool) fits(w *proc, q *Query) bool {
	return !p.cfg.KeyPerWorker || !w.used || (w.keyed == q.keyed && w.key == q.key)
}

// pickLocked returns a ready worker for the query: the most recently used one,
// whose memory is warm. The others may then idle until they are recycled.
func (p *Pool) pickLocked(q *Query) *proc {
	if q.keyed {
		if w := p.keys[q.key]; w != nil && w.usable() {
			if slices.Contains(p.ready, w) {
				return w
			}
			return nil
		}
	}
	for _, w := range slices.Backward(p.ready) {
		if p.fits(w, q) {
			return w
		}
	}
	return nil
}

// assignLocked makes a ready worker busy with the query. The caller sends it after
// releasing the lock.
func (p *Pool) assignLocked(w *proc, q *Query) *attempt {
	p.ready = slices.DeleteFunc(p.ready, func(other *proc) bool { return other == w })
	q.attempts++
	a := &q.first
	if q.attempts > 1 {
		a = new(attempt) // the previous worker may still read the first
	}
	*a = attempt{q: q, id: q.id, begun: time.Now()}
	if q.attempts > 1 {
		a.id += "." + strconv.Itoa(q.attempts)
	}
	w.cur, q.on, q.last = a, a, w.name
	w.recent[w.given%len(w.recent)] = a.id
	w.given++
	w.ignored = 0
	w.lastActivity = a.begun
	if !w.used {
		w.used, w.keyed, w.key = true, q.keyed, q.key
	}
	if q.keyed && p.keys[q.key] != w {
		p.keys[q.key] = w
		w.keys = append(w.keys, q.key)
	}
	_ = w.machine.To(WorkerBusy, nil)
	if q.attempts == 1 {
		_ = q.machine.To(QueryProcessing, nil) // it may have ended meanwhile; send finds out
	}
	return a
}

func (p *Pool) enqueueLocked(l *list.List, q *Query) {
	p.waiting++
	q.in = l
	for e := l.Back(); e != nil; e = e.Prev() { // a retried query is older than others
		if other, ok := e.Value.(*Query); ok && other.seq < q.seq {
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
	}
}

// nextLocked assigns the oldest query that fits to a ready worker, nil when none
// does.
func (p *Pool) nextLocked(w *proc) *attempt {
	var next *Query
	if e := w.waiting.Front(); e != nil {
		next, _ = e.Value.(*Query)
	}
	for e := p.queue.Front(); e != nil; e = e.Next() {
		q, ok := e.Value.(*Query)
		if !ok || next != nil && next.seq < q.seq {
			break
		}
		if bound := p.keys[q.key]; q.keyed && bound != nil && bound != w && bound.usable() {
			continue // another worker got its key while it waited
		}
		if p.fits(w, q) {
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

// ensureLocked starts the workers that MinWorkers and the waiting queries need. At
// capacity it evicts one for a query that no worker may serve.
func (p *Pool) ensureLocked() {
	if p.ending {
		return
	}
	for {
		starting, leaving := 0, 0
		for _, w := range p.workers {
			switch {
			case w.leaving:
				leaving++
			case w.machine.State() == WorkerStarting:
				starting++
			}
		}
		serving := len(p.workers) - leaving
		wanted := p.queue.Len() > starting
		if !wanted && (serving >= p.cfg.MinWorkers || p.draining) {
			return
		}
		if len(p.workers) >= p.cfg.MaxWorkers {
			if wanted && p.cfg.KeyPerWorker && p.queue.Len() > starting+leaving && p.makeRoomLocked() {
				continue
			}
			return
		}
		if p.failures > 0 {
			if wait := time.Until(p.notUntil); wait > 0 {
				p.againLocked(wait)
				return
			}
			if starting > 0 {
				return // after a failure, try one worker at a time
			}
		}
		p.spawnLocked()
	}
}

// againLocked calls ensureLocked when the backoff is over.
func (p *Pool) againLocked(wait time.Duration) {
	if p.again != nil {
		p.again.Stop()
	}
	p.again = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ensureLocked()
	})
}

// makeRoomLocked evicts a worker for the oldest waiting query.
func (p *Pool) makeRoomLocked() bool {
	q, _ := p.queue.Front().Value.(*Query)
	return p.evictLocked(p.cfg.Eviction, q != nil && q.evictBusy) != nil
}

// Evict ends a worker. The strategy, "" for the pool's, chooses among the ready
// ones. When there is none and busy is true, it chooses among all; the query of a
// busy worker ends with an error that is [ErrEvicted]. The pool starts another
// worker when it needs one. Evict returns the worker's name, or [ErrNoWorker].
func (p *Pool) Evict(strategy Eviction, busy bool) (name string, err error) {
	switch strategy {
	case "":
		strategy = p.cfg.Eviction
	case LRU, Oldest, LeastUsed:
	default:
		return "", fmt.Errorf("evict from %s: the strategy is %q, want %q, %q or %q", p.cfg.Name, strategy, LRU, Oldest, LeastUsed)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.evictLocked(strategy, busy)
	if w == nil {
		return "", fmt.Errorf("evict from %s: %w", p.cfg.Name, ErrNoWorker)
	}
	return w.name, nil
}

func (p *Pool) evictLocked(strategy Eviction, busy bool) *proc {
	w := choose(strategy, p.ready)
	if w == nil && busy {
		w = choose(strategy, slices.DeleteFunc(slices.Clone(p.workers), func(w *proc) bool {
			return w.leaving || w.machine.State() != WorkerBusy
		}))
	}
	if w == nil {
		return nil
	}
	p.counts.evicted.Add(1)
	if p.capacity.State() == PoolAtCapacity {
		_ = p.capacity.To(PoolAtCapacity, ErrEvicted)
	}
	if w.cur != nil {
		q := w.cur.q
		w.after = append(w.after, func() {
			q.finish(QueryError, nil, fmt.Errorf("%s: %s: %w", q.id, w.name, ErrEvicted))
		})
	}
	w.stopLocked(w.cur == nil, ErrEvicted)
	return w
}

// choose returns the worker that the strategy evicts, nil for none.
func choose(strategy Eviction, among []*proc) *proc {
	if len(among) == 0 {
		return nil
	}
	return slices.MinFunc(among, func(a, b *proc) int {
		switch strategy {
		case Oldest:
			return a.n - b.n
		case LeastUsed:
			if a.queries != b.queries {
				return a.queries - b.queries
			}
		case LRU:
		}
		return a.lastActivity.Compare(b.lastActivity)
	})
}

// abandon ends a query before its worker has answered, and tells the worker. It
// returns false when the query has already ended.
func (p *Pool) abandon(q *Query, to QueryState, err error) bool {
	if !q.finish(to, nil, err) {
		return false
	}
	p.mu.Lock()
	p.dequeueLocked(q)
	a := q.on
	var w *proc
	if a != nil {
		for _, other := range p.workers {
			if other.cur == a {
				w = other
			}
		}
	}
	if w != nil {
		w.awaitConfirmLocked(a)
		w.kickLocked(a)
	}
	p.mu.Unlock()
	if w != nil {
		w.sendCancel(a)
	}
	return true
}

// release takes back a worker that has confirmed the end of its attempt. It
// returns the worker's next attempt, nil for none.
func (p *Pool) release(w *proc, a *attempt, answered bool) (next *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.cur != a {
		return nil
	}
	if w.confirm != nil {
		w.confirm.Stop()
		w.confirm = nil
	}
	now := time.Now()
	w.cur, a.q.on = nil, nil
	w.lastActivity = now
	if answered {
		w.queries++
		p.failures = 0
		took := now.Sub(a.begun)
		p.mean += (took - p.mean) / 8
	}
	if w.machine.State() != WorkerBusy || w.leaving {
		return nil // it is shutting down
	}
	if w.retire != nil {
		w.stopLocked(true, w.retire)
		return nil
	}
	_ = w.machine.To(WorkerReady, nil)
	if w.limits.queries > 0 && w.queries >= w.limits.queries && p.mayRecycleLocked() {
		w.recycleLocked(fmt.Errorf("%w: it has served %d queries", ErrRecycled, w.queries))
		return nil
	}
	next = p.offerLocked(w)
	if next != nil {
		w.ensureReadingLocked()
	}
	return next
}

// offerLocked gives a ready worker a waiting query, or keeps it ready.
func (p *Pool) offerLocked(w *proc) *attempt {
	p.ready = append(p.ready, w)
	return p.nextLocked(w)
}

// resizedLocked updates the state of the capacity.
func (p *Pool) resizedLocked() {
	want := PoolActive
	switch n := len(p.workers); {
	case n == 0:
		want = PoolIdle
	case n >= p.cfg.MaxWorkers:
		want = PoolAtCapacity
	}
	for now := p.capacity.State(); now != want; now = p.capacity.State() {
		if p.capacity.To(want, nil) != nil {
			_ = p.capacity.To(PoolActive, nil) // a pool of one passes through active
		}
	}
}
