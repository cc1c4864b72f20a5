package procpool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/trace"
)

// Query is one question to the pool, from [Pool.Submit]. All methods may be
// called concurrently, but one goroutine may read [Query.Messages] at a time.
type Query struct {
	pool       *Pool
	id         string
	seq        uint64
	payload    json.RawMessage
	data       []byte // beside the payload
	into       []byte // memory for the bytes of the answer
	key        string
	keyed      bool
	anew       bool // the key's session may begin anew
	idempotent bool
	caller     string
	print      string // its fingerprint
	calls      CallHandler
	callTurn   chan struct{} // has the call that is answered; nil when calls need not wait
	about      wire.About
	begun      time.Time
	until      time.Time
	invalid    error // of an option

	machine  fsm.Machine[QueryState]
	messages chan Part // nil for Do, which drops them

	done     fsm.Signal // it has ended
	mu       sync.Mutex // guards the fields below; result, answer and err are final once it has ended
	result   json.RawMessage
	answer   []byte // beside the result
	err      error
	session  string
	held     int             // bytes of unread messages and of calls without an answer
	dropped  chan struct{}   // closed when held shrinks; nil when nothing waits for that
	callCtx  context.Context // of calls, nil before the first
	endCalls context.CancelFunc
	late     *DeadlineError // its deadline has passed; it may wait for the worker's stacks
	timer    *time.Timer
	unwatch  func() bool

	// Guarded by pool.mu.
	on       *attempt // the attempt that a worker has
	attempts int
	deaths   int    // of workers that had no other
	alone    bool   // it runs in the extra worker; see Poison
	turn     uint64 // of its caller; see Config.FairShares
	streamed bool
	last     string // the worker that has it or had it last
}

// Option shapes one query.
type Option func(*Query)

// Key sends all queries of one key, such as a session or a workspace, to the same
// worker, one after the other: the key requires its worker. A query waits for a busy
// worker of its key even when others are free. A new key gets the worker with the
// fewest keys, and while the pool has room, a worker of its own. The pool remembers a
// key until its worker ends: with an unbounded number of keys, set Recycle.MaxAge.
//
// When the worker dies, what it knew of the key is gone. The queries that it had or that
// waited for it, or else the next one, end with a [*SessionLostError]; later ones begin a
// new session. An end that the pool has planned does not count: a limit of Recycle, an
// eviction, a reload.
func Key(key string) Option {
	return func(q *Query) { q.key, q.keyed = key, true }
}

// BeginAnew lets a query with a [Key] begin a new session with another worker when the
// key's worker has died, in place of the [*SessionLostError].
func BeginAnew() Option { return func(q *Query) { q.anew = true } }

// Idempotent says that the query may run twice. When its worker dies before it has
// streamed anything, the query runs once more, alone; see [Poison]. When the pool itself
// had to end the worker, it gives the query to another one, up to twice. A query with a
// [Key] runs again only with [BeginAnew].
func Idempotent() Option { return func(q *Query) { q.idempotent = true } }

// Timeout bounds the query, in place of Config.QueryTimeout.
func Timeout(d time.Duration) Option {
	return func(q *Query) { q.until = q.begun.Add(d) }
}

// Caller says on whose behalf the query is made, for example a tenant. Poison.Deaths
// is a limit of each caller. The name has at most 256 bytes.
func Caller(name string) Option {
	return func(q *Query) { q.caller = q.short("caller", name) }
}

// Fingerprint says which queries are alike, for example all that concern one document.
// When workers die of some, the pool refuses all of them; see [Poison]. It has at
// most 256 bytes. Without it a fingerprint is a hash of what
// the worker sees: payload, bytes, metadata and key. Each Pool has a seed of its own for that.
func Fingerprint(print string) Option {
	return func(q *Query) { q.print = q.short("fingerprint", print) }
}

// Metadata gives the worker texts about the query, for example who made it.
// They have at most 16 KiB.
func Metadata(data map[string]string) Option {
	return func(q *Query) {
		q.about.Metadata = maps.Clone(data)
		if n := q.sizeOfAbout(); n > maxAbout {
			q.invalid = fmt.Errorf("option metadata: it has %d bytes as JSON, want at most %d", n, maxAbout)
		}
	}
}

// Trace gives the worker the trace that the query is a part of: the headers
// of W3C Trace Context. They have at most 256 and 512 bytes. Without it, the worker gets the
// trace of the query's context: see package lifecycle-go/trace.
func Trace(traceparent, tracestate string) Option {
	return func(q *Query) {
		if len(traceparent) > maxName || len(tracestate) > 2*maxName {
			q.invalid = fmt.Errorf("option trace: it has %d and %d bytes, want at most %d and %d",
				len(traceparent), len(tracestate), maxName, 2*maxName)
			return
		}
		q.about.Traceparent, q.about.Tracestate = traceparent, tracestate
	}
}

