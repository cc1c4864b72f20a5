package httpdrain

import (
	"sync"
	"time"
)

// closeWhenIdle has the connection closed when it has no request for idleFor. It is
// called before the first request.
func (h *http2Conn) closeWhenIdle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.idleFor > 0 && !h.closed && h.idle == nil {
		h.idle = time.AfterFunc(h.idleFor, h.expire)
	}
}

func (h *http2Conn) expire() {
	h.sayNow()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.expired = true
	h.giveUpLocked()
}

// giveUp closes the connection when it has had no request for goAwayWait, if the
// implementation cannot be told because the client has left a frame unfinished.
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

// streams counts the requests of a connection whose handlers are not called
// through the Server.
type streams struct {
	mu   sync.Mutex // guards everything below
	open map[uint32]struct{}
	last uint32
}

// begin reports whether the header is that of a new stream (RFC 9113, section
// 5.1.1), and not a trailer. A nil *streams counts nothing.
func (s *streams) begin(id uint32) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id <= s.last || id%2 == 0 {
		return false
	}
	s.last = id
	s.open[id] = struct{}{}
	return true
}

func (s *streams) end(id uint32) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, id)
	}
}

func (s *streams) count() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}
