package lanes

import (
	"context"
	"errors"
	"sync"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Runner handles the tasks of a queue with a number of workers.
type Runner[T any] struct {
	// Workers is how many tasks run at once; no two of them have the same key. Defaults to 1.
	Workers int
	// Attempts is how often Handle is called for a task that fails, the failures that
	// were passed to Add included. After that the task is dead. Defaults to 1.
	Attempts int
	// Backoff says how long a failed task waits. Its restart budget has no effect.
	Backoff worker.Backoff
	// Handle handles a task. An error makes it run again after a wait. [Reject] and
	// [Uncounted] say otherwise. The context is Run's. Required.
	Handle func(context.Context, *Task[T]) error
	// Failed, when it is set, is called after each attempt that counts and that is
	// not the last one, for example to store the count. t.Failed has it already.
	Failed func(ctx context.Context, t *Task[T], why error)
	// Dead stores a task whose budget is spent. The runner calls it again, after a
	// wait, until it returns nil: no task is lost. Required.
	Dead func(ctx context.Context, t *Task[T], why error) error
	// Done, when it is set, is called once for each task that Handle or Dead has
	// finished, before the next task of its key begins.
	Done func(*Task[T])
}

// rejected is an error after which a task is not tried again.
type rejected struct{ error }

func (r rejected) Unwrap() error { return r.error }

// Reject returns an error that makes a task dead at once.
func Reject(why error) error { return rejected{why} }

// uncounted is an error that is not the task's fault.
type uncounted struct{ error }

func (u uncounted) Unwrap() error { return u.error }

// Uncounted returns an error after which a task is tried again and keeps its budget,
// because the task did not cause it: a server is away, or another process has taken
// over.
func Uncounted(why error) error { return uncounted{why} }

// Run handles tasks until ctx ends or the queue is closed, and every worker has
// returned. A task whose Handle or Dead returned an error because ctx ended is neither
// done nor dead; Close returns it.
func (r Runner[T]) Run(ctx context.Context, q *Queue[T]) {
	r.Workers, r.Attempts = max(r.Workers, 1), max(r.Attempts, 1)
	var workers sync.WaitGroup
	for range r.Workers {
		workers.Go(func() {
			for {
				t, err := q.Next(ctx)
				if err != nil {
					return
				}
				r.one(ctx, q, t)
			}
		})
	}
	workers.Wait()
}

// one tries a task once.
func (r Runner[T]) one(ctx context.Context, q *Queue[T], t *Task[T]) {
	err := t.givenUp
	if err == nil {
		if err = r.Handle(ctx, t); err == nil {
			r.end(q, t)
			return
		}
		var notCounted uncounted
		var final rejected
		switch {
		case ctx.Err() != nil:
			q.Retry(t, 0) // Close returns it
			return
		case errors.As(err, &notCounted):
			t.waits++
			q.Retry(t, r.Backoff.After(t.waits))
			return
		}
		t.waits = 0
		t.Failed++
		if !errors.As(err, &final) && t.Failed < r.Attempts {
			if r.Failed != nil {
				r.Failed(ctx, t, err)
			}
			q.Retry(t, r.Backoff.After(t.Failed))
			return
		}
		t.givenUp = err
	}
	if storeErr := r.Dead(ctx, t, err); storeErr != nil {
		t.waits++
		q.Retry(t, r.Backoff.After(t.waits))
		return
	}
	r.end(q, t)
}

func (r Runner[T]) end(q *Queue[T], t *Task[T]) {
	if r.Done != nil {
		r.Done(t)
	}
	q.Done(t)
}