// maxAbout bounds what a query carries beside its payload.
const maxAbout = 16 << 10

// sizeOfAbout returns how many bytes of the query's line are about it, at most.
func (q *Query) sizeOfAbout() int {
	if len(q.about.Metadata) == 0 && q.about.Traceparent == "" && q.about.Tracestate == "" {
		return 0
	}
	text, err := json.Marshal([]any{q.about.Traceparent, q.about.Tracestate, q.about.Metadata})
	if err != nil {
		return maxAbout + 1 // cannot happen: texts can be marshalled
	}
	return len(text) + 50 // the names of the fields
}

// maxName bounds names that callers choose.
const maxName = 256

func (q *Query) short(option, name string) string {
	if len(name) > maxName || name == "" {
		q.invalid = fmt.Errorf("option %s: it has %d bytes, want 1 to %d", option, len(name), maxName)
		return ""
	}
	return name
}

// maxAttempts bounds how often an idempotent query is given to a worker.
const maxAttempts = 3

// ID returns the query's id. Its first request on the wire has the same id.
func (q *Query) ID() string { return q.id }

// State returns the query's state.
func (q *Query) State() QueryState { return q.machine.State() }

// Done returns a channel that is closed once the query is in a terminal state.
func (q *Query) Done() <-chan struct{} { return q.done.Signaled() }

func (q *Query) endedLocked() bool { return queryModel.IsTerminal(q.machine.State()) }

// Session returns the worker's own id of the work, "" when it has not sent one.
func (q *Query) Session() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.session
}

// Worker returns the name of the worker that has the query or had it last, ""
// when no worker has had it.
func (q *Query) Worker() string {
	q.pool.mu.Lock()
	defer q.pool.mu.Unlock()
	return q.last
}

// Messages yields what the worker streams, in order, until the query ends. When the
// query ends with an error, the last pair has it, as [Query.Result] returns it. A
// worker that streams faster than the caller reads has to wait; other workers do
// not. Each message is yielded once. Leaving the loop does not end the query: call
// [Query.Cancel] for that.
func (q *Query) Messages() iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for part, err := range q.Parts() {
			if !yield(part.Content, err) {
				return
			}
		}
	}
}

// Result waits for the end of the query and returns the result, or the error that
// it ended with. Unread messages are dropped. It may be called any number of times.
func (q *Query) Result() (json.RawMessage, error) {
	if q.done.HasSignaled() { // a caller that has read the answer itself needs no channel
		return q.result, q.err
	}
	for done := q.Done(); ; {
		select {
		case <-done:
			return q.result, q.err
		case m := <-q.messages:
			q.drop(m.size())
		}
	}
}

// Cancel ends the query with a cause, nil for none. It returns false when the query
// has already ended. The pool asks the worker to stop it; the worker gets its next query once it
// has confirmed.
func (q *Query) Cancel(cause error) bool {
	err := fmt.Errorf("%s: %w", q.id, ErrCancelled)
	if cause != nil {
		err = fmt.Errorf("%s: %w: %w", q.id, ErrCancelled, cause)
	}
	return q.pool.abandon(q, QueryCancelled, err)
}

// finish is the only way into a terminal state. It returns false when the query is
// already in one.
func (q *Query) finish(to QueryState, result json.RawMessage, err error) bool {
	q.mu.Lock()
	if to == QueryComplete && q.late != nil {
		to, result, err = QueryError, nil, q.late
	}
	if q.machine.To(to, err) != nil {
		q.mu.Unlock()
		return false
	}
	q.result, q.err = result, err
	if q.timer != nil {
		q.timer.Stop()
	}
	unwatch, endCalls := q.unwatch, q.endCalls
	q.mu.Unlock()
	q.done.Signal()
	if unwatch != nil {
		unwatch()
	}
	if endCalls != nil {
		endCalls()
	}
	q.pool.counted(q, to)
	return true
}

// arm starts the deadline's timer, unless the query has ended.
func (q *Query) arm() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer == nil && !q.endedLocked() {
		q.timer = time.AfterFunc(time.Until(q.until), q.expire)
	}
}

// watch ends the query when the caller's context ends.
func (q *Query) watch(ctx context.Context) {
	if ctx.Done() == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.endedLocked() {
		return
	}
	q.unwatch = context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			q.expire()
			return
		}
		q.Cancel(context.Cause(ctx))
	})
}

