package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/procpool"
)

// batch is a query to a child. A query for messages has the message that the host asks for now,
// and messages that the host will ask for next: the child handles them ahead. Only the goroutine
// that holds the program's lock uses a batch.
type batch struct {
	query    *procpool.Query
	ctx      context.Context
	cancel   context.CancelCauseFunc
	next     func() (json.RawMessage, error, bool)
	stop     func()
	messages []*engine.Message
	states   []*messageState // of the messages
	at       int             // the message that the child answers next
	values   int             // the most that an answer may have
}

// begin sends a question to the child, with code to load.
func (c *process) begin(question ask, code []byte, messages []*engine.Message) (*batch, error) {
	payload, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	b := &batch{values: c.values, messages: messages, states: make([]*messageState, max(1, len(messages)))}
	for i := range b.states {
		b.states[i] = &messageState{given: make(chan struct{})}
	}
	// The pool would ask a worker whose deadline has passed for its stacks. So there is no
	// deadline: a call that takes too long is cancelled.
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	if b.query, err = c.pool.Submit(b.ctx, payload, procpool.Calls(b.answer), procpool.CallsInTurn(), procpool.Bytes(code)); err != nil {
		b.cancel(nil)
		return b, err
	}
	b.next, b.stop = iter.Pull2(b.query.Messages())
	return b, nil
}

// end gives the query up, unless it has ended.
func (b *batch) end() {
	b.cancel(nil)
	if b.stop != nil {
		b.stop()
	}
	for _, s := range b.states {
		s.end()
	}
}

// expects reports whether m is the message that the child answers next.
func (b *batch) expects(m *engine.Message) bool {
	if b.at >= len(b.messages) {
		return false
	}
	next := b.messages[b.at]
	return next.ID == m.ID && next.Attempt == m.Attempt && next.Fence == m.Fence && next.Worker == m.Worker
}

// read returns the child's next answer, and whether it is the last one of the query. Lines
// that the code prints go to the printer.
func (b *batch) read(printer *engine.Printer) (a *answer, last bool, err error) {
	for {
		raw, err, ok := b.next()
		if err != nil || !ok {
			break // the result says the same
		}
		var p part
		if err := decode(raw, b.values, &p); err != nil {
			return nil, true, fmt.Errorf("a part of its answer: %w", err)
		}
		switch {
		case p.Answer != nil:
			return p.Answer, false, nil
		case p.Print != nil:
			_ = printer.Println(*p.Print)
		}
	}
	raw, err := b.query.Result()
	if err != nil {
		return nil, true, err
	}
	if err := decode(raw, b.values, &a); err != nil || a == nil {
		return nil, true, fmt.Errorf("its answer: %w", errors.Join(err, errNoAnswer))
	}
	return a, true, nil
}

var errNoAnswer = errors.New("it is not an answer to the question")

// messageState gives the child the state of one message of a batch, from the time when the host
// asks for the message until it has its answer.
type messageState struct {
	once  sync.Once
	given chan struct{} // closed when the child may use the state

	mu    sync.Mutex // held during a call, because a State is not for concurrent use
	state engine.State
}

// give lets the child use a state.
func (s *messageState) give(state engine.State) {
	s.once.Do(func() {
		s.mu.Lock()
		s.state = state
		s.mu.Unlock()
		close(s.given)
	})
}

// end ends the use.
func (s *messageState) end() {
	s.give(nil)
	s.mu.Lock()
	s.state = nil
	s.mu.Unlock()
}

// answer answers a call of the child. When the host has not asked for the call's message yet,
// the call waits until it does.
func (b *batch) answer(ctx context.Context, c procpool.Call) (json.RawMessage, error) {
	var a access
	if err := decode(c.Params, maxValuesOfCall, &a); err != nil {
		return nil, err
	}
	if a.Index < 0 || a.Index >= len(b.states) {
		return nil, fmt.Errorf("%.20s: there is no message %d", nameOf(c.Method), a.Index)
	}
	s := b.states[a.Index]
	select {
	case <-s.given:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == nil {
		return nil, fmt.Errorf("%.20s: there is no message: call it from handle", nameOf(c.Method))
	}
	r, err := carryOut(ctx, s.state, c.Method, a)
	if err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

// carryOut carries out a call of the child.
func carryOut(ctx context.Context, state engine.State, method string, a access) (r access, err error) {
	switch method {
	case callGet:
		r.Value, r.Found, err = state.Get(ctx, a.Key)
	case callPut:
		if a.Value == nil {
			a.Value = []byte{} // an empty value; nil would be none
		}
		err = state.Put(ctx, a.Key, a.Value)
	case callDelete:
		err = state.Delete(ctx, a.Key)
	case callFetch:
		if a.Request == nil {
			return r, errors.New("fetch: there is no request")
		}
		r.Response, err = engine.Fetch(ctx, state, a.Request)
	default:
		return callTimers(ctx, engine.TimersOf(state), method, a)
	}
	return r, err
}
