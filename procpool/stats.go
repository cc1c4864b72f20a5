package procpool

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

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

// newStats returns the counters of a pool that has not begun.
func newStats() Stats {
	s := Stats{Ended: make(map[Cause]uint64, len(causes))}
	for _, cause := range causes {
		s.Ended[cause] = 0
	}
	s.Durations.Within = make([]uint64, len(bounds))
	return s
}

// Stats returns a snapshot.
func (p *Pool) Stats() Stats {
	p.statsMu.Lock()
	s := p.stats
	s.Ended = maps.Clone(s.Ended)
	s.Durations.Within = slices.Clone(s.Durations.Within)
	p.statsMu.Unlock()
	s.Durations.Bounds = slices.Clone(bounds[:])
	s.Open = int(p.open.Load())
	p.mu.Lock()
	defer p.mu.Unlock()
	s.State, s.Waiting, s.Failures = p.capacity.State(), len(p.queue), p.failures
	if p.failures > 0 || p.deaths > 0 {
		s.NotUntil = p.noStartBefore
	}
	for _, known := range p.poisoned {
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

// count adds one to a counter of p.stats.
func (p *Pool) count(counter *uint64) {
	p.statsMu.Lock()
	defer p.statsMu.Unlock()
	*counter++
}

// countEnd counts the end of a worker.
func (p *Pool) countEnd(cause Cause) {
	p.statsMu.Lock()
	defer p.statsMu.Unlock()
	p.stats.Ended[cause]++
}

// counted counts a query that has ended.
func (p *Pool) counted(q *Query, to QueryState) {
	p.statsMu.Lock()
	switch to {
	case QueryComplete:
		p.stats.Complete++
	case QueryCancelled:
		p.stats.Cancelled++
	case QueryRejected:
		p.stats.Rejected++
	default:
		p.stats.Failed++
	}
	if to != QueryRejected {
		p.stats.Durations.add(time.Since(q.begun))
	}
	p.statsMu.Unlock()
	if p.open.Add(-1) == 0 && p.draining.Load() {
		p.quiet.Signal()
	}
}

func (d *Durations) add(took time.Duration) {
	d.Count++
	d.Sum += took
	for i, bound := range bounds {
		if took <= bound {
			d.Within[i]++
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
	if n := len(w.attempts); n > 0 {
		reason += " with " + w.attempts[0].id
		if n > 1 {
			reason += fmt.Sprintf(" and %d others", n-1)
		}
	}
	if w.alone {
		reason += ", in quarantine,"
	}
	return reason + " for " + time.Since(since).Round(time.Millisecond).String()
}
