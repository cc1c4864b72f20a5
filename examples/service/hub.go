package main

import (
	"context"
	"log/slog"
	"sync"
)

// hub tells everybody who is connected what has happened, and knows when the
// last one has left.
type hub struct {
	log *slog.Logger

	mu      sync.Mutex // guards what follows
	members map[*member]bool
	empty   chan struct{} // closed when nobody is connected; nil until Drain asks
}

// member is one connected client.
type member struct{ news chan string }

func newHub(log *slog.Logger) *hub { return &hub{log: log, members: make(map[*member]bool)} }

// Join adds a member. leave takes it out again, and may be called twice.
func (h *hub) Join() (m *member, leave func()) {
	m = &member{news: make(chan string, 16)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.members[m] = true
	return m, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.members, m)
		if len(h.members) == 0 && h.empty != nil {
			close(h.empty)
			h.empty = nil
		}
	}
}

// Tell gives text to every member. One that is far behind misses it.
func (h *hub) Tell(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for m := range h.members {
		select {
		case m.news <- text:
		default:
		}
	}
}

// Len returns how many are connected.
func (h *hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.members)
}

// Drain waits until everybody has left. Their handlers know by
// lifecycle.Draining that it is time to say goodbye. Who is still there at the
// window's end is cut by the App; that is the fate of an endless stream whose
// client does not listen, and no error.
func (h *hub) Drain(ctx context.Context) error {
	h.mu.Lock()
	open, empty := len(h.members), make(chan struct{})
	if open == 0 {
		close(empty)
	} else {
		h.empty = empty
	}
	h.mu.Unlock()
	h.log.Info("streams are told to go", "open", open)
	select {
	case <-empty:
	case <-ctx.Done():
		h.log.Warn("streams did not leave in time and are cut", "open", h.Len())
	}
	return nil
}
