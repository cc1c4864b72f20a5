package fsm

import "sync"

// closed is the channel of a signal that happened before any call of Signaled.
var closed = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// Signal is an event that happens at most once: "draining has begun", "the last
// request has ended". Any number of goroutines may wait for it, before and after
// it happens.
//
// The zero value is ready to use. All methods may be called concurrently and under
// any lock, because none of them waits. A Signal must not be copied after its first use.
type Signal struct {
	mu sync.Mutex    // guards ch
	ch chan struct{} // made by the first Signaled; closed once the event has happened
}

// Signal records that the event has happened, and wakes all goroutines that wait
// for it. It reports whether this call was the first; further calls do nothing.
func (s *Signal) Signal() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ch == nil:
		s.ch = closed
	case s.happenedLocked():
		return false
	default:
		close(s.ch)
	}
	return true
}

// Signaled returns the channel that is closed once the event has happened. Every
// call returns the same channel.
func (s *Signal) Signaled() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// HasSignaled reports whether the event has happened.
func (s *Signal) HasSignaled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.happenedLocked()
}

func (s *Signal) happenedLocked() bool {
	select {
	case <-s.ch: // a nil channel is never ready
		return true
	default:
		return false
	}
}

// Wake is a token that tells one reader "there may be work". Several calls of
// [Wake.Notify] before the reader looks leave one token. So each time that it
// receives a token, the reader has to take all the work there is:
//
//	for range wake {
//		for item, ok := queue.take(); ok; item, ok = queue.take() {
//			…
//		}
//	}
type Wake chan struct{}

// NewWake returns a Wake without a token.
func NewWake() Wake { return make(Wake, 1) }

// Notify leaves a token. It never waits: when there is a token already, the
// reader has not looked yet and will also find the new work.
func (w Wake) Notify() {
	select {
	case w <- struct{}{}:
	default:
	}
}
