package laststop

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// Scrape awaits one scrape. The zero value is ready. Its methods may be called
// concurrently.
type Scrape struct {
	wanted   atomic.Bool
	answered fsm.Signal
}

// Handler returns h, and notes the GET requests that h answers while their client is connected.
func (s *Scrape) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wanted := s.wanted.Load() // a request that began earlier may have the old numbers
		h.ServeHTTP(w, r)
		if wanted && r.Method == http.MethodGet && r.Context().Err() == nil {
			s.answered.Signal()
		}
	})
}

// Await waits until a request is answered that began after the call, until slice is over, or
// until ctx ends. It reports whether a request was answered.
func (s *Scrape) Await(ctx context.Context, slice time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, slice)
	defer cancel()
	s.wanted.Store(true)
	select {
	case <-s.answered.Signaled():
		return true
	case <-ctx.Done():
		return false
	}
}
