package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/procpool"
)

// flight is a query to a child. For messages it has the one that the host asks for and
// those that the host will ask for: the child goes ahead. Only the goroutine that holds
// the program's lock uses it.
type flight struct {
	query    *procpool.Query
	ctx      context.Context
	cancel   context.CancelCauseFunc
	next     func() (json.RawMessage, error, bool)
	stop     func()
	messages []*engine.Message
	seats    []*seat // of the messages
	at       int     // the message that the child answers next
}

// begin sends a question to the child.
func (c *process) begin(question ask, messages []*engine.Message) (*flight, error) {
	payload, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	f := &flight{messages: messages, seats: make([]*seat, max(1, len(messages)))}
	for i := range f.seats {
		f.seats[i] = &seat{taken: make(chan struct{})}
	}
	// The pool would ask a worker whose deadline has passed for its stacks. So there is
	// no deadline: a call that takes too long is cancelled.
	f.ctx, f.cancel = context.WithCancelCause(context.Background())
	if f.query, err = c.pool.Submit(f.ctx, payload, procpool.Calls(f.answer)); err != nil {
		f.cancel(nil)
		return f, err
	}
	f.next, f.stop = iter.Pull2(f.query.Messages())
	return f, nil
}

// end gives the query up, unless it has ended.
func (f *flight) end() {
	f.cancel(nil)
	if f.stop != nil {
		f.stop()
	}
	for _, s := range f.seats {
		s.end()
	}
}

// expects reports whether m is the message that the child answers next.
func (f *flight) expects(m *engine.Message) bool {
	if f.at >= len(f.messages) {
		return false
	}
	next := f.messages[f.at]
	return next == m || next.ID == m.ID && next.Attempt == m.Attempt && next.Fence == m.Fence && next.Worker == m.Worker && next.Topic == m.Topic && reflect.DeepEqual(next.Header, m.Header)
}

// read returns the child's next answer, and whether it is the last one of the query.
// Lines that the code prints go to the printer.
func (f *flight) read(printer *engine.Printer) (a *answer, last bool, err error) {
	for {
		raw, err, ok := f.next()
		if err != nil || !ok {
			break // the result says the same
		}
		var p part
		switch {
		case json.Unmarshal(raw, &p) != nil:
		case p.Answer != nil:
			return p.Answer, false, nil
		case p.Print != nil:
			_ = printer.Println(*p.Print)
		}
	}
	raw, err := f.query.Result()
	if err != nil {
		return nil, true, err
	}
	if err := json.Unmarshal(raw, &a); err != nil || a == nil {
		return nil, true, fmt.Errorf("its answer: %w", errors.Join(err, errNoAnswer))
	}
	return a, true, nil
}

var errNoAnswer = errors.New("it is not an answer to the question")

// seat is the state of one message of a flight: from when the host asks for the message
// until the message has its answer.
type seat struct {
	once  sync.Once
	taken chan struct{}

	mu    sync.Mutex // held during a call, because a State is not for concurrent use
	state engine.State
}

// take lets the child use s.
func (s *seat) take(state engine.State) {
	s.once.Do(func() {
		s.mu.Lock()
		s.state = state
		s.mu.Unlock()
		close(s.taken)
	})
}

// end ends the use.
func (s *seat) end() {
	s.take(nil)
	s.mu.Lock()
	s.state = nil
	s.mu.Unlock()
}

// answer answers a call of the child. A call on behalf of a message that the host has
// not asked for waits until it does.
func (f *flight) answer(ctx context.Context, c procpool.Call) (json.RawMessage, error) {
	var a access
	if err := json.Unmarshal(c.Params, &a); err != nil {
		return nil, err
	}
	if a.Index < 0 || a.Index >= len(f.seats) {
		return nil, fmt.Errorf("%.20s: there is no message %d", nameOf(c.Method), a.Index)
	}
	s := f.seats[a.Index]
	select {
	case <-s.taken:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == nil {
		return nil, fmt.Errorf("%.20s: there is no message: call it from handle", nameOf(c.Method))
	}
	var r access
	var err error
	switch c.Method {
	case callGet:
		r.Value, r.Found, err = s.state.Get(ctx, a.Key)
	case callPut:
		if a.Value == nil {
			a.Value = []byte{} // an empty value; nil would be none
		}
		err = s.state.Put(ctx, a.Key, a.Value)
	case callDelete:
		err = s.state.Delete(ctx, a.Key)
	case callFetch:
		if a.Request == nil {
			return nil, errors.New("fetch: there is no request")
		}
		r.Response, err = engine.Fetch(ctx, s.state, a.Request)
	default:
		r, err = timing(ctx, engine.TimersOf(s.state), c.Method, a)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(r)
}
