// Package asynclog puts a queue in front of a slog.Handler. When the reader of
// the log is slow, gone or stuck, log lines are lost, and the goroutine that logs
// does not wait. Only the handler's Enabled runs on that goroutine. A panic of the
// handler loses its record alone.
package asynclog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// size is how many records wait at most. A stop writes a few dozen.
const size = 1024

// Queue carries records to a handler, in order, in a goroutine of its own.
type Queue struct {
	closing chan struct{} // closed by Close
	once    sync.Once
	records chan *record  // pointers, so that a process that logs little needs little memory
	ended   chan struct{} // closed when everything is written and nothing more is queued

	mu      sync.Mutex // guards dropped and open
	dropped int
	open    bool // between Start and the end
}

type record struct {
	to  slog.Handler
	ctx context.Context // for its values
	r   slog.Record
}

// New returns a logger that writes to log, and its queue. Records go through the
// queue from Start until Close has ended it. Before and after that they go to log directly,
// and the goroutine that logs waits. Use each queue once.
func New(log *slog.Logger) (*slog.Logger, *Queue) {
	q := &Queue{records: make(chan *record, size), closing: make(chan struct{}), ended: make(chan struct{})}
	return slog.New(&handler{q, log.Handler()}), q
}

// Start begins to queue. Call it once.
func (q *Queue) Start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = true
	go q.run()
}

// run writes until Close was called and nothing is queued.
func (q *Queue) run() {
	ended := false
	defer func() {
		if ended {
			close(q.ended)
			return
		}
		go q.run() // a handler has called runtime.Goexit: only its record is lost
	}()
	for !ended {
		select {
		case r := <-q.records:
			q.write(r)
			continue
		default:
		}
		select {
		case r := <-q.records:
			q.write(r)
		case <-q.closing:
			ended = q.finished()
		}
	}
}

// finished ends the queue, unless a record was queued just before.
func (q *Queue) finished() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = len(q.records) > 0
	return !q.open
}

// write passes one record to the handler, and logs how many were lost while the
// queue was full. When the handler panics, the record is lost.
func (q *Queue) write(r *record) {
	_ = call.Do("log handler", func() error { return r.to.Handle(r.ctx, r.r) })
	q.mu.Lock()
	dropped := q.dropped
	q.dropped = 0
	q.mu.Unlock()
	if dropped > 0 {
		lost := slog.NewRecord(time.Now(), slog.LevelWarn, "the log was too slow, records were dropped", 0)
		lost.AddAttrs(slog.Int("dropped", dropped))
		_ = call.Do("log handler", func() error { return r.to.Handle(context.Background(), lost) })
	}
}

func (q *Queue) put(r *record) (direct bool) {
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

// Close writes the queued records and ends the queue. It waits for d at most, and
// reports whether everything was written. If not, the queue goes on until the
// handler returns; new records still go through it. Call Close after Start. It
// may be called again.
func (q *Queue) Close(d time.Duration) bool {
	q.once.Do(func() { close(q.closing) })
	select {
	case <-q.ended:
		return true
	case <-time.After(d):
		return false
	}
}

// handler is a slog.Handler whose records go through the queue.
type handler struct {
	q  *Queue
	to slog.Handler
}

func (h *handler) Enabled(ctx context.Context, l slog.Level) (on bool) {
	_ = call.Do("log handler", func() error { on = h.to.Enabled(ctx, l); return nil }) // a handler whose Enabled panics gets no records
	return on
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if h.q.put(&record{h.to, context.WithoutCancel(ctx), r.Clone()}) {
		return call.Do("log handler", func() error { return h.to.Handle(ctx, r) })
	}
	return nil
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.q, h.to.WithAttrs(attrs)}
}

func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.q, h.to.WithGroup(name)} }

type loggerKey struct{}

// WithLogger returns a context that has the App's log, for parts without a log of their own.
func WithLogger(ctx context.Context, log *slog.Logger) context.Context {
	return context.WithValue(ctx, loggerKey{}, log)
}

// Logger returns the log of [WithLogger], or nil.
func Logger(ctx context.Context) *slog.Logger {
	log, _ := ctx.Value(loggerKey{}).(*slog.Logger)
	return log
}
