// Package inbox has a queue between any number of senders, which never wait, and one
// reader.
package inbox

import (
	"sync"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// Inbox holds the items that its reader has not taken yet. It has no limit. Make it with
// [New]. Post and Close may be called concurrently, and under any lock.
type Inbox[T any] struct {
	wake fsm.Wake // there may be items, or it is closed

	mu     sync.Mutex // guards everything below
	queue  []T
	closed bool
}

// New returns an empty Inbox.
func New[T any]() Inbox[T] { return Inbox[T]{wake: fsm.NewWake()} }

// Post adds an item. It returns false and drops the item once the Inbox is closed.
func (b *Inbox[T]) Post(item T) bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	b.queue = append(b.queue, item)
	b.mu.Unlock()
	b.wake.Notify()
	return true
}

// maxKept is how many places of a batch are kept for the next.
const maxKept = 64

// Take waits for items and returns all of them, in the order in which they were posted;
// there may be none. It reuses the memory of done, the previous batch. It returns false
// with the last items, once the Inbox is closed. Only one goroutine may call it.
func (b *Inbox[T]) Take(done []T) (batch []T, open bool) {
	clear(done) // do not keep the items in memory until the next batch
	if cap(done) > maxKept {
		done = nil // it was an exceptionally large batch
	}
	<-b.wake
	b.mu.Lock()
	defer b.mu.Unlock()
	batch, b.queue = b.queue, done[:0]
	return batch, !b.closed
}

// Each calls fn with one item after the other, until the Inbox is closed and fn has got
// all items. Only one goroutine may call it, instead of Take.
func (b *Inbox[T]) Each(fn func(T)) {
	for batch, open := b.Take(nil); ; batch, open = b.Take(batch) {
		for _, item := range batch {
			fn(item)
		}
		if !open {
			return
		}
	}
}

// Close makes a later Post add nothing. The reader still gets the items in the queue.
func (b *Inbox[T]) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.wake.Notify()
}
