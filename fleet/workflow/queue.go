package workflow

import (
	"context"
	"slices"
	"sync"
)

// queue makes the writers of this process take turns at each key, in order of
// arrival. Otherwise they would only conflict at the server.
type queue struct {
	mu   sync.Mutex           // guards keys
	keys map[string][]*waiter // the keys at which a writer has the turn, and those that wait for it
}

// waiter is a writer that waits for the turn at a key.
type waiter struct {
	turn chan struct{} // closed when it has the turn
	crew *crewman      // nil for a write that must be one of its own
}

// try takes the key's turn if no other writer has it.
func (q *queue) try(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, taken := q.keys[key]; taken {
		return false
	}
	q.keys[key] = nil
	return true
}

// line takes the key's turn, or returns a waiter at the end of the line for it.
func (q *queue) line(key string, crew *crewman) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	line, taken := q.keys[key]
	if !taken {
		q.keys[key] = nil
		return nil
	}
	w := &waiter{turn: make(chan struct{}), crew: crew}
	q.keys[key] = append(line, w)
	return w
}

// enter waits for the key's turn. The caller that gets it calls leave.
func (q *queue) enter(ctx context.Context, key string) error {
	w := q.line(key, nil)
	if w == nil {
		return nil
	}
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		if !q.quit(key, w) {
			q.leave(key) // it has got the turn meanwhile
		}
		return context.Cause(ctx)
	}
}

// quit leaves the line. It returns false for a waiter that is no longer in it.
func (q *queue) quit(key string, w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.keys[key], w)
	if i < 0 {
		return false
	}
	q.keys[key] = slices.Delete(q.keys[key], i, i+1)
	return true
}

// leave passes the key's turn on.
func (q *queue) leave(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.popLocked(key); w != nil {
		close(w.turn)
		return
	}
	delete(q.keys, key)
}

// companion takes the first of the line out of it, for the write of the caller, who has
// the turn. It returns nil when there is none, or when it cannot be part of that write.
func (q *queue) companion(key string, fits func(*crewman) bool) *crewman {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.keys[key]; len(line) == 0 || line[0].crew == nil || !fits(line[0].crew) {
		return nil
	}
	return q.popLocked(key).crew
}

func (q *queue) popLocked(key string) *waiter {
	line := q.keys[key]
	if len(line) == 0 {
		return nil
	}
	first := line[0]
	line[0] = nil // the line keeps its memory
	q.keys[key] = line[1:]
	return first
}
