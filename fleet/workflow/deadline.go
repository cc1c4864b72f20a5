package workflow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Deadlines takes the edges of [WithDeadline] and fires timers as they come due. It
// returns nil when ctx ends, and ErrClosed after Close. One process should run it:
//
//	app.Lead("deadlines", lease, mgr.Deadlines)
//
// When something comes due while no process runs Deadlines, the next process that
// runs it makes up for that. When a lease changes hands, two processes may run
// Deadlines for a moment. They still move an entity once, because a move fails when the
// entity has left the phase, or left and entered it again, and a timer fires once,
// because it is stored with the entity. A deadline counts from the time at which the
// server stored the change to the phase. What is due is decided by the server's clock;
// this process's clock does not matter.
//
// Many are written at once, each with a bound. One that cannot be written is tried
// again after a pause that grows to five minutes, beside the others: it delays none of
// them.
func (m *Manager) Deadlines(ctx context.Context) error {
	firing := &firing{m: m, due: make(chan *appointment), again: make(chan *appointment)}
	var crew sync.WaitGroup
	defer crew.Wait()
	for range fireMany {
		crew.Go(func() { firing.work(ctx, firing.due) })
	}
	for range fireAgain {
		crew.Go(func() { firing.work(ctx, firing.again) })
	}
	defer close(firing.due)
	defer close(firing.again)
	for {
		if m.isClosed() {
			return fmt.Errorf("deadlines: %w", ErrClosed)
		}
		rung := m.alarm.next()
		wait := time.Minute
		for _, b := range m.allBuckets() {
			wait = min(wait, firing.round(ctx, b))
		}
		timer := time.NewTimer(max(wait, time.Millisecond))
		select {
		case <-timer.C:
		case <-rung:
		case <-ctx.Done():
		case <-m.alive.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

const (
	// fireMany writes are in flight at once, and fireAgain more for those that have
	// failed before.
	fireMany, fireAgain = 64, 8
	// fireTime bounds one of them.
	fireTime = 5 * time.Second
	// dueBatch is how many one round takes out of a view's agenda.
	dueBatch = 1024
	// busyTime is the pause of one that found all of fireAgain in use.
	busyTime = 100 * time.Millisecond
)

// tryAgain is the pause after a write that failed.
var tryAgain = worker.Backoff{Min: time.Second, Max: 5 * time.Minute, Jitter: 0.2}

// firing is one run of Deadlines.
type firing struct {
	m          *Manager
	due, again chan *appointment
}

// round hands out what is due in a bucket, and returns when the next is.
func (f *firing) round(ctx context.Context, b *bucket) time.Duration {
	a := b.view.agenda
	if err := f.m.clock.look(ctx, b); err != nil && ctx.Err() == nil {
		f.m.log.Debug("the time since the last answer counts by this process's clock", "error", err)
	}
	now := instant(f.m.clock.now())
	due, next := a.take(now, dueBatch)
	for i, ap := range due {
		if ap.tries > 0 {
			select {
			case f.again <- ap:
			default:
				a.back(ap, plus(now, busyTime))
			}
			continue
		}
		select {
		case f.due <- ap:
		case <-ctx.Done():
			for _, ap := range due[i:] {
				a.back(ap, ap.due) // for the next run
			}
			return 0
		}
	}
	switch {
	case len(due) == dueBatch:
		return 0
	case next == 0:
		return time.Minute
	}
	return min(time.Duration(max(next-now, 0)), b.pace.Of(lookEvery))
}

func (f *firing) work(ctx context.Context, due <-chan *appointment) {
	for ap := range due {
		err := f.m.fire(ctx, ap)
		a := ap.r.bucket.view.agenda
		switch {
		case ctx.Err() != nil:
			a.back(ap, ap.due)
			continue
		case err != nil:
			f.m.log.Warn("cannot fire a deadline or timer", "workflow", ap.r.workflow, "entity", ap.id, "failures", ap.tries+1, "error", err)
		}
		// After a success the view has put the entity's next time in, or will soon.
		a.back(ap, plus(instant(f.m.clock.now()), tryAgain.After(ap.tries+1)))
	}
}

// fire takes the edge of a deadline that is due, or fires a timer, if the entity still
// has it.
func (m *Manager) fire(ctx context.Context, ap *appointment) error {
	ctx, cancel := context.WithTimeout(ctx, fireTime)
	defer cancel()
	r := ap.r
	err := m.mutate(ctx, r, ap.id, writing{}, func(phase string, cur *entry) (change, error) {
		return r.comesDue(phase, cur, m.clock.now())
	}, nil)
	if errors.Is(err, errNotDue) || errors.Is(err, ErrEntityNotFound) {
		return nil
	}
	return err
}

// errNotDue says that nothing of the entity is due any more, or yet.
var errNotDue = errors.New("nothing of it is due")

// comesDue returns the change that is due for an entity.
func (r *registration) comesDue(phase string, cur *entry, now time.Time) (change, error) {
	if cur.guessed {
		return change{}, errNotDue // read it again, for the server's times
	}
	d, timed := r.deadline(phase)
	end := time.Unix(0, plus(cur.since().UnixNano(), d.After))
	timed = timed && !now.Before(end)
	t, ok := first(readTimers(cur.timers()))
	ok = ok && !now.Before(t.At)
	switch {
	case timed && (!ok || !t.At.Before(end)):
		return change{moved: true, from: phase, to: d.To, source: TransitionSourceFramework, note: fmt.Sprintf("deadline: %v in %s", d.After, d.From)}, nil
	case ok && t.To != "" && r.table.IsValidTransition(phase, t.To):
		return change{moved: true, from: phase, to: t.To, source: TransitionSourceFramework, note: "timer: " + t.Name, fired: t.Name}, nil
	case ok:
		return change{fired: t.Name}, nil
	}
	return change{}, errNotDue
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
