package presence

import (
	"slices"
	"sync"
	"time"
)

// Living tracks which members of a fleet are alive, from the entries in a bucket. A
// member that has sent no entry for the TTL is dead. Living measures that time with
// this process's clock, because a watch does not report an entry that expires.
//
// Make one with [NewLiving]. Its methods may be called concurrently.
type Living struct {
	ttl time.Duration

	mu    sync.Mutex // guards heard
	heard map[string]time.Time
}

// NewLiving returns a Living without members.
func NewLiving(ttl time.Duration) *Living {
	return &Living{ttl: ttl, heard: make(map[string]time.Time)}
}

// Heard notes that a member has announced itself.
func (l *Living) Heard(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard[id] = time.Now()
}

// Left notes that a member has removed its entry. It reports whether the member was
// known. A member that [Living.Expire] has returned is no longer known.
func (l *Living) Left(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.heard[id]
	delete(l.heard, id)
	return known
}

// Alive returns the ids of the members that are alive now, sorted.
func (l *Living) Alive() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for id, at := range l.heard {
		if time.Since(at) < l.ttl {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Expire forgets the members that have died, and returns their ids, sorted. Each
// death is returned once.
func (l *Living) Expire() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for id, at := range l.heard {
		if time.Since(at) >= l.ttl {
			ids = append(ids, id)
			delete(l.heard, id)
		}
	}
	slices.Sort(ids)
	return ids
}
