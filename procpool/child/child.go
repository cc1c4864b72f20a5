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
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

var (
	// ErrNoPool is returned by [Serve] in a process that no pool has started.
	ErrNoPool = errors.New("no pool has started this process: " + wire.EnvSocket + " is not set")

	// ErrPoolGone is returned by [Serve] when the connection has ended without a
	// shutdown message, because the pool's process is dead, mostly, and is the
	// context.Cause of the query that runs then.
	ErrPoolGone = errors.New("the pool is gone")

	// ErrCancelled is the context.Cause of a query that nobody waits for any
	// more.
	ErrCancelled = errors.New("the query was cancelled")
)

// Handler does a query and returns its result, which becomes JSON by
// json.Marshal; a json.RawMessage is sent as it is. An error, and a panic, is
// sent in place of a result, and the worker goes on. ctx is cancelled when the
// query is. One query runs at a time.
type Handler func(ctx context.Context, q *Query) (result any, err error)

// Query is what a handler is asked. Its methods may be called concurrently
// until the handler has returned.
type Query struct {
	ID      string
	Payload json.RawMessage // is the handler's to keep

	w   *server
	run *running
}

// errAnswered is what a goroutine gets that a handler has left behind.
var errAnswered = errors.New("the query has been answered")

// write sends one message, unless the answer is sent.
func (q *Query) write(send func(*wire.Writer) error) error {
	return q.w.write(func(w *wire.Writer) error {
		if q.run.answered {
			return errAnswered
		}
		return send(w)
	})
}

// Session tells the pool under which id the work is known here. It is an error
// once the query is answered.
func (q *Query) Session(id string) error {
	return q.write(func(w *wire.Writer) error { return w.Session(q.ID, id) })
}

// Send sends a part of the answer, made JSON as a result is. It waits while
// the pool's caller has enough to read. After the query was cancelled what is
// sent is dropped on the other side. It is an error once the query is answered.
func (q *Query) Send(content any) error {
	raw, err := marshal(content)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return q.write(func(w *wire.Writer) error { return w.Message(q.ID, raw) })
}

func marshal(v any) (json.RawMessage, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, wire.CheckValue(raw)
	}
	return json.Marshal(v)
}

// lastWords is how long a handler may take to return when the pool is gone.
const lastWords = 2 * time.Second

// server is one worker's life.
type server struct {
	handler Handler
	conn    io.Closer
	began   time.Time

	mu      sync.Mutex // held while writing, guards what follows
	writer  *wire.Writer
	queries int64

	ended  chan error              // capacity 1: why nobody reads any more
	begun  chan struct{}           // capacity 1: wakes who watches
	asleep atomic.Bool             // who watches
	inline atomic.Pointer[running] // runs in the goroutine that reads

	// The reader's alone.
	ctx     context.Context
	reader  *wire.Reader
	running *running
}

// running is the query that runs.
type running struct {
	id       string
	cancel   context.CancelCauseFunc
	left     atomic.Bool   // another goroutine reads now, or none has to
	answered bool          // guarded by server.mu
	done     chan struct{} // nothing of it runs any more
}

// Serve connects to the pool that started this process, says that it is ready,
// and has handler do queries until the pool says that it is to shut down: the
// query that runs is finished then, and the result is nil. It returns
// [ErrNoPool] when there is no pool, and an error that is [ErrPoolGone] when the
// pool has gone away; main should return soon after. Cancelling ctx ends it with
// the context's cause.
//
// A query that comes while another one runs is refused with an error, which a
// pool of this module never asks for.
func Serve(ctx context.Context, handler Handler) error {
	path := os.Getenv(wire.EnvSocket)
	if path == "" {
		return ErrNoPool
	}
	limit := 0
	if text := os.Getenv(wire.EnvMaxFrame); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("%s is %q, want a number of bytes", wire.EnvMaxFrame, text)
		}
		limit = n
	}
	dialed, err := new(net.Dialer).DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("connect to the pool: %w", err)
	}
	conn := dedicate(dialed)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	s := &server{
		handler: handler, conn: conn, began: time.Now(), writer: wire.NewWriter(conn, limit), reader: wire.NewReader(conn, limit), ctx: ctx,
		ended: make(chan error, 1), begun: make(chan struct{}, 1),
	}
	if err := s.write((*wire.Writer).Ready); err != nil {
		return fmt.Errorf("%w: say ready: %w", ErrPoolGone, err)
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(over) })
	go s.read()
	err = <-s.ended
	close(over)
	watching.Wait()
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

// A query runs in the goroutine that has read it: to hand it to another one
// costs as much as the rest of a round trip. While it runs nobody reads, so a
// query that takes longer than a tick or two of watch is left to its goroutine,
// and another one goes on reading.

// tick is how long messages may wait for a reader while a query runs.
const tick = 2 * time.Millisecond

