package workflow

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// WithoutView registers a workflow for a process that only writes and reads single
// entities: it does not follow the bucket and keeps no copy of it. List, Children,
// Degraded and Migrate return ErrNoView, and Deadlines of this process does not see the
// workflow. Everything else works, lookups too: they ask the server. A write to an
// entity that this process has not written lately costs one more round trip.
func WithoutView() RegisterOption { return func(r *registration) { r.blind = true } }

// WithViewOf limits the view to entities in some phases, such as those that are not
// terminal, when the others are many and are not listed. Lists contain no other
// entities, and a List of another phase returns ErrNoView.
func WithViewOf(phases ...string) RegisterOption {
	return func(r *registration) {
		if r.only == nil {
			r.only = make(map[string]bool)
		}
		for _, phase := range phases {
			r.only[phase] = true
		}
	}
}

// WithViewPrefix limits the view to keys that begin with prefix, which ends in a dot:
// "mission.eu.". The server sends no others. All workflows that this process views in
// one bucket need the same prefix.
func WithViewPrefix(prefix string) RegisterOption {
	return func(r *registration) { r.prefix = prefix }
}

// checkScope checks what the options say of the view.
func (r *registration) checkScope() error {
	for _, phase := range slices.Sorted(maps.Keys(r.only)) {
		if !r.table.Has(phase) {
			return fmt.Errorf("%w: the table has no phase %q to view, it has %s", ErrInvalidTransitionsTable, phase, strings.Join(r.table.Phases(), ", "))
		}
	}
	if inner, dot := strings.CutSuffix(r.prefix, "."); r.prefix != "" && (!dot || !validKey(inner)) {
		return fmt.Errorf("%w: the view's prefix is %q, want the first part of a key, with a dot at its end", ErrInvalidParticipant, r.prefix)
	}
	return nil
}

// shows reports whether the view has entities of a phase. It has those in an unknown
// phase: they are degraded.
func (r *registration) shows(phase string) bool {
	return r.only == nil || r.only[phase] || !r.table.Has(phase)
}

// partial reports whether the view may lack an entity that exists.
func (r *registration) partial() bool { return r.blind || r.only != nil || r.prefix != "" }

// view returns the view of the workflow's bucket. It returns ErrNoView when there is
// none, or when it does not have the phase.
func (r *registration) view(phase string) (*view, error) {
	if r.blind {
		return nil, fmt.Errorf("%w: workflow %q is registered WithoutView", ErrNoView, r.workflow)
	}
	if phase != "" && !r.shows(phase) {
		return nil, fmt.Errorf("%w: the view of workflow %q has the phases %v only", ErrNoView, r.workflow, slices.Sorted(maps.Keys(r.only)))
	}
	return r.bucket.view, nil
}

// maxRecent bounds how many records a process without a view remembers.
const maxRecent = 4096

// recent is what this process wrote lately, for the next decision on it. The server
// refuses a write that was decided on an old record.
type recent struct {
	mu      sync.Mutex // guards entries
	entries map[string]*entry
}

// record returns what this process wrote last under a key, and false when it does not
// know.
func (r *recent) record(_ *registration, key string) (*entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.entries[key]
	return e, ok
}

// wrote remembers a write.
func (r *recent) wrote(_ *registration, e *entry, d decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.data == nil {
		delete(r.entries, e.key)
		return
	}
	if r.entries == nil {
		r.entries = make(map[string]*entry)
	}
	if _, known := r.entries[e.key]; !known && len(r.entries) >= maxRecent {
		for other := range r.entries { // any
			delete(r.entries, other)
			break
		}
	}
	e.guessed = d.change.moved // its time is by this process's clock
	e.known = &known{phase: d.phase, version: e.version(), timers: e.timers(), keys: e.keyHeader(), since: e.since().UnixNano()}
	e.header = nil
	r.entries[e.key] = e
}
