// Package asynclog puts a queue in front of a slog.Handler, so that a log whose
// reader is slow, gone or stuck costs log lines and never the time of whoever
// logs.
package asynclog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/safe"
)

// size is how many records wait at most. A stop writes a few dozen.
const size = 1024

// Queue carries records to a handler, in order, in a goroutine of its own.
type Queue struct {
	mu      sync.Mutex // guards what follows
	records chan record
	dropped int
	open    bool // between Start and Close
	ended   chan struct{}
}

type record struct {
	to slog.Handler
	r  slog.Record
}

// New returns a logger that writes to log: through the queue between Start and
// Close, directly before and after.
func New(log *slog.Logger) (*slog.Logger, *Queue) {
	q := &Queue{records: make(chan record, size), ended: make(chan struct{})}
	return slog.New(&handler{q, log.Handler()}), q
}

// Start begins to queue. Call it once.
func (q *Queue) Start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = true
	go q.run()
}

func (q *Queue) run() {
	defer close(q.ended)
	for r := range q.records {
		q.write(r)
		// Room again: say what was lost while there was none.
		q.mu.Lock()
		dropped := q.dropped
		q.dropped = 0
		q.mu.Unlock()
		if dropped > 0 {
			lost := slog.NewRecord(time.Now(), slog.LevelWarn, "the log was too slow, records were dropped", 0)
			lost.AddAttrs(slog.Int("dropped", dropped))
			q.write(record{r.to, lost})
		}
	}
}

// write hands one record over. A handler that panics loses its record.
func (q *Queue) write(r record) {
	_ = safe.Do("log handler", func() error { return r.to.Handle(context.Background(), r.r) })
}

func (q *Queue) put(r record) (direct bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open {
		return true
	}
	select {
	case q.records <- r:
	default:
		q.dropped++
	}
	return false
}

// Close writes what is queued and ends the queue, for d at most. It comes after
// Start. It reports
// whether everything was written; if not, the goroutine goes on until the
// handler that it waits for returns.
func (q *Queue) Close(d time.Duration) bool {
	q.mu.Lock()
	if q.open {
		q.open = false
		close(q.records)
	}
	q.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-q.ended:
		return true
	case <-timer.C:
		return false
	}
}

// handler is a slog.Handler whose records go through the queue.
type handler struct {
	q  *Queue
	to slog.Handler
}

func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.to.Enabled(ctx, l) }

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if h.q.put(record{h.to, r.Clone()}) {
		return h.to.Handle(ctx, r)
	}
	return nil
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.q, h.to.WithAttrs(attrs)}
}

func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.q, h.to.WithGroup(name)} }
