// Package child is the worker's side of a procpool.Pool, for workers in Go:
//
//	func main() {
//		err := child.Serve(context.Background(), func(ctx context.Context, q *child.Query) (any, error) {
//			return thumbnail(ctx, q.Payload)
//		})
//		if err != nil {
//			log.Fatal(err)
//		}
//	}
package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

var (
	// ErrNoPool is returned by [Serve] in a process that was not started by a pool.
	ErrNoPool = errors.New("this process was not started by a pool: neither " + wire.EnvSocket + " nor " + wire.EnvFD + " is set")

	// ErrPoolGone is returned by [Serve] when the connection ended without a
	// shutdown message, usually because the pool's process died. It is also the
	// context.Cause of the query that runs then.
	ErrPoolGone = errors.New("the pool is gone")

	// ErrCancelled is the context.Cause of a query that the pool has cancelled.
	ErrCancelled = errors.New("the query was cancelled")
)

// Handler answers a query. json.Marshal encodes its result; a json.RawMessage is
// sent as it is, and a [Data] has bytes beside a value. The worker answers with an error when the handler returns one or
// panics, and goes on. ctx is cancelled when the query is. One query runs at a
// time, unless [Concurrency] says otherwise.
type Handler func(ctx context.Context, q *Query) (result any, err error)

// Option shapes a worker.
type Option func(*server)

// Concurrency says how many queries the worker takes at a time, 1 to
// wire.MaxConcurrency. Handlers run concurrently then, each in a goroutine of its own.
// Defaults to 1.
func Concurrency(n int) Option { return func(s *server) { s.places = n } }

// OnStartup makes the worker call fn before it is ready, for example to load a model. The
// pool's StartTimeout bounds the call. [Serve] returns its error, and ctx is the context
// that Serve was given.
func OnStartup(fn func(ctx context.Context) error) Option {
	return func(s *server) { s.onStartup = fn }
}

// OnShutdown makes the worker call fn after its last query, also when the pool is gone.
// The pool's ShutdownGrace bounds the call.
func OnShutdown(fn func()) Option { return func(s *server) { s.onShutdown = fn } }

// lastWords is how long a handler may take to return after the pool has gone.
const lastWords = 2 * time.Second

// server is one worker's life.
type server struct {
	handler Handler
	conn    io.Closer
	began   time.Time

	mu      sync.Mutex // held while writing; guards the fields below
	writer  *wire.Writer
	queries int64

	queriesMu sync.Mutex // guards running
	running   map[string]*running

	ended      chan error    // capacity 1: why reading has ended
	begun      chan struct{} // capacity 1: wakes watch
	asleep     atomic.Bool   // watch sleeps
	calls      calls
	places     int                         // how many queries it takes at a time
	onStartup  func(context.Context) error // nil for none
	onShutdown func()                      // nil for none, and once it was called
	inline     atomic.Pointer[running]     // the query that runs in the goroutine that reads

	// Only for the goroutine that reads.
	ctx    context.Context
	reader *wire.Reader
	last   *running // the last query
	reuses bool     // the bytes of queries are read into memory
	memory []byte   // of the bytes of the last query
}

// running is the query that runs.
type running struct {
	id       string
	ctx      context.Context
	cancel   context.CancelCauseFunc
	taken    atomic.Bool   // another goroutine reads now, or none needs to
	answered bool          // guarded by server.mu
	done     chan struct{} // closed when the handler has returned and the answer is sent
}

// Serve connects to the pool that started this process, sends ready, and calls
// handler for each query until the pool sends shutdown. It then finishes the running
// query and returns nil. It returns [ErrNoPool] when there is no pool, and an error
// that is [ErrPoolGone] when the pool has gone away; main should return soon after.
// Cancelling ctx ends it with the context's cause.
//
// Serve refuses a query that comes while another one runs. A pool of this module
// never sends one.
func Serve(ctx context.Context, handler Handler, opts ...Option) error {
	limit := 0
	if text := os.Getenv(wire.EnvMaxFrame); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("%s is %q, want a number of bytes", wire.EnvMaxFrame, text)
		}
		limit = n
	}
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	dieWithParent()
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	s := &server{
		handler: handler, conn: conn, began: time.Now(), reader: wire.NewReader(conn, limit), ctx: ctx,
		running: make(map[string]*running), ended: make(chan error, 1), begun: make(chan struct{}, 1), places: 1,
	}
	s.writer = wire.NewWriter(conn, limit)
	for i, opt := range opts {
		if opt == nil {
			return fmt.Errorf("serve: option %d is nil", i+1)
		}
		opt(s)
	}
	if s.places < 1 || s.places > wire.MaxConcurrency {
		return fmt.Errorf("serve: Concurrency is %d, want 1 to %d", s.places, wire.MaxConcurrency)
	}
	s.reuses = s.reuses && s.places == 1
	if s.onStartup != nil {
		if err := s.onStartup(ctx); err != nil {
			return fmt.Errorf("serve: OnStartup: %w", err)
		}
	}
	if err := s.write(s.announce); err != nil {
		return fmt.Errorf("%w: say ready: %w", ErrPoolGone, err)
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(over) })
	go s.read()
	err = <-s.ended
	close(over)
	watching.Wait()
	s.shutDown()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// write sends one message.
