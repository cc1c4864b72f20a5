package procpool

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

type counter = atomic.Uint64

type counters struct {
	submitted, complete, failed, cancelled, rejected counter
	spawned, ready, crashed, recycled, evicted       counter
	retried, late, unknown, strangers                counter

	took   [len(bounds)]counter // queries that took up to so long, and longer than the bound before
	longer counter              // than the last bound
	spent  atomic.Int64         // by all, in nanoseconds
}

// bounds are what the durations of queries are counted by.
var bounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 25 * time.Second, time.Minute, 5 * time.Minute,
}

// Stats is a snapshot of a pool: what there is now, and what has happened since
// it was made.
type Stats struct {
	State PoolState `json:"state"`
	// How many workers there are in each state.
	Starting     int `json:"starting"`
	Ready        int `json:"ready"`
	Busy         int `json:"busy"`
	ShuttingDown int `json:"shuttingDown"`
	// Queries that wait for a worker, and that have not ended, with those.
	Waiting int `json:"waiting"`
	Open    int `json:"open"`
	// How many failures to start, and crashes without an answer, there were in a
	// row, and when the next attempt is made.
	Failures int       `json:"failures"`
	NotUntil time.Time `json:"notUntil,omitzero"`

	// Queries, by how they have ended. Submitted counts all.
	Submitted uint64 `json:"submitted"`
	Complete  uint64 `json:"complete"`
	Failed    uint64 `json:"failed"`
	Cancelled uint64 `json:"cancelled"`
	Rejected  uint64 `json:"rejected"`
	Retried   uint64 `json:"retried"` // idempotent ones that were given to another worker

	// How long queries took from Submit to their end, the rejected ones left out.
	Durations Durations `json:"durations"`

	// Workers.
	Spawned  uint64 `json:"spawned"`
	Crashed  uint64 `json:"crashed"`
	Recycled uint64 `json:"recycled"`
	Evicted  uint64 `json:"evicted"`

	// What came from workers and was of no use.
	Late      uint64 `json:"late"`      // for a query that had ended
	Unknown   uint64 `json:"unknown"`   // of a type that nobody knows
	Strangers uint64 `json:"strangers"` // connections of others than the worker
}

// Durations counts queries by how long they took.
type Durations struct {
	Count uint64        `json:"count"` // all
	Sum   time.Duration `json:"sum"`
	// Within[i] of them took Bounds[i] at most.
	Bounds []time.Duration `json:"bounds"`
	Within []uint64        `json:"within"`
}

// Stats returns a snapshot.
func (p *Pool) Stats() Stats {
	c := &p.counts
	s := Stats{
		Open: int(p.open.Load()), Submitted: c.submitted.Load(), Complete: c.complete.Load(), Failed: c.failed.Load(),
		Cancelled: c.cancelled.Load(), Rejected: c.rejected.Load(), Retried: c.retried.Load(), Spawned: c.spawned.Load(),
		Crashed: c.crashed.Load(), Recycled: c.recycled.Load(), Evicted: c.evicted.Load(), Late: c.late.Load(),
		Unknown: c.unknown.Load(), Strangers: c.strangers.Load(),
		Durations: Durations{Sum: time.Duration(c.spent.Load()), Bounds: slices.Clone(bounds[:]), Within: make([]uint64, len(bounds))},
	}
	d := &s.Durations
	for i := range bounds {
		d.Count += c.took[i].Load()
		d.Within[i] = d.Count
	}
	d.Count += c.longer.Load()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.State, s.Waiting, s.Failures = p.capacity.State(), p.waiting, p.failures
	if p.failures > 0 {
		s.NotUntil = p.notUntil
	}
	s.Starting, s.Ready = p.countLocked(WorkerStarting), p.countLocked(WorkerReady)
	s.Busy, s.ShuttingDown = p.countLocked(WorkerBusy), p.countLocked(WorkerShuttingDown)
	return s
}

func (p *Pool) countLocked(s WorkerState) (n int) {
	for _, w := range p.workers {
		if w.machine.State() == s {
			n++
		}
	}
	return n
}

// measured notes how long a query took.
func (c *counters) measured(took time.Duration) {
	c.spent.Add(int64(took))
	if i, _ := slices.BinarySearch(bounds[:], took); i < len(bounds) {
		c.took[i].Add(1)
	} else {
		c.longer.Add(1)
	}
}

// counted notes that a query has ended.
func (p *Pool) counted(q *Query, to QueryState) {
	if to != QueryRejected {
		p.counts.measured(time.Since(q.begun))
	}
	switch to {
	case QueryComplete:
		p.counts.complete.Add(1)
	case QueryCancelled:
		p.counts.cancelled.Add(1)
	case QueryRejected:
		p.counts.rejected.Add(1)
	default:
		p.counts.failed.Add(1)
	}
	if p.open.Add(-1) == 0 {
		p.mu.Lock()
		draining := p.draining
		p.mu.Unlock()
		if draining {
			p.quiet.close()
		}
	}
}

// State describes the pool, with its processes as its children. What a worker
// does is its Reason.
func (p *Pool) State() worker.State {
	s := p.BaseWorker.State()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		child := w.process.State()
		state, since := w.machine.Since()
		child.Reason = string(state)
		if w.cur != nil {
			child.Reason += " with " + w.cur.id
		}
		child.Reason += " for " + time.Since(since).Round(time.Millisecond).String()
		s.Children = append(s.Children, child)
	}
	return s
}
