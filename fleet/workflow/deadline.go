package workflow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Deadlines takes the edges that were registered with [WithDeadline] as they come
// due, until ctx ends; it returns nil then, and ErrClosed after Close. One process should run it:
//
//	app.Lead("deadlines", lease, mgr.Deadlines)
//
// What came due while nobody ran it is taken when somebody does. Two that run it
// at once, in the moment when a lease changes hands, still move an entity once:
// the move holds only for the stay in the phase that it was decided on. Times
// count from when the server stored the entry into the phase, against this
// process's clock.
func (m *Manager) Deadlines(ctx context.Context) error {
	retry := make(map[string]time.Time) // what failed, by workflow and id, and when it may be tried again
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
					m.log.Warn("a deadline cannot be kept", "workflow", r.workflow, "entity", en.id, "error", err)
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
			return nil //nolint:nilerr // the end that was asked for
		}
	}
}

// alarm wakes whoever waits for it.
type alarm struct {
	mu sync.Mutex
	ch chan struct{} // closed at the next ring; nil while nobody waits
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

// dueBatch is how many deadlines of a workflow are looked at at once.
const dueBatch = 1000

// retryTime is the time between two attempts at a deadline that cannot be kept.
const retryTime = 5 * time.Second

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// expire moves one entity along its deadline's edge, if it is still in the same
// stay in the phase.
func (m *Manager) expire(ctx context.Context, r *registration, en entity) error {
	d, ok := r.deadline(en.phaseName())
	if !ok {
		return nil
	}
	note := fmt.Sprintf("deadline: %v in %s", d.After, d.From)
	err := m.transition(ctx, r, en.id, TransitionSourceFramework, note, nil, writing{}, func(from string, cur *entry) (string, error) {
		// The second call, for the record that was found good, has no entry.
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
var errLeft = errors.New("it is not in that phase any more")

// dueBy returns the entities whose deadline has passed, dueBatch at most.
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