func (s *server) write(send func(*wire.Writer) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return send(s.writer)
}

// A query runs in the goroutine that read it: with a goroutine for each query half of the
// round trips of 100 bytes take 51 µs in place of 21. No goroutine reads while it runs. So when a
// query takes longer than one or two ticks, watch starts another goroutine that
// reads on.

// tick is how long messages may wait for a reader while a query runs.
const tick = 2 * time.Millisecond

// watch starts another reader when a query takes long. It sleeps while there are no
// queries.
func (s *server) watch(over <-chan struct{}) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		ticker.Stop()
		s.asleep.Store(true)
		// A query that began before asleep was set has not woken us.
		if r := s.inline.Load(); r == nil || r.taken.Load() || !s.asleep.CompareAndSwap(true, false) {
			select {
			case <-s.begun:
			case <-over:
				return
			}
		}
		ticker.Reset(tick)
		var last *running
		for still := 0; still < 100; {
			select {
			case <-ticker.C:
			case <-over:
				return
			}
			now := s.inline.Load()
			if still++; now != last {
				still = 0
			}
			if now != nil && now == last {
				s.handOver(now)
			}
			last = now
		}
	}
}

// handOver starts another goroutine that reads, unless there is one.
func (s *server) handOver(run *running) {
	if run.taken.CompareAndSwap(false, true) {
		go s.read()
	}
}

// read serves until the end, or until another goroutine takes over. The last one
// reports why serving has ended.
func (s *server) read() {
	if err, last := s.serve(); last {
		s.ended <- err
	}
}

// serve returns last as false when another goroutine has taken over.
func (s *server) serve() (err error, last bool) { //nolint:revive // the error is the result
	var e wire.Envelope
	for {
		data, err := s.next(&e)
		if errors.Is(err, wire.ErrField) {
			if e.RequestID == "" {
				continue // without an id the message cannot be answered
			}
			refused := err
			err = s.write(func(w *wire.Writer) error { return w.Error(e.RequestID, refused.Error()) })
			if err == nil {
				continue
			}
		}
		if err != nil {
			s.end(ErrPoolGone, lastWords)
			if errors.Is(err, io.EOF) {
				return ErrPoolGone, true
			}
			return fmt.Errorf("%w: %w", ErrPoolGone, err), true
		}
		switch e.Type {
		case wire.Query:
			if !s.start(&e, data) {
				return nil, false
			}
		case wire.Cancel:
			s.cancel(e.RequestID, ErrCancelled)
		case wire.HealthCheck:
			_ = s.write(func(w *wire.Writer) error { return w.HealthOK(time.Since(s.began).Seconds(), s.queries) })
		case wire.Dump:
			s.showStacks()
		case wire.Reply:
			s.calls.take(&e)
		case wire.Shutdown:
			return s.shutdown(e.Graceful), true
		default: // from a newer pool
		}
	}
}

// shutdown finishes or cancels the running query and sends shutdown_ack.
func (s *server) shutdown(graceful bool) error {
	if graceful {
		gone := make(chan struct{})
		go func() { // the pool may still cancel the query, and may die
			defer close(gone)
			var e wire.Envelope
			for {
				_, err := s.next(&e)
				if errors.Is(err, wire.ErrField) || errors.Is(err, wire.ErrNotJSON) {
					continue
				}
				if err != nil {
					for _, run := range s.all() {
						run.cancel(ErrPoolGone)
					}
					return
				}
				switch e.Type { //nolint:exhaustive // only these matter to a query that runs
				case wire.Cancel:
					s.cancel(e.RequestID, ErrCancelled)
				case wire.Reply:
					s.calls.take(&e)
				}
			}
		}()
		defer func() {
			s.conn.Close()
			<-gone
		}()
		for _, run := range s.all() {
			select {
			case <-run.done:
			case <-gone:
				s.end(ErrPoolGone, lastWords)
				return ErrPoolGone
			}
		}
	} else {
		s.end(ErrCancelled, lastWords)
	}
	_ = s.write((*wire.Writer).ShutdownAck)
	s.shutDown() // while the connection is open
	return nil
}

