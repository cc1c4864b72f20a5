package procpool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// Call is a request of a worker to the pool's process while it has a query, for example
// for state or for a page of the network.
type Call struct {
	Query  string // the query's id
	Worker string
	Method string // at most 256 bytes
	Params json.RawMessage
}

// CallHandler answers a worker's calls. Its result is one JSON value, nil for null. The
// worker gets the text of an error. The handler may be called concurrently, also for one
// query. ctx ends when the query does: the worker then gets an error, and the pool does not
// wait for a handler that goes on.
type CallHandler func(ctx context.Context, c Call) (json.RawMessage, error)

// Calls answers the calls of this query's worker, in place of Config.Calls.
func Calls(handler CallHandler) Option {
	return func(q *Query) { q.calls = handler }
}

// CallsInTurn answers the calls of this query's worker one after the other: a call begins once the
// reply to the one before is being written. So results that a worker does not read take the memory
// of two.
func CallsInTurn() Option {
	return func(q *Query) { q.callTurn = make(chan struct{}, 1) }
}

// errQueryEnded answers a call whose query has ended.
var errQueryEnded = errors.New("the query has ended")

// maxCalls bounds the calls of one worker that wait for an answer.
const maxCalls = 32

// takeCall takes a call of the worker, and answers it in a new goroutine.
func (w *proc) takeCall(e *wire.Envelope) error {
	id := e.CallID
	if len(id) > maxName {
		return fmt.Errorf("it made a call whose callId has %d bytes, want at most %d", len(id), maxName)
	}
	a, err := w.attemptOf(e)
	if a == nil {
		if err == nil {
			w.refuseCall(id, errQueryEnded)
		}
		return err
	}
	q := a.q
	c := Call{Query: q.id, Worker: w.name, Method: e.Method, Params: bytes.Clone(e.Params)}
	if w.calls.Add(1) > maxCalls {
		w.calls.Add(-1)
		w.refuseCall(id, fmt.Errorf("%d calls wait for an answer already", maxCalls))
		return w.ignore()
	}
	size := len(c.Params)
	if full := q.hold(size); full != nil {
		w.calls.Add(-1)
		w.refuseCall(id, fmt.Errorf("what waits for an answer has too many bytes already: more than %d", w.p.cfg.MaxAnswer))
		return w.ignore()
	}
	ctx, ok := q.callContext()
	var once sync.Once
	answer := func(result json.RawMessage, err error, onTurn func()) {
		once.Do(func() {
			w.reply(id, result, err, func() {
				onTurn()
				q.drop(size)
				w.calls.Add(-1)
			})
		})
	}
	stop := context.AfterFunc(ctx, func() { answer(nil, errQueryEnded, func() {}) }) // the handler may ignore its context
	var result json.RawMessage
	leave := func() {} // the turn of the call
	call.Go(w.name, func() (err error) {
		if q.callTurn != nil && ok {
			select {
			case q.callTurn <- struct{}{}:
				leave = func() { <-q.callTurn }
			case <-ctx.Done():
				return errQueryEnded
			}
		}
		switch {
		case !ok:
			return errQueryEnded
		case q.calls == nil:
			return errors.New("the pool answers no calls")
		case len(c.Method) > maxName:
			return fmt.Errorf("the method has %d bytes, want at most %d", len(c.Method), maxName)
		}
		if result, err = q.calls(ctx, c); err == nil && result != nil {
			err = wire.CheckValue(result)
		}
		return err
	}, func(err error) {
		stop()
		answer(result, err, leave)
	})
	return nil
}

// refuseCall answers a call with an error, in the background: the goroutine that reads must
// not wait for a worker that does not read.
func (w *proc) refuseCall(id string, why error) {
	call.Go(w.name, func() error { return why }, func(err error) { w.reply(id, nil, err, func() {}) })
}

// reply answers a call. It calls onTurn when it has its turn to write. Until then the call
// counts as waiting, because its result needs memory.
func (w *proc) reply(id string, result json.RawMessage, failed error, onTurn func()) {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	onTurn()
	w.behind = true
	w.armWrite()
	var err error
	if failed == nil {
		err = w.writer.Reply(id, result)
		var long *wire.TooLongError
		if errors.As(err, &long) {
			failed = fmt.Errorf("the result: %w", err)
		}
	}
	if failed != nil {
		for text := failed.Error(); ; text = text[:len(text)/2] { // halve it until it fits
			var long *wire.TooLongError
			if err = w.writer.ReplyError(id, text); text == "" || !errors.As(err, &long) {
				break
			}
		}
	}
	select {
	case <-w.gone.Signaled():
	default:
		if err != nil && !errors.Is(err, wire.ErrPoisoned) {
			w.fail(fmt.Errorf("answer a call: %w", err))
		}
	}
}

// callContext returns the context of the query's calls, and false when the query has
// ended.
func (q *Query) callContext() (context.Context, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.endedLocked() {
		return context.Background(), false
	}
	if q.callCtx == nil {
		q.callCtx, q.endCalls = context.WithDeadlineCause(context.Background(), q.until, context.DeadlineExceeded)
	}
	return q.callCtx, true
}
