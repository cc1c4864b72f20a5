package child

import (
	"context"
	"fmt"
	"sync"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// Option shapes a worker.
type Option func(*server)

// Concurrency says how many queries the worker takes at a time, 1 to
// wire.MaxConcurrency. Handlers run concurrently then, each in a goroutine of its own. A
// pool of version 1 gives it one at a time. Defaults to 1.
func Concurrency(n int) Option { return func(s *server) { s.places = n } }

// many are the queries that run in a worker that takes several.
type many struct {
	mu sync.Mutex // guards m
	m  map[string]*running
}

// all returns the queries that run, for the goroutine that reads.
func (s *server) all() []*running {
	if s.places == 1 {
		if s.running == nil {
			return nil
		}
		return []*running{s.running}
	}
	s.many.mu.Lock()
	defer s.many.mu.Unlock()
	out := make([]*running, 0, len(s.many.m))
	for _, run := range s.many.m {
		out = append(out, run)
	}
	return out
}

// cancel cancels the query with the id, if it runs.
func (s *server) cancel(id string, cause error) {
	for _, run := range s.all() {
		if run.id == id {
			run.cancel(cause)
		}
	}
}

// startOne starts the handler of one of several queries.
func (s *server) startOne(e *wire.Envelope, data []byte) {
	id := e.RequestID
	ctx, cancel := context.WithCancelCause(s.ctx)
	run := &running{id: id, ctx: ctx, cancel: cancel, done: make(chan struct{})}
	run.taken.Store(true) // another goroutine reads
	s.many.mu.Lock()
	full := len(s.many.m) >= s.places || s.many.m[id] != nil
	if !full {
		if s.many.m == nil {
			s.many.m = make(map[string]*running)
		}
		s.many.m[id] = run
	}
	s.many.mu.Unlock()
	if full {
		cancel(nil)
		_ = s.write(func(w *wire.Writer) error {
			return w.Error(id, fmt.Sprintf("busy with %d queries", s.places))
		})
		return
	}
	q := s.newQuery(e, data, run)
	go s.do(ctx, q, run)
}

// left takes a query off those that run, before its answer is sent: the pool may send
// the next one as soon as it has that.
func (s *server) left(run *running) {
	if s.places == 1 {
		return
	}
	s.many.mu.Lock()
	defer s.many.mu.Unlock()
	delete(s.many.m, run.id)
}