// shutDown calls the function of [OnShutdown], once.
func (s *server) shutDown() {
	if fn := s.onShutdown; fn != nil {
		s.onShutdown = nil
		fn()
	}
}

// end cancels the running queries and waits up to patience for their handlers.
func (s *server) end(cause error, patience time.Duration) {
	all := s.all()
	for _, run := range all {
		run.cancel(cause)
	}
	late := time.After(patience)
	for _, run := range all {
		select {
		case <-run.done:
		case <-late:
			return
		}
	}
}

// start runs the handler for a query: in this goroutine, or in one of its own when the
// worker takes several queries. It refuses a query that is too many. It returns false when
// another goroutine reads since then.
func (s *server) start(e *wire.Envelope, data []byte) (goOn bool) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	run := &running{id: e.RequestID, ctx: ctx, cancel: cancel, done: make(chan struct{})}
	if !s.admit(run) {
		cancel(nil)
		_ = s.write(func(w *wire.Writer) error {
			return w.Error(run.id, fmt.Sprintf("busy: the worker takes %d at a time", s.places))
		})
		return true
	}
	s.last = run
	q := s.newQuery(e, data, run)
	if s.places > 1 {
		run.taken.Store(true)
		go s.do(ctx, q, run)
		return true
	}
	s.inline.Store(run)
	if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		s.begun <- struct{}{} // does not block: watch was asleep, so the channel is empty
	}
	s.do(ctx, q, run)
	return run.taken.CompareAndSwap(false, true)
}

// admit adds a query to the running ones, unless there are too many.
func (s *server) admit(run *running) bool {
	s.queriesMu.Lock()
	defer s.queriesMu.Unlock()
	if len(s.running) >= s.places || s.running[run.id] != nil {
		return false
	}
	s.running[run.id] = run
	return true
}

// leave removes a query from the running ones, before its answer is sent: the pool may send
// the next one as soon as it has that.
func (s *server) leave(run *running) {
	s.queriesMu.Lock()
	defer s.queriesMu.Unlock()
	delete(s.running, run.id)
}

// all returns the queries that run.
func (s *server) all() []*running {
	s.queriesMu.Lock()
	defer s.queriesMu.Unlock()
	return slices.Collect(maps.Values(s.running))
}

// cancel cancels the query with the id, if it runs.
func (s *server) cancel(id string, cause error) {
	s.queriesMu.Lock()
	run := s.running[id]
	s.queriesMu.Unlock()
	if run != nil {
		run.cancel(cause)
	}
}

// errGoexit is the answer when a handler has called runtime.Goexit.
var errGoexit = fmt.Errorf("query: %w", call.ErrGoexit)

// do runs the handler and sends its answer. A handler that calls runtime.Goexit also
// ends the goroutine that reads; then do starts another one.
func (s *server) do(ctx context.Context, q *Query, run *running) {
	var raw json.RawMessage
	var data []byte
	err := errGoexit
	returned := false
	defer func() {
		s.answer(q.ID, raw, data, err, run)
		run.cancel(nil)
		if !returned {
			s.handOver(run)
		}
	}()
	failed := call.Do("query", func() error {
		result, err := s.handler(ctx, q)
		if err != nil {
			return errors.New(err.Error()) // here call.Do catches a panic of Error
		}
		if raw, data, err = encode(result); err != nil {
			return fmt.Errorf("the result: %w", err)
		}
		return nil
	})
	err, returned = failed, true
}

// answer sends a query's answer. The pool may send the next query as soon as that is
// written.
func (s *server) answer(id string, raw json.RawMessage, data []byte, err error, run *running) {
	defer close(run.done)
	_ = s.write(func(w *wire.Writer) error {
		s.leave(run)
		s.queries++
		run.answered = true
		if err == nil {
			if err = w.Complete(id, raw, data); !tooLong(err) {
				return err
			}
			err = fmt.Errorf("the result: %w", err)
		}
		for text := err.Error(); ; text = text[:len(text)/2] { // halve it until it fits
			if err := w.Error(id, text); text == "" || !tooLong(err) {
				return err
			}
		}
	})
}

func tooLong(err error) bool {
	var long *wire.TooLongError
	return errors.As(err, &long)
}