// keep stores the bytes of the answer, unless the query has ended.
func (q *Query) keep(data []byte) {
	if data == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.endedLocked() {
		q.answer = data
	}
}

// push hands a message to the caller, and waits while the caller's buffer is full.
// It returns false when the query has ended or gone is closed.
func (q *Query) push(part Part, gone <-chan struct{}) bool {
	switch state := q.State(); {
	case queryModel.IsTerminal(state):
		return false
	case state == QueryProcessing:
		_ = q.machine.To(QueryStreaming, nil) // it may have ended meanwhile
	}
	if q.messages == nil {
		return true
	}
	for {
		full := q.hold(part.size())
		if full == nil {
			break
		}
		select {
		case <-full:
		case <-q.Done():
			return false
		case <-gone:
			return false
		}
	}
	select {
	case q.messages <- part:
		return true
	case <-q.Done():
		return false
	case <-gone:
		return false
	}
}

// hold counts n bytes that the pool holds for the query. When Config.MaxAnswer has no room for
// them it counts nothing, and returns a channel that is closed when there may be room.
func (q *Query) hold(n int) (full <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held > 0 && q.held+n > q.pool.cfg.MaxAnswer {
		if q.dropped == nil {
			q.dropped = make(chan struct{})
		}
		return q.dropped
	}
	q.held += n
	return nil
}

// drop ends a hold.
func (q *Query) drop(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= n
	if q.dropped != nil {
		close(q.dropped)
		q.dropped = nil
	}
}

// Do sends one query and returns its result. It drops streamed messages and bytes; see
// [Pool.DoBytes]. It returns the errors of [Query.Result].
func (p *Pool) Do(ctx context.Context, payload json.RawMessage, opts ...Option) (json.RawMessage, error) {
	q, err := p.do(ctx, payload, opts)
	if err != nil {
		return nil, err
	}
	return q.Result()
}

// do makes a query whose answer the caller reads itself when it can.
func (p *Pool) do(ctx context.Context, payload json.RawMessage, opts []Option) (*Query, error) {
	q, err := p.newQuery(ctx, payload, opts)
	if err != nil {
		return nil, err
	}
	if w, direct := p.admit(ctx, q); direct != nil {
		w.readFor(direct)
	}
	return q, nil
}

// Submit gives a query to the pool and returns at once, while a worker works on it
// or while it waits for one. The payload is one JSON value; do not change it before
// the query has ended. Cancelling ctx cancels the query, and a deadline of ctx is
// the query's too.
//
// Submit returns an error and no query when the payload is not JSON
// (wire.ErrNotJSON) or too long (a *wire.TooLongError), when an option is not valid,
// or when ctx is done. It returns a rejected query without an error, in its terminal state.
func (p *Pool) Submit(ctx context.Context, payload json.RawMessage, opts ...Option) (*Query, error) {
	q, err := p.newQuery(ctx, payload, opts)
	if err != nil {
		return nil, err
	}
	q.messages = make(chan Part, p.cfg.StreamBuffer)
	p.admit(ctx, q)
	return q, nil
}

func (p *Pool) newQuery(ctx context.Context, payload json.RawMessage, opts []Option) (*Query, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: submit: %w", p.cfg.Name, context.Cause(ctx))
	}
	if err := wire.CheckValue(payload); err != nil {
		return nil, fmt.Errorf("%s: payload: %w", p.cfg.Name, err)
	}
	q := &Query{pool: p, payload: payload, calls: p.cfg.Calls, begun: time.Now()}
	q.until = q.begun.Add(p.cfg.QueryTimeout)
	t := trace.Of(ctx)
	q.about.Traceparent, q.about.Tracestate = t.Parent, t.State
	for i, opt := range opts {
		if opt == nil {
			return nil, fmt.Errorf("%s: submit: option %d is nil", p.cfg.Name, i+1)
		}
		opt(q)
	}
	if q.invalid != nil {
		return nil, fmt.Errorf("%s: submit: %w", p.cfg.Name, q.invalid)
	}
	if most := p.cfg.MaxFrame - overhead - q.sizeOfAbout(); q.size() > most {
		return nil, fmt.Errorf("%s: payload and bytes are %d bytes: %w",
			p.cfg.Name, q.size(), &wire.TooLongError{Limit: p.cfg.MaxFrame, Length: len(q.data)})
	}
	if q.print == "" {
		q.print = q.fingerprint()
	}
	if d, ok := ctx.Deadline(); ok && d.Before(q.until) {
		q.until = d
	}
	return q, nil
}

// overhead is the maximum length of a query's line without its payload.
const overhead = 150
