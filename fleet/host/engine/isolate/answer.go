package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/internal/value"
	"github.com/pleme-io/lifecycle-go/procpool"
)

// err returns the error that the answer stands for.
func (a *answer) err(l engine.Limits) error {
	switch {
	case a.Limit != "":
		var err error
		switch a.Limit {
		case "time":
			err = l.TimeLimit()
		case "memory":
			err = l.MemoryLimit()
		case "outputs":
			err = &engine.LimitError{What: "outputs", Limit: fmt.Sprintf("%d messages", l.Outputs)}
		case "load time":
			err = &engine.LimitError{What: a.Limit, Limit: l.Load.String()}
		default:
			err = l.OutputLimit()
		}
		if a.Error != "" {
			err = fmt.Errorf("%w: %s", err, a.Error)
		}
		return err
	case a.Reject != "":
		return engine.Reject(a.Reject)
	case a.BadCode:
		return engine.BadCode(errors.New(a.Error))
	case a.Error != "":
		return errors.New(a.Error)
	}
	return nil
}

// outputs returns the messages of the answer.
func (a *answer) outputs() ([]engine.Output, error) {
	if a.Result != nil {
		var v any
		if err := json.Unmarshal(a.Result, &v); err != nil {
			return nil, fmt.Errorf("the handler's result: %w", err)
		}
		return value.Outputs(plain(v))
	}
	if len(a.Outputs) == 0 {
		return nil, nil
	}
	outputs := make([]engine.Output, len(a.Outputs))
	for i, o := range a.Outputs {
		outputs[i] = engine.Output{Topic: o.Topic, Header: o.Headers, Data: o.Data}
	}
	return outputs, nil
}

// plain replaces an interpreter's marks with the values that they stand for.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if name, ok := v["$type"].(string); ok {
			return value.Named(name)
		}
		if text, ok := v["$bytes"].(string); ok {
			var data []byte
			if err := json.Unmarshal([]byte(strconv.Quote(text)), &data); err == nil {
				return data
			}
		}
		for key, one := range v {
			v[key] = plain(one)
		}
	case []any:
		for i, one := range v {
			v[i] = plain(one)
		}
	}
	return v
}

// sharedState lets a child use the state of one message, from any number of threads,
// until the message has its answer.
type sharedState struct {
	mu    sync.Mutex // held during a call, because a State is not for concurrent use
	state engine.State
	ended bool
}

func (s *sharedState) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// answer answers a call of a child.
func (s *sharedState) answer(ctx context.Context, c procpool.Call) (json.RawMessage, error) {
	var a access
	if err := json.Unmarshal(c.Params, &a); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == nil || s.ended {
		return nil, fmt.Errorf("state.%.20s: there is no message: call it from handle", c.Method)
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
	default:
		err = fmt.Errorf("there is no state.%.100q", c.Method)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

func (c *Children) warn(what, worker string, err error) {
	slog.Warn("hosted worker: "+what, "worker", worker, "err", err)
}

// Close removes the private folder of this process's children. Close the programs
// first.
func (c *Children) Close() error { return c.own.close() }
