package procpool

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

type counter = atomic.Uint64

type counters struct {
	submitted, complete, failed, cancelled, rejected counter
	spawned, crashed, recycled, evicted              counter
	slow, retried, late, unknown, strangers          counter

	deaths [len(causes)]counter // of workers, in the order of causes
	took   [len(bounds)]counter // queries in each bucket: longer than the bound before, at most its own
	longer counter              // longer than the last bound
	spent  atomic.Int64         // total of all queries, in nanoseconds
}

// bounds are the buckets for the durations of queries.
var bounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 25 * time.Second, time.Minute, 5 * time.Minute,
}

// Stats is a snapshot of a pool: its current numbers, and counters since New.
type Stats struct {
	State PoolState `json:"state"`
	// Workers in each state.
	Starting     int `json:"starting"`
	Ready        int `json:"ready"`
	Busy         int `json:"busy"`
	ShuttingDown int `json:"shuttingDown"`
	// Queries that wait for a worker, and all that have not ended.
	Waiting int `json:"waiting"`
	Open    int `json:"open"`
	// Consecutive failed starts, and the time of the next attempt, which is also set
	// after deaths of workers that had no query.
	Failures int       `json:"failures"`
	NotUntil time.Time `json:"notUntil,omitzero"`

	// Queries by outcome. Submitted counts all.
	Submitted uint64 `json:"submitted"`
	Complete  uint64 `json:"complete"`
	Failed    uint64 `json:"failed"`
	Cancelled uint64 `json:"cancelled"`
	Rejected  uint64 `json:"rejected"`
	Retried   uint64 `json:"retried"` // idempotent ones given to another worker
	Slow      uint64 `json:"slow"`    // queries that took longer than SlowAfter

	// Fingerprints that the pool refuses; see Poison.
	Poisoned int `json:"poisoned"`

	// Time from Submit to the end, without rejected queries.
	Durations Durations `json:"durations"`

	// Workers.
	Spawned  uint64 `json:"spawned"`
	Crashed  uint64 `json:"crashed"`
	Recycled uint64 `json:"recycled"`
	Evicted  uint64 `json:"evicted"`
	// Ends of workers by cause. Crashed counts ends that the pool did not ask for.
	Ended map[Cause]uint64 `json:"ended"`

	// Messages and connections that the pool ignored.
	Late      uint64 `json:"late"`      // for a query that had ended
	Unknown   uint64 `json:"unknown"`   // of an unknown type
	Strangers uint64 `json:"strangers"` // connections of processes that are not the worker
}

// Durations counts queries by how long they took.
type Durations struct {
	Count uint64        `json:"count"` // all queries
	Sum   time.Duration `json:"sum"`
	// Within[i] queries took at most Bounds[i].
	Bounds []time.Duration `json:"bounds"`
	Within []uint64        `json:"within"`
}

// Stats returns a snapshot.
func (p *Pool) Stats() Stats {
	c := &p.counts
	s := Stats{
		Open:      int(p.open.Load()),
		Submitted: c.submitted.Load(),
		Complete:  c.complete.Load(),
		Failed:    c.failed.Load(),
		Cancelled: c.cancelled.Load(),
		Rejected:  c.rejected.Load(),
		Retried:   c.retried.Load(),
		Slow:      c.slow.Load(),
		Spawned:   c.spawned.Load(),
		Crashed:   c.crashed.Load(),
		Recycled:  c.recycled.Load(),
		Evicted:   c.evicted.Load(),
		Late:      c.late.Load(),
		Unknown:   c.unknown.Load(),
		Strangers: c.strangers.Load(),
		Ended:     make(map[Cause]uint64, len(c.deaths)),
		Durations: Durations{
			Sum:    time.Duration(c.spent.Load()),
			Bounds: slices.Clone(bounds[:]),
			Within: make([]uint64, len(bounds)),
		},
	}
	for i, cause := range causes {
		s.Ended[cause] = c.deaths[i].Load()
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
	if p.failures > 0 || p.deaths > 0 {
		s.NotUntil = p.noStartBefore
	}
	for _, known := range p.memory.prints {
		if known.Refused {
			s.Poisoned++
		}
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

// ended counts the end of a worker.
func (c *counters) ended(cause Cause) { c.deaths[slices.Index(causes[:], cause)].Add(1) }

// measured counts the duration of a query.
func (c *counters) measured(took time.Duration) {
	c.spent.Add(int64(took))
	if i, _ := slices.BinarySearch(bounds[:], took); i < len(bounds) {
		c.took[i].Add(1)
	} else {
		c.longer.Add(1)
	}
}

// counted counts a query that has ended.
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
			p.quiet.Signal()
		}
	}
}

// State describes the pool, with its processes as its children. A child's Reason
// is the state of that worker.
func (p *Pool) State() worker.State {
	s := p.BaseWorker.State()
	type member struct {
		process *worker.Process
		reason  string
	}
	p.mu.Lock()
	members := make([]member, 0, len(p.workers))
	for _, w := range p.workers {
		members = append(members, member{w.process, w.reasonLocked()})
	}
	p.mu.Unlock()
	for _, m := range members { // without the lock: it may read files of a cgroup
		child := m.process.State()
		child.Reason = m.reason
		s.Children = append(s.Children, child)
	}
	return s
}

// reasonLocked says what the worker does, and for how long.
func (w *proc) reasonLocked() string {
	state, since := w.machine.Since()
	reason := string(state)
	for i, a := range w.attempts {
		if i == 3 && len(w.attempts) > 4 {
			reason += fmt.Sprintf(" and %d others", len(w.attempts)-i)
			break
		}
		reason += [2]string{" with ", ", "}[min(i, 1)] + a.id
	}
	if w.alone {
		reason += ", in quarantine,"
	}
	return reason + " for " + time.Since(since).Round(time.Millisecond).String()
}
