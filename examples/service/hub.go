package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// hub sends texts to all connected members, and knows when the
// last one has disconnected.
type hub struct {
	log *slog.Logger

	mu      sync.Mutex // guards the fields below
	members map[*member]bool
	empty   chan struct{} // closed when no member is connected; nil until Drain
}

// member is one connected client.
type member struct{ news chan string }

func newHub(log *slog.Logger) *hub { return &hub{log: log, members: make(map[*member]bool)} }

// Join adds a member. leave removes it, and may be called twice.
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

// Tell sends text to every member. A member that is far behind misses it.
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

// Len returns the number of connected members.
func (h *hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.members)
}

// Wait waits until no member is connected, and tells no member to go.
func (h *hub) Wait(ctx context.Context) error {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for h.Len() > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Drain waits until all members have disconnected. Their handlers learn from
// lifecycle.Draining that it is time to say goodbye. At the end of the window the
// App cuts the others. That happens to an endless stream whose
// client ignores the goodbye, and is not an error.
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
