package child

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// CallError is the error that the pool's process answered a call with.
type CallError struct{ Method, Message string }

// Error returns the text of the error.
func (e *CallError) Error() string { return e.Method + ": " + e.Message }

// About is what a pool says about a query beside its payload.
type About struct {
	Deadline    time.Time // zero when it said none; the pool cancels the query then
	Traceparent string    // of W3C Trace Context, "" for none
	Tracestate  string
	Metadata    map[string]string // of the caller
}

func aboutOf(a *wire.About) About {
	about := About{Traceparent: a.Traceparent, Tracestate: a.Tracestate, Metadata: a.Metadata}
	if a.TimeoutMs > 0 {
		about.Deadline = time.Now().Add(time.Duration(a.TimeoutMs) * time.Millisecond)
	}
	return about
}

// calls are the calls that wait for a reply.
type calls struct {
	mu      sync.Mutex // guards the fields below
	last    int
	waiting map[string]chan wire.Envelope // each of capacity 1
}

func (c *calls) begin() (id string, answer chan wire.Envelope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting = make(map[string]chan wire.Envelope)
	}
	c.last++
	id, answer = strconv.Itoa(c.last), make(chan wire.Envelope, 1)
	c.waiting[id] = answer
	return id, answer
}

func (c *calls) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// take hands a reply to the call that waits for it.
func (c *calls) take(e *wire.Envelope) {
	c.mu.Lock()
	answer := c.waiting[e.CallID]
	delete(c.waiting, e.CallID)
	c.mu.Unlock()
	if answer != nil {
		answer <- wire.Envelope{Result: append(json.RawMessage(nil), e.Result...), Error: e.Error} // capacity 1, and taken once
	}
}

// Call asks the pool's process something, for example for state, and returns its
// answer. The params are encoded as a result is. Call returns a [*CallError] when the
// pool answers with an error, and the context's cause
// when ctx or the query ends.
func (q *Query) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	raw, err := marshal(params)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	id, answer := q.w.calls.begin()
	defer q.w.calls.end(id)
	if err := q.write(func(w *wire.Writer) error { return w.Call(q.ID, id, method, raw) }); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	q.w.handOver(q.run) // the goroutine that reads may be this one
	select {
	case e := <-answer:
		if e.Error != "" {
			return nil, &CallError{method, e.Error}
		}
		return e.Result, nil
	case <-q.run.ctx.Done():
		return nil, fmt.Errorf("call %s: %w", method, context.Cause(q.run.ctx))
	case <-ctx.Done():
		return nil, fmt.Errorf("call %s: %w", method, context.Cause(ctx))
	}
}
