package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/procpool"
)

// ask sends a question to the child, with code to load, and returns its answer. Lines that the code
// prints go to the printer.
func (c *process) ask(
	ctx context.Context, question ask, code []byte, answers *calls, printer *engine.Printer,
) (*answer, error) {
	payload, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	query, err := c.pool.Submit(ctx, payload, procpool.Calls(answers.answer), procpool.CallsInTurn(), procpool.Bytes(code))
	if err != nil {
		return nil, err
	}
	for raw, err := range query.Messages() {
		if err != nil {
			break // the result says the same
		}
		var p part
		if err := decode(raw, c.values, &p); err != nil {
			return nil, fmt.Errorf("a part of its answer: %w", err)
		}
		_ = printer.Println(p.Print)
	}
	raw, err := query.Result()
	if err != nil {
		return nil, err
	}
	var a *answer
	if err := decode(raw, c.values, &a); err != nil || a == nil {
		return nil, fmt.Errorf("its answer: %w", errors.Join(err, errNoAnswer))
	}
	return a, nil
}

var errNoAnswer = errors.New("it is not an answer to the question")

// calls answers the calls of the child for one message, until the message has its answer.
type calls struct {
	mu    sync.Mutex   // held during a call, because a State is not for concurrent use
	state engine.State // nil for no message
}

// end ends the use of the state.
func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = nil
}

// answer answers a call of the child.
func (c *calls) answer(ctx context.Context, call procpool.Call) (json.RawMessage, error) {
	var a access
	if err := decode(call.Params, maxValuesOfCall, &a); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return nil, fmt.Errorf("%.20s: there is no message: call it from handle", nameOf(call.Method))
	}
	r, err := carryOut(ctx, c.state, call.Method, a)
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
