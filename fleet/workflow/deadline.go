package workflow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Deadlines takes the edges of [WithDeadline] as they come due. It returns nil when
// ctx ends, and ErrClosed after Close. One process should run it:
//
//	app.Lead("deadlines", lease, mgr.Deadlines)
//
// When a deadline comes due while no process runs Deadlines, the next process
// that runs it takes the edge. When a lease changes hands, two processes may run
// Deadlines for a moment. They still move an entity once, because a move fails
// when the entity has left the phase, or left and entered it again. A deadline
// counts from the time at which the server stored the change to the phase, and
// is compared with this process's clock.
func (m *Manager) Deadlines(ctx context.Context) error {
	retry := make(map[string]time.Time) // when failed ones may be tried again, by workflow and id
	for {
		if m.isClosed() {
			return fmt.Errorf("deadlines: %w", ErrClosed)
		}
		next := time.Now().Add(time.Minute)
		rung := m.alarm.next()
		for _, r := range m.all() {
			now := time.Now()
			batch := r.bucket.view.dueBy(r, now)
			if len(batch) == dueBatch {
				next = time.Now().Add(50 * time.Millisecond)
			}
			for _, en := range batch {
				id := r.workflow + "/" + en.id
				if at, failed := retry[id]; failed && time.Now().Before(at) {
					next = earlier(next, at)
					continue
				}
				delete(retry, id)
				if err := m.expire(ctx, r, en); err != nil && ctx.Err() == nil {
					m.log.Warn("cannot take a deadline's edge", "workflow", r.workflow, "entity", en.id, "error", err)
					retry[id] = time.Now().Add(retryTime)
					next = earlier(next, retry[id])
				}
			}
			if due, ok := r.bucket.view.nextDue(r, now); ok {
				next = earlier(next, due)
			}
		}
		timer := time.NewTimer(max(time.Until(next), time.Millisecond))
		select {
		case <-timer.C:
		case <-rung:
		case <-ctx.Done():
		case <-m.alive.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller ended ctx
		}
	}
}

// alarm wakes the goroutines that wait for it.
type alarm struct {
	mu sync.Mutex
	ch chan struct{} // closed at the next ring; nil while no goroutine waits
}

func (a *alarm) next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ch == nil {
		a.ch = make(chan struct{})
	}
	return a.ch
}

func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ch != nil {
		close(a.ch)
		a.ch = nil
	}
}

// dueBatch is how many deadlines of a workflow one round takes.
const dueBatch = 1000

// retryTime is the time between two attempts at a deadline that failed.
const retryTime = 5 * time.Second

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// expire moves one entity along its deadline's edge, if it has not left the phase
// since.
func (m *Manager) expire(ctx context.Context, r *registration, en entity) error {
	d, ok := r.deadline(en.phaseName())
	if !ok {
		return nil
	}
	note := fmt.Sprintf("deadline: %v in %s", d.After, d.From)
	err := m.transition(ctx, r, en.id, TransitionSourceFramework, note, nil, writing{}, func(from string, cur *entry) (string, error) {
		// transition calls it a second time, without the entry, to set the phase.
		if from != d.From || cur != nil && time.Now().Before(cur.since().Add(d.After)) {
			return "", errLeft
		}
		return d.To, nil
	})
	if errors.Is(err, errLeft) || errors.Is(err, ErrEntityNotFound) {
		return nil
	}
	return err
}

// errLeft says that the entity has left the phase, or has entered it again.
var errLeft = errors.New("it is no longer in that phase")

// dueBy returns entities whose deadline has passed, at most dueBatch.
func (v *view) dueBy(r *registration, now time.Time) (found []entity) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	v.indexes[r.workflow].due.Ascend(func(en *entity) bool {
		if en.due > now.UnixNano() || len(found) == dueBatch {
			return false
		}
		found = append(found, *en)
		return true
	})
	return found
}

// nextDue returns the first deadline that dueBy has not returned yet.
func (v *view) nextDue(r *registration, now time.Time) (due time.Time, ok bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	v.indexes[r.workflow].due.AscendGreaterOrEqual(&entity{due: now.UnixNano() + 1}, func(en *entity) bool {
		due, ok = time.Unix(0, en.due), true
		return false
	})
	return due, ok
}
