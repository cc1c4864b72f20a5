package procpool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
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
	end := func(stacks string) {
		whole := *late // an answer that comes now ends the query with late
		whole.Stacks = stacks
		q.pool.abandon(q, QueryError, &whole)
	}
	if !q.pool.askStacks(q, end) {
		end("")
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

// askStacks asks the query's worker for its stacks. It returns false when there is
// nothing to wait for.
func (p *Pool) askStacks(q *Query, got func(stacks string)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return q.on != nil && q.on.w.askStacksLocked(got)
}

// dump is a worker's answer to the question what it does. All that ask before it has come
// share it.
type dump struct {
	come   fsm.Signal
	stacks string // "" until it has come; guarded by the pool's lock
	waits  int    // how many wait for it; guarded by the pool's lock
}

// askStacksLocked asks the worker for its stacks and calls got once with them, or with
// "" when they do not come in time. It returns false when the worker cannot be asked.
func (w *proc) askStacksLocked(got func(stacks string)) bool {
	if w.leaving || !slices.Contains(w.offer.Capabilities, wire.CanStacks) {
		return false
	}
	w.ensureReadingLocked()
	asked := w.dump
	if asked == nil {
		asked = &dump{}
		w.dump = asked
		w.p.alive.Go(w.sendDump)
	}
	asked.waits++
	w.p.alive.Go(func() {
		select {
		case <-asked.come.Signaled():
		case <-time.After(stacksWait):
		case <-w.gone.Signaled():
		case <-w.p.forced.Done():
		}
		w.p.mu.Lock()
		if asked.waits--; asked.waits == 0 && w.dump == asked {
			w.dump = nil // the next one asks again
		}
		stacks := asked.stacks
		w.p.mu.Unlock()
		got(stacks)
	})
	return true
}

func (w *proc) sendDump() {
	if !w.wmu.TryLock() {
		return // another goroutine writes and may take long; nothing waits for it
	}
	defer w.wmu.Unlock()
	w.armWrite()
	if err := w.writer.Dump(); err != nil && !errors.Is(err, wire.ErrPoisoned) {
		w.fail(fmt.Errorf("ask for the stacks: %w", err))
	}
}

// takeStacks hands out the worker's stacks.
func (w *proc) takeStacks(stacks string) error {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	asked := w.dump
	if asked == nil {
		return w.ignoreLocked(nil)
	}
	w.dump = nil
	asked.stacks = stacks[:min(len(stacks), maxStacks)]
	asked.come.Signal()
	return nil
}
