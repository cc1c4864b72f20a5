package httpdrain

import (
	"slices"
	"sync"
	"time"
)

// closeWhenIdle makes a timer close the connection after idleFor without a request. Call it
// before the first request.
func (h *http2Conn) closeWhenIdle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.idleFor > 0 && !h.closed && h.idle == nil {
		h.idle = time.AfterFunc(h.idleFor, h.expire)
	}
}

func (h *http2Conn) expire() {
	h.sendNow()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expired = true
	h.giveUpLocked()
}

// giveUp closes the connection after goAwayWait without a request. It is for a client that
// has left a frame unfinished, so that the implementation cannot be told.
func (h *http2Conn) giveUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.giveUpLocked()
}

func (h *http2Conn) giveUpLocked() {
	if h.closed || h.step.Load() != ending {
		return
	}
	if h.idle != nil {
		h.idle.Stop()
	}
	h.idleFor = goAwayWait
	h.idle = time.AfterFunc(h.idleFor, h.closeUntold)
	if h.requests > 0 {
		h.idle.Stop()
	}
}

func (h *http2Conn) closeUntold() {
	if h.step.Load() == ending && h.streams.count() == 0 {
		_ = h.conn.Close()
	}
}

// begin counts a request that keeps the connection from being idle.
func (h *http2Conn) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.requests++; h.requests == 1 && h.idle != nil {
		h.idle.Stop()
	}
}

func (h *http2Conn) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.requests--; h.requests == 0 && h.idle != nil && !h.closed {
		h.idle.Reset(h.idleFor)
	}
}

// streams has the open streams of a connection.
type streams struct {
	mu   sync.Mutex // guards everything below
	open []uint32   // rarely more than a hundred, which is the usual limit
	last uint32
}

// begin reports whether the header begins a new stream (RFC 9113, section 5.1.1): a
// trailer does not.
func (s *streams) begin(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id <= s.last || id%2 == 0 {
		return false
	}
	s.last = id
	s.open = append(s.open, id)
	return true
}

func (s *streams) end(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.open, id); i >= 0 {
		last := len(s.open) - 1
		s.open[i] = s.open[last]
		s.open = s.open[:last]
	}
}

func (s *streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// areAllIn reports whether all open streams are among these ids.
func (s *streams) areAllIn(ids []uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.open {
		if !slices.Contains(ids, id) {
			return false
		}
	}
	return true
}

// lastAndNoneOpen returns the latest stream, and whether no stream is open.
func (s *streams) lastAndNoneOpen() (last uint32, noneOpen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, len(s.open) == 0
}
