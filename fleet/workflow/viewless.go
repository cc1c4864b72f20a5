package workflow

import (
	"context"
	"fmt"
	"sync"
)

// WithoutView registers a workflow for a process that only writes and reads single
// entities: it does not follow the bucket and keeps no copy of it. List, Children,
// Degraded and Migrate return ErrNoView, and Deadlines of this process does not see the
// workflow. Everything else works, lookups too: they ask the server. A write to an
// entity that this process has not written lately costs one more round trip.
func WithoutView() RegisterOption { return func(r *registration) { r.viewless = true } }

// viewed returns the view of the workflow's bucket once it has read it, or ErrNoView when there
// is none.
func (r *registration) viewed(ctx context.Context) (*view, error) {
	if r.viewless {
		return nil, fmt.Errorf("%w: workflow %q is registered WithoutView", ErrNoView, r.workflow)
	}
	return r.bucket.view, r.bucket.view.wait(ctx, nil)
}

const maxRecent = 4096

// recent is what this process wrote lately, for the next decision on it. The server
// refuses a write that was decided on an old record. Without it such a write takes three times
// the processor time (BenchmarkWorkflow of bench/workflow, Transition without a view).
type recent struct {
	mu      sync.Mutex // guards entries
	entries map[string]*entry
}

// record returns what this process wrote last under a key, and false when it does not
// know.
func (r *recent) record(key string) (*entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.entries[key]
	return e, ok
}

// wrote remembers a write that left the entity in a phase.
func (r *recent) wrote(e *entry, phase string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.deleted() {
		delete(r.entries, e.key)
		return
	}
	if len(r.entries) >= maxRecent {
		clear(r.entries)
	}
	e.guessed = e.moved() // its time is by this process's clock
	e.phase = phase
	r.entries[e.key] = e
}
