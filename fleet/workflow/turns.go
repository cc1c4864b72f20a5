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

// enter waits for the turn at a key. leave gives it back.
func (ts *turns) enter(ctx context.Context, key string) (leave func(), err error) {
	ts.mu.Lock()
	t := ts.keys[key]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		ts.keys[key] = t
	}
	t.users++
	ts.mu.Unlock()
	select {
	case t.taken <- struct{}{}:
		return func() { <-t.taken; ts.drop(key, t) }, nil
	case <-ctx.Done():
		ts.drop(key, t)
		return nil, context.Cause(ctx)
	}
}

func (ts *turns) drop(key string, t *turn) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(ts.keys, key)
	}
}
