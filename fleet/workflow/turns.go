package workflow

import (
	"context"
	"sync"
)

// turns makes the writers of this process take turns at each key, in the order in which
// they come. Without turns their writes would conflict at the server.
type turns struct {
	mu   sync.Mutex // guards keys and the users of each
	keys map[string]*turn
}

// turn is the turn at one key. One writer at a time has it.
type turn struct {
	taken chan struct{} // of size 1; full while a writer has the turn
	users int           // how many writers have the turn or wait for it
}

// enter waits for the turn at a key. The caller that gets it calls leave.
func (ts *turns) enter(ctx context.Context, key string) error {
	t := ts.use(key)
	select {
	case t.taken <- struct{}{}:
		return nil
	case <-ctx.Done():
		ts.drop(key, t)
		return context.Cause(ctx)
	}
}

// try takes the turn at a key if no writer has it or waits for it.
func (ts *turns) try(key string) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.keys[key] != nil {
		return false
	}
	t := &turn{taken: make(chan struct{}, 1), users: 1}
	t.taken <- struct{}{}
	ts.keys[key] = t
	return true
}

// leave gives the turn at a key back. The caller has it.
func (ts *turns) leave(key string) {
	ts.mu.Lock()
	t := ts.keys[key]
	ts.mu.Unlock()
	<-t.taken
	ts.drop(key, t)
}

func (ts *turns) use(key string) *turn {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.keys[key]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		ts.keys[key] = t
	}
	t.users++
	return t
}

func (ts *turns) drop(key string, t *turn) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(ts.keys, key)
	}
}
