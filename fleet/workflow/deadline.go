package workflow

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
// A paused entity waits for [Manager.Resume].
//
// What is due is begun in the order of its times in each workflow. Up to 64 are written at
// once, each within 5 s. One that cannot be written is tried again after a pause that grows to
// five minutes, and the others go on meanwhile.
func (m *Manager) Deadlines(ctx context.Context) error {
	f := newFiring(m)
	defer f.running.Wait()
	for {
		if m.isClosed() {
			return fmt.Errorf("deadlines: %w", ErrClosed)
		}
		earlier := m.earlier.next()
		wait := time.Minute
		for _, b := range m.allBuckets() {
			wait = min(wait, f.round(ctx, b))
		}
		select {
		case <-time.After(max(wait, time.Millisecond)):
		case <-earlier:
		case <-ctx.Done():
		case <-m.alive.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

const (
	// fireMany writes are in flight at once.
	fireMany = 64
	// fireTime bounds one of them.
	fireTime = 5 * time.Second
	// dueBatch is how many entities of a bucket one round takes.
	dueBatch = 1024
)

// tryAgain is the pause after a write that failed.
var tryAgain = worker.Backoff{Min: time.Second, Max: 5 * time.Minute, Jitter: 0.2}

// firing is one run of Deadlines.
type firing struct {
	m       *Manager
	room    chan struct{} // holds a token for each write that is under way
	running sync.WaitGroup

	mu    sync.Mutex     // guards tries and what is in them
	tries map[place]*try // those that run, and those that wrote nothing
	swept int64          // when sweep last looked at all of them
}

func newFiring(m *Manager) *firing {
	return &firing{m: m, room: make(chan struct{}, fireMany), tries: make(map[place]*try)}
}

// place is where an entity is stored.
type place struct {
	bucket *bucket
	key    string
}

// try is what was tried for an entity that is due. Times are by the server's clock, in
// Unix nanoseconds.
type try struct {
	at       place
	r        *registration
	id       string
	due      int64
	next     int64 // not before this time
	failures int
	running  bool
}

// round fires what is due in a bucket, and returns how long it is to the next.
func (f *firing) round(ctx context.Context, b *bucket) time.Duration {
	if err := f.m.clock.look(ctx, b); err != nil && ctx.Err() == nil {
		f.m.log.Debug("the time since the last answer counts by this process's clock", "error", err)
	}
	now := instant(f.m.clock.Now())
	f.sweep(now)
	due, wait := f.due(b, now)
	for _, t := range due {
		f.room <- struct{}{} // each write is bounded, and ends with ctx
		f.running.Go(func() {
			f.try(ctx, t)
			<-f.room
		})
	}
	return min(wait, b.pace.Of(lookEvery))
}

// due returns what is due in a bucket and not tried at present, and how long it is to the
// next.
func (f *firing) due(b *bucket, now int64) (due []*try, wait time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := plus(now, time.Minute)
	b.view.eachDue(func(en *entity) bool {
		if en.due > now {
			next = min(next, en.due)
			return false
		}
		at := place{b, en.key}
		t := f.tries[at]
		switch {
		case t == nil || t.due != en.due && !t.running:
			t = &try{at: at, r: en.index.r, id: en.id, due: en.due}
			f.tries[at] = t
		case t.running:
			next = min(next, plus(now, time.Second)) // a try that fails does not wake the loop
			return true
		case t.next > now:
			next = min(next, t.next)
			return true
		}
		if len(due) == dueBatch {
			next = now
			return false
		}
		t.running = true
		due = append(due, t)
		return true
	})
	return due, time.Duration(next - now)
}

// try fires what is due for an entity. After a write the view has the entity's next time, so
// nothing is remembered of it. After a try that wrote nothing the view may still say that the
// entity is due.
func (f *firing) try(ctx context.Context, t *try) {
	wrote, err := f.m.fire(ctx, t)
	f.mu.Lock()
	defer f.mu.Unlock()
	if wrote {
		delete(f.tries, t.at)
		f.m.earlier.notify() // it may be due again already
		return
	}
	t.running = false
	t.next = plus(instant(f.m.clock.Now()), tryAgain.After(t.failures+1))
	if err != nil && ctx.Err() == nil {
		t.failures++
		f.m.log.Warn("cannot fire a deadline or timer", "workflow", t.r.workflow, "entity", t.id, "failures", t.failures, "error", err)
	}
}

// sweep forgets the tries of entities that are not due any more, once a minute.
func (f *firing) sweep(now int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if plus(f.swept, time.Minute) > now {
		return
	}
	f.swept = now
	maps.DeleteFunc(f.tries, func(_ place, t *try) bool { return !t.running && plus(t.next, time.Minute) < now })
}

// fire takes the edge of a deadline that is due, or fires a timer, if the entity still
// has it. It reports whether it has written the entity.
func (m *Manager) fire(ctx context.Context, t *try) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, fireTime)
	defer cancel()
	r := t.r
	err = m.mutate(ctx, r, t.id, writeOptions{}, func(phase string, cur *entry) (meta, error) {
		return r.comesDue(phase, cur, m.clock.Now())
	}, nil)
	if errors.Is(err, errNotDue) || errors.Is(err, ErrEntityNotFound) {
		return false, nil
	}
	return err == nil, err
}

// errNotDue says that nothing of the entity is due any more, or yet.
var errNotDue = errors.New("nothing of it is due")

// comesDue returns the change that is due for an entity.
func (r *registration) comesDue(phase string, cur *entry, now time.Time) (meta, error) {
	if cur.guessed {
		return meta{}, errNotDue // read it again, for the server's times
	}
	if cur.paused() {
		return meta{}, errNotDue
	}
	d, timed := r.deadline(phase)
	end := time.Unix(0, plus(cur.sinceTime().UnixNano(), d.After))
	timed = timed && !now.Before(end)
	t, ok := first(readTimers(cur.timers))
	ok = ok && !now.Before(t.At)
	moved := meta{from: phase, source: TransitionSourceFramework}
	switch {
	case timed && (!ok || !t.At.Before(end)):
		moved.entered, moved.note = d.To, fmt.Sprintf("deadline: %v in %s", d.After, d.From)
		return moved, nil
	case ok && t.To != "" && r.table.IsValidTransition(phase, t.To):
		moved.entered, moved.note, moved.fired = t.To, "timer: "+t.Name, t.Name
		return moved, nil
	case ok:
		return meta{fired: t.Name}, nil
	}
	return meta{}, errNotDue
}
