package procpool

import (
	"errors"
	"fmt"
	"slices"
	"sync"
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
	if late.Worker == "" {
		late.Err = q.pool.startFailure()
	}
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

// startFailure returns why the last worker did not start, or nil when one has started since.
func (p *Pool) startFailure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failures == 0 {
		return nil
	}
	return p.lastFail
}

// endLate ends a query that has expired.
func (q *Query) endLate(stacks string) {
	q.mu.Lock()
	late := *q.late
	q.mu.Unlock()
	late.Stacks = stacks
	q.pool.abandon(q, QueryError, &late)
}

// askStacks asks the query's worker for its stacks. It returns false when there is
// nothing to wait for.
func (p *Pool) askStacks(q *Query) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workerOfLocked(q.on)
	return w != nil && w.askStacksLocked(q.endLate)
}

// stacksWaiter waits for a worker's stacks. got is called once.
type stacksWaiter struct {
	once sync.Once
	got  func(stacks string)
}

func (d *stacksWaiter) take(stacks string) { d.once.Do(func() { d.got(stacks) }) }

// askStacksLocked asks the worker for its stacks and calls got once with them, or with
// "" when they do not come in time. It returns false when the worker cannot be asked.
func (w *proc) askStacksLocked(got func(stacks string)) bool {
	if w.leaving || !slices.Contains(w.offer.Capabilities, wire.CanStacks) {
		return false
	}
	w.ensureReadingLocked()
	p, d := w.p, &stacksWaiter{got: got}
	w.stacksWaiters = append(w.stacksWaiters, d)
	time.AfterFunc(stacksWait, func() {
		p.mu.Lock()
		w.stacksWaiters = slices.DeleteFunc(w.stacksWaiters, func(other *stacksWaiter) bool { return other == d })
		p.mu.Unlock()
		d.take("")
	})
	if len(w.stacksWaiters) > 1 {
		return true // it has been asked
	}
	p.alive.Go(func() {
		if !w.wmu.TryLock() {
			return // another goroutine writes and may take long; nothing waits for it
		}
		defer w.wmu.Unlock()
		w.armWrite()
		if err := w.writer.Dump(); err != nil && !errors.Is(err, wire.ErrPoisoned) {
			w.fail(fmt.Errorf("ask for the stacks: %w", err))
		}
	})
	return true
}

// takeStacks hands out the worker's stacks.
func (w *proc) takeStacks(stacks string) error {
	w.p.mu.Lock()
	all := w.stacksWaiters
	w.stacksWaiters = nil
	w.p.mu.Unlock()
	for _, d := range all {
		d.take(stacks[:min(len(stacks), maxStacks)])
	}
	if all == nil {
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
		if w.has(a) {
			return w
		}
	}
	return nil
}
