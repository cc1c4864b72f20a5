package worker

import (
	"context"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// This file has the readers of a worker's changes, and the watch on its context that they
// need.

// Await waits for a status for which until returns true, and returns it. It calls
// until with the present status and every later one. When ctx ends first, it
// returns ctx's error. until must return at once and must not call the worker.
func (b *BaseWorker) Await(ctx context.Context, until func(Status) bool) (Status, error) {
	b.observe()
	return b.machine.Wait(ctx, until)
}

// Watch returns a reader of the changes of this worker and its children from now
// on. The reader keeps at most buffer unread events; a gap event takes the place
// of lost ones. Close the reader when you no longer use it.
func (b *BaseWorker) Watch(buffer int) *fsm.Subscription {
	sub := b.dispatcher().Subscribe(buffer)
	b.observe()
	return sub
}

// dispatcher returns the worker's own dispatcher. It owns the events of the worker's
// parts, and forwards all to where the worker's own changes went before.
func (b *BaseWorker) dispatcher() *fsm.Dispatcher {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.events == nil {
		b.events = &fsm.Dispatcher{}
		b.events.SetOwner(b.machine.ID())
		b.events.Forward(b.machine.Events())
		b.machine.PublishTo(b.events)
	}
	return b.events
}

// PublishTo also sends the changes of this worker and its children to events, as
// [fsm.Dispatcher.Forward] does. A later call replaces an earlier one.
func (b *BaseWorker) PublishTo(events *fsm.Dispatcher) {
	b.mu.Lock()
	if b.events != nil {
		b.events.Forward(events)
	} else {
		b.machine.PublishTo(events)
	}
	b.mu.Unlock()
	if b.machine.Events().HasReader() {
		b.observe()
	}
}

// look records a stop that the end of the context asks for.
func (b *BaseWorker) look() {
	b.mu.Lock()
	ctx, due := b.ctx, !b.stopRequested && !b.ended
	if !due {
		b.unseen.Store(false) // there is nothing left to see
	}
	b.mu.Unlock()
	if due && ctx.Err() != nil {
		b.RequestStop(b.causeOf(ctx))
	}
}

// observe makes a worker that has not watched its context do so from now on, for a
// caller that waits for changes.
func (b *BaseWorker) observe() {
	if b.unseen.CompareAndSwap(true, false) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.ended && !b.stopRequested {
			b.rareLocked().unwatch = context.AfterFunc(b.ctx, b.look)
		}
	}
}

// unwatchLocked ends the watch on the context.
func (b *BaseWorker) unwatchLocked() {
	if unwatch := b.seldomLocked().unwatch; unwatch != nil {
		unwatch()
	}
}

// causeOf returns the cause of a context that has ended.
func (b *BaseWorker) causeOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == context.Canceled { //nolint:errorlint // the usual one, itself
		return cause
	}
	return call.Take("the cause of "+b.Name()+"'s context", cause)
}