// watch sets another goroutine on the connection when a query takes long. While
// there are no queries it sleeps.
func (s *server) watch(over <-chan struct{}) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		ticker.Stop()
		s.asleep.Store(true)
		// One that began before that has not woken us.
		if r := s.inline.Load(); r == nil || r.left.Load() || !s.asleep.CompareAndSwap(true, false) {
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
			if now != nil && now == last && now.left.CompareAndSwap(false, true) {
				go s.read()
			}
			last = now
		}
	}
}

// read serves until the end, or until another goroutine does. The last one says
// why it was the last.
func (s *server) read() {
	if err, last := s.serve(); last {
		s.ended <- err
	}
}

// serve reports false when another goroutine goes on.
func (s *server) serve() (err error, last bool) { //nolint:revive // the error is the result
	var e wire.Envelope
	for {
		line, err := s.reader.Next()
		if err == nil {
			err = wire.Decode(line, &e)
			if errors.Is(err, wire.ErrField) {
				if e.RequestID == "" {
					continue // a message that cannot be acted on, nor answered
				}
				refused := err
				err = s.write(func(w *wire.Writer) error { return w.Error(e.RequestID, refused.Error()) })
				if err == nil {
					continue
				}
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
			if !s.start(&e) {
				return nil, false
			}
		case wire.Cancel:
			if s.running != nil && s.running.id == e.RequestID {
				s.running.cancel(ErrCancelled)
			}
		case wire.HealthCheck:
			_ = s.write(func(w *wire.Writer) error { return w.HealthOK(time.Since(s.began).Seconds(), s.queries) })
		case wire.Shutdown:
			return s.shutdown(e.Graceful), true
		default: // of a pool that is newer than we are
		}
	}
}

// shutdown finishes the query that runs, or cancels it, and says goodbye.
func (s *server) shutdown(graceful bool) error {
	if graceful {
		gone := make(chan struct{})
		go func() { // the pool may still cancel what runs, and may die
			defer close(gone)
			var e wire.Envelope
			for {
				line, err := s.reader.Next()
				if err != nil {
					if s.running != nil {
						s.running.cancel(ErrPoolGone)
					}
					return
				}
				if wire.Decode(line, &e) == nil && e.Type == wire.Cancel && s.running != nil && s.running.id == e.RequestID {
					s.running.cancel(ErrCancelled)
				}
			}
		}()
		defer func() {
			s.conn.Close()
			<-gone
		}()
		if s.running != nil {
			select {
			case <-s.running.done:
			case <-gone:
				s.end(ErrPoolGone, lastWords)
				return ErrPoolGone
			}
		}
	} else {
		s.end(ErrCancelled, lastWords)
	}
	_ = s.write((*wire.Writer).ShutdownAck)
	return nil
}

// end cancels the query that runs and waits a little for the handler.
func (s *server) end(cause error, patience time.Duration) {
	if s.running == nil {
		return
	}
	s.running.cancel(cause)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.running.done:
	case <-timer.C:
	}
}

// start has the handler do a query, in this goroutine, and refuses one that
// comes while another one runs. It reports false when another goroutine reads
// since.
func (s *server) start(e *wire.Envelope) (goOn bool) {
	id := e.RequestID
	if s.running != nil {
		busy := false
		_ = s.write(func(w *wire.Writer) error {
			if busy = !s.running.answered; busy {
				return w.Error(id, "busy with "+s.running.id)
			}
			return nil
		})
		if busy {
			return true
		}
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	run := &running{id: id, cancel: cancel, done: make(chan struct{})}
	s.running = run
	q := &Query{ID: id, Payload: append(json.RawMessage(nil), e.Payload...), w: s, run: run}
	s.inline.Store(run)
	if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		s.begun <- struct{}{} // it has room: it was asleep
	}
	s.do(ctx, q, run)
	return run.left.CompareAndSwap(false, true)
}

// errGoexit is the answer to a query whose handler has ended its goroutine.
var errGoexit = fmt.Errorf("query: %w", call.ErrGoexit)

// do runs the handler and sends what came of it. A handler that ends its
// goroutine ends the one that reads, and another takes its place.
func (s *server) do(ctx context.Context, q *Query, run *running) {
	var raw json.RawMessage
	err := errGoexit
	returned := false
	defer func() {
		s.answer(q.ID, raw, err, run)
		run.cancel(nil)
		if !returned && run.left.CompareAndSwap(false, true) {
			go s.read()
		}
	}()
	failed := call.Do("query", func() error {
		result, err := s.handler(ctx, q)
		if err != nil {
			return errors.New(err.Error()) // here, where it may panic
		}
		if raw, err = marshal(result); err != nil {
			return fmt.Errorf("the result: %w", err)
		}
		return nil
	})
	err, returned = failed, true
}

// answer sends what came of a query. The next one may come as soon as that is
// written.
func (s *server) answer(id string, raw json.RawMessage, err error, run *running) {
	defer close(run.done)
	_ = s.write(func(w *wire.Writer) error {
		s.queries++
		run.answered = true
		if err == nil {
			if err = w.Complete(id, raw); !tooLong(err) {
				return err
			}
			err = fmt.Errorf("the result: %w", err)
		}
		for text := err.Error(); ; text = text[:len(text)/2] { // as much of it as fits
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
