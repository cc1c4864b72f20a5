package lanes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// ErrClosed is returned by the methods of a queue after its Close.
var ErrClosed = errors.New("the queue is closed")

// Task is a value with its key. Only the caller to which Next returned the task may
// use it, until that caller ends it.
type Task[T any] struct {
	Key   string
	Value T
	// Failed counts the attempts that failed. A caller that knows of attempts by an
	// earlier process passes them to Add.
	Failed int

	givenUp error // why a Runner gave the task up, before Dead has stored it
	waits   int   // attempts in a row that did not count
}

// Queue hands out tasks. All methods may be called concurrently. A queue that is no
// longer used must be closed, because retries have timers.
type Queue[T any] struct {
	wake fsm.Wake // a task is due, or the queue is closed

	mu     sync.Mutex // guards everything below
	lanes  map[string]*lane[T]
	due    []*lane[T] // lanes whose first task may be handed out, in the order in which they became due
	held   map[string]bool
	size   int // tasks that were added and not ended, without those of held keys
	closed bool
}

// lane has the tasks of one key. It exists while it has tasks.
type lane[T any] struct {
	tasks []*Task[T]
	timer *time.Timer // of the retry of the first task
	out   bool        // the first task was handed out
	rests bool        // the first task is due, and the key is held
}

// New returns an empty queue.
func New[T any]() *Queue[T] {
	return &Queue[T]{wake: fsm.NewWake(), lanes: make(map[string]*lane[T]), held: make(map[string]bool)}
}

// Add puts a value behind the other tasks of its key. failed is how often it has failed
// before. Add returns [ErrClosed] when the queue is closed.
func (q *Queue[T]) Add(key string, value T, failed int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	if !q.held[key] {
		q.size++
	}
	t := &Task[T]{Key: key, Value: value, Failed: failed}
	if l := q.lanes[key]; l != nil {
		l.tasks = append(l.tasks, t)
		return nil
	}
	l := &lane[T]{tasks: []*Task[T]{t}}
	q.lanes[key] = l
	q.readyLocked(l)
	return nil
}

// readyLocked notes that a lane's first task is due.
func (q *Queue[T]) readyLocked(l *lane[T]) {
	if q.held[l.tasks[0].Key] {
		l.rests = true
		return
	}
	q.due = append(q.due, l)
	q.wake.Notify()
}

// Hold sets whether a key is held. Next returns no task of a held key; one that it has returned
// goes on. The tasks that wait come in order when the key is not held any more.
func (q *Queue[T]) Hold(key string, held bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held[key] == held || q.closed {
		return
	}
	if held {
		q.held[key] = true
	} else {
		delete(q.held, key)
	}
	l := q.lanes[key]
	switch {
	case l == nil:
	case held:
		q.size -= len(l.tasks)
		if i := slices.Index(q.due, l); i >= 0 {
			q.due = slices.Delete(q.due, i, i+1)
			l.rests = true
		}
	default:
		q.size += len(l.tasks)
		if l.rests {
			l.rests = false
			q.readyLocked(l)
		}
	}
}

// Next waits for a task that is due and returns it. The caller ends the task with Done
// or Retry. Next returns ctx's cause when ctx has ended, and [ErrClosed] when the queue
// is closed.
func (q *Queue[T]) Next(ctx context.Context) (*Task[T], error) {
	for {
		if ctx.Err() != nil {
			q.wake.Notify() // for another caller, if this one took its signal
			return nil, context.Cause(ctx)
		}
		q.mu.Lock()
		if q.closed {
			q.mu.Unlock()
			q.wake.Notify()
			return nil, ErrClosed
		}
		if len(q.due) > 0 {
			l := q.due[0]
			q.due = q.due[1:]
			l.out = true
			t := l.tasks[0]
			if len(q.due) > 0 {
				q.wake.Notify()
			}
			q.mu.Unlock()
			return t, nil
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-ctx.Done():
		}
	}
}

// Behind returns the values of up to n tasks that wait behind a task, in order. They come next:
// it returns none while another key has a task that is due.
func (q *Queue[T]) Behind(t *Task[T], n int) []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lanes[t.Key]
	if q.closed || l == nil || len(q.due) > 0 { // other lanes come first
		return nil
	}
	var values []T
	for _, behind := range l.tasks[1:min(len(l.tasks), 1+n)] {
		values = append(values, behind.Value)
	}
	return values
}

// Done ends a task. The next task of its key is due.
func (q *Queue[T]) Done(t *Task[T]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lanes[t.Key]
	if q.closed || l == nil {
		return
	}
	if !q.held[t.Key] {
		q.size--
	}
	l.out = false
	l.tasks = l.tasks[1:]
	if len(l.tasks) == 0 {
		delete(q.lanes, t.Key)
		return
	}
	q.readyLocked(l)
}

// Retry ends an attempt of a task. The task is due again after the wait, and holds its
// key until then. Retry returns false when the queue is closed: the task will not run
// again.
func (q *Queue[T]) Retry(t *Task[T], wait time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lanes[t.Key]
	if q.closed || l == nil {
		return false
	}
	l.out = false
	l.timer = time.AfterFunc(wait, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.closed {
			q.readyLocked(l)
		}
	})
	return true
}

// Len returns how many tasks were added and not ended. It does not count those of held keys: a
// reader that waits for room must get to what ends the hold.
func (q *Queue[T]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// Due returns how many keys have a task that Next would return now.
func (q *Queue[T]) Due() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.due)
}

// Close ends the queue and returns the values that wait, also for a retry. It does not return
// values that were handed out. Within a key they are in order. A second call returns nothing.
func (q *Queue[T]) Close() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.wake.Notify()
	var waiting []T
	for _, l := range q.lanes {
		if l.timer != nil {
			l.timer.Stop()
		}
		for i, t := range l.tasks {
			if i > 0 || !l.out {
				waiting = append(waiting, t.Value)
			}
		}
	}
	clear(q.lanes)
	q.due = nil
	return waiting
}
