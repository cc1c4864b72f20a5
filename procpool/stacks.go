package procpool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

const (
	stacksWait = 250 * time.Millisecond // how long a worker may take to show its stacks
	maxStacks  = 64 << 10               // how many bytes of them are kept
)

// expire ends a query whose deadline has passed. A worker that is able to is first
// asked what it does; the query ends when it has answered, or after stacksWait.
func (q *Query) expire() {
	late := &DeadlineError{Query: q.id, Worker: q.Worker(), Elapsed: time.Since(q.begun)}
	q.mu.Lock()
	again := q.late != nil
	if !again {
		q.late = late
	}
	q.mu.Unlock()
	if again {
		return // the worker has been asked
	}
	if !q.pool.askStacks(q) {
		q.endLate("")
	}
}

// endLate ends a query that has expired.
func (q *Query) endLate(stacks string) {
	q.mu.Lock()
	late := *q.late
	q.mu.Unlock()
	late.Stacks = stacks[:min(len(stacks), maxStacks)]
	q.pool.abandon(q, QueryError, &late)
}

// askStacks asks the query's worker for its stacks. It returns false when there is
// nothing to wait for.
func (p *Pool) askStacks(q *Query) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workerOfLocked(q.on)
	if w == nil || w.leaving || !slices.Contains(w.offer.Capabilities, wire.CanStacks) {
		return false
	}
	w.ensureReadingLocked()
	w.dumping = append(w.dumping, q)
	time.AfterFunc(stacksWait, func() {
		p.mu.Lock()
		w.dumping = slices.DeleteFunc(w.dumping, func(other *Query) bool { return other == q })
		p.mu.Unlock()
		q.endLate("")
	})
	if len(w.dumping) > 1 {
		return true // it has been asked
	}
	p.alive.Add(1)
	go func() {
		defer p.alive.Done()
		if !w.wmu.TryLock() {
			return // another goroutine writes and may take long; the query does not wait for it
		}
		defer w.wmu.Unlock()
		w.armWrite(time.Now())
		if err := w.writer.Dump(); err != nil && !errors.Is(err, wire.ErrPoisoned) {
			w.fail(fmt.Errorf("ask for the stacks: %w", err))
		}
	}()
	return true
}

// takeStacks ends the queries that wait for the worker's stacks.
func (w *proc) takeStacks(stacks string) error {
	w.p.mu.Lock()
	late := w.dumping
	w.dumping = nil
	w.p.mu.Unlock()
	for _, q := range late {
		q.endLate(stacks)
	}
	if late == nil {
		return w.ignore(nil)
	}
	return nil
}

// workerOfLocked returns the worker that has the attempt, nil for none.
func (p *Pool) workerOfLocked(a *attempt) *proc {
	if a == nil {
		return nil
	}
	for _, w := range p.workers {
		if w.cur == a {
			return w
		}
	}
	return nil
}
