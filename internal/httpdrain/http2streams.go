package httpdrain

import (
	"slices"
	"sync"
)

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

// end reports whether the stream was the last open one.
func (s *streams) end(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.open, id)
	if i < 0 {
		return false
	}
	last := len(s.open) - 1
	s.open[i] = s.open[last]
	s.open = s.open[:last]
	return last == 0
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
