// Package starlark is the engine for Starlark (go.starlark.net): a small
// dialect of Python without classes, imports or input and output.
//
// Code defines a function handle that takes a message:
//
//	def handle(message):
//	    seen = int(state.get("seen") or "0") + 1
//	    state.put("seen", str(seen))
//	    if message.text == "":
//	        reject("an empty order")
//	    return {"topic": "orders.done", "data": message.text.upper(), "headers": {"Seen": str(seen)}}
//
// message has worker, id, topic, attempt, fence, headers (name to a list of
// texts), data (bytes) and text (the same as a string). The result is None, text
// or bytes for the worker's output topic, a dict with topic, data and headers, or
// a list of these. state.get returns text or None, state.get_bytes bytes or None;
// state.put and state.delete change the state. reject(reason) makes the message a
// dead letter; after fail(reason), or any other error, the host tries the message
// again. json is Starlark's module of that name. env is a dict of the worker's
// variables, such as env["GREETING"]. print writes to the log.
// fetch(url, method="GET", headers={}, body="") sends an HTTP request that the worker's
// spec allows, and returns status, url, headers (name to a list of texts), data and text.
//
// timers.set(name, delay, data) sets a timer for the message's key, which is due after so
// many milliseconds; timers.set(name, at = time, data = data) sets one for a time in
// milliseconds since 1970. timers.cancel(name) removes one, and timers.list() returns a
// list of structs with name and due. When it is due, handle gets a message with this data
// whose timer has name, due (milliseconds since 1970) and attempt. message.timer of any
// other message is None.
//
// The runtime cannot bound memory: the limit of the code's process does.
//
// The engine freezes the code's globals once the code is loaded, so only state
// carries values from one message to the next.
//
// Begin with [Engine.Load]. starlark.go has the program, fetch.go and timers.go the functions
// of those names.
package starlark

import (
	"context"
	"errors"
	"fmt"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/internal/value"
	foreign "github.com/pleme-io/lifecycle-go/internal/call"
	"go.starlark.net/lib/json"
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
	"go.starlark.net/syntax"
)

// Engine runs Starlark.
type Engine struct{}

// New returns the engine.
func New() *Engine { return &Engine{} }

// MIMETypes returns the MIME types of Starlark code.
func (*Engine) MIMETypes() []string { return []string{"text/x-starlark", "application/x-starlark"} }

// Load compiles code and runs its top level.
func (*Engine) Load(ctx context.Context, code []byte, cfg engine.Config) (engine.Program, error) {
	cfg.Limits = cfg.Limits.WithDefaults()
	p := &program{cfg: cfg}
	ctx, cancel := context.WithTimeout(ctx, cfg.Limits.Load)
	defer cancel()
	var globals starlark.StringDict
	err := p.run(ctx, nil, func(thread *starlark.Thread) (err error) {
		options := &syntax.FileOptions{Set: true, While: true, TopLevelControl: true, Recursion: true}
		globals, err = starlark.ExecFileOptions(options, thread, cfg.Worker+".star", code, p.predeclared())
		return err
	})
	if err != nil {
		// run names the time limit of one message. Here the limit was Load's.
		if errors.Is(err, engine.ErrLimit) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = &engine.LimitError{What: "load time", Limit: cfg.Limits.Load.String()}
		}
		return nil, engine.BadCode(err)
	}
	globals.Freeze()
	handle, ok := globals["handle"].(*starlark.Function)
	if !ok {
		return nil, engine.BadCode(errors.New("it defines no function handle(message)"))
	}
	if n := handle.NumParams(); n != 1 && !handle.HasVarargs() {
		return nil, engine.BadCode(fmt.Errorf("handle takes %d parameters, want one: the message", n))
	}
	p.handle = handle
	return p, nil
}

type program struct {
	cfg    engine.Config
	handle *starlark.Function
}

// call is one call of the code. Builtins find it in their thread.
type call struct {
	ctx    context.Context
	state  engine.State
	reject error
}

const callKey = "call"

// Handle calls the code's function handle.
func (p *program) Handle(ctx context.Context, m *engine.Message, s engine.State) (outputs []engine.Output, err error) {
	err = p.run(ctx, s, func(thread *starlark.Thread) error {
		result, err := starlark.Call(thread, p.handle, starlark.Tuple{message(m)}, nil)
		if err != nil {
			return err
		}
		plain, err := export(result, 0)
		if err == nil {
			outputs, err = value.Outputs(plain)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return outputs, p.cfg.Limits.Check(outputs)
}

func (p *program) Close() error { return nil }

// run calls fn with a thread. It cancels the thread when ctx ends, and when fn prints too
// much.
func (p *program) run(ctx context.Context, s engine.State, fn func(*starlark.Thread) error) error {
	c := &call{ctx: ctx, state: s}
	printer := engine.NewPrinter(p.cfg)
	defer printer.Close()
	thread := &starlark.Thread{Name: p.cfg.Worker}
	thread.Print = func(thread *starlark.Thread, text string) {
		if printer.Println(text) != nil {
			thread.Cancel("printed too much")
		}
	}
	thread.SetLocal(callKey, c)
	stop := context.AfterFunc(ctx, func() { thread.Cancel("time is over") })
	defer stop()
	// A panic of the interpreter, such as a make that is too large, counts as an
	// error of the script.
	err := foreign.Do(p.cfg.Worker, func() error { return fn(thread) })
	switch {
	case err == nil:
		return printer.Err()
	case printer.Err() != nil:
		return printer.Err()
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", p.cfg.Limits.TimeLimit(), err)
	case c.reject != nil && errors.Is(err, c.reject):
		return c.reject
	}
	var failed *starlark.EvalError
	if errors.As(err, &failed) {
		// Report the position of the innermost call that is the script's own.
		for i := range failed.CallStack {
			if at := failed.CallStack.At(i).Pos; at.Filename() != "<builtin>" {
				return fmt.Errorf("%s: %w", at, err)
			}
		}
	}
	return err
}

// predeclared returns the global names that the code has in addition to the language's own.
func (p *program) predeclared() starlark.StringDict {
	env := starlark.NewDict(len(p.cfg.Env))
	for name, v := range p.cfg.Env {
		_ = env.SetKey(starlark.String(name), starlark.String(v)) // a text is a key
	}
	env.Freeze()
	return starlark.StringDict{
		"env": env,
		"state": module("state", map[string]builtin{
			"get":       getter(func(v []byte) starlark.Value { return starlark.String(v) }),
			"get_bytes": getter(func(v []byte) starlark.Value { return starlark.Bytes(v) }),
			"put":       put,
			"delete":    remove,
		}),
		"timers": module("timers", map[string]builtin{
			"set":    setTimer,
			"cancel": cancelTimer,
			"list":   listTimers,
		}),
		"json":   json.Module,
		"reject": newBuiltin("reject", reject),
		"fetch":  newBuiltin("fetch", fetch),
		"struct": starlark.NewBuiltin("struct", starlarkstruct.Make),
	}
}

// builtin is a function that code may call while it handles a message.
type builtin func(c *call, args arguments) (starlark.Value, error)

// arguments has the arguments of one call of a builtin.
type arguments struct {
	name       string
	positional starlark.Tuple
	named      []starlark.Tuple
}

// unpack sets variables to the arguments: see [starlark.UnpackArgs].
func (a arguments) unpack(pairs ...any) error {
	return starlark.UnpackArgs(a.name, a.positional, a.named, pairs...)
}

func newBuiltin(name string, fn builtin) *starlark.Builtin {
	return starlark.NewBuiltin(name, func(t *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		c, _ := t.Local(callKey).(*call)
		if c == nil || c.state == nil {
			return nil, fmt.Errorf("%s: there is no message: call it from handle", name)
		}
		return fn(c, arguments{name, args, kwargs})
	})
}

func module(name string, functions map[string]builtin) *starlarkstruct.Module {
	members := starlark.StringDict{}
	for member, fn := range functions {
		members[member] = newBuiltin(name+"."+member, fn)
	}
	return &starlarkstruct.Module{Name: name, Members: members}
}

// bytesOf returns the data of a string or of bytes, nil for None.
func (a arguments) bytesOf(what string, v starlark.Value) ([]byte, error) {
	switch v := v.(type) {
	case nil, starlark.NoneType:
		return nil, nil
	case starlark.String:
		return []byte(v), nil
	case starlark.Bytes:
		return []byte(v), nil
	}
	return nil, fmt.Errorf("%s: %s is a %s, want a string or bytes", a.name, what, v.Type())
}

func getter(wrap func([]byte) starlark.Value) builtin {
	return func(c *call, args arguments) (starlark.Value, error) {
		var key string
		if err := args.unpack("key", &key); err != nil {
			return nil, err
		}
		v, ok, err := c.state.Get(c.ctx, key)
		if err != nil || !ok {
			return starlark.None, err
		}
		return wrap(v), nil
	}
}

func put(c *call, args arguments) (starlark.Value, error) {
	var key string
	var v starlark.Value
	if err := args.unpack("key", &key, "value", &v); err != nil {
		return nil, err
	}
	data, err := args.bytesOf("value", v)
	if err == nil && data == nil {
		err = fmt.Errorf("%s: value is a %s, want a string or bytes", args.name, v.Type())
	}
	if err != nil {
		return nil, err
	}
	return starlark.None, c.state.Put(c.ctx, key, data)
}

func remove(c *call, args arguments) (starlark.Value, error) {
	var key string
	if err := args.unpack("key", &key); err != nil {
		return nil, err
	}
	return starlark.None, c.state.Delete(c.ctx, key)
}

func reject(c *call, args arguments) (starlark.Value, error) {
	var reason string
	if err := args.unpack("reason", &reason); err != nil {
		return nil, err
	}
	c.reject = engine.Reject(reason)
	return nil, c.reject
}

// headersOf returns the headers of a message or a response: a list of texts for each name.
func headersOf(headers map[string][]string) *starlark.Dict {
	d := starlark.NewDict(len(headers))
	for name, values := range headers {
		list := make([]starlark.Value, len(values))
		for i, one := range values {
			list[i] = starlark.String(one)
		}
		_ = d.SetKey(starlark.String(name), starlark.NewList(list)) // a text is a key
	}
	return d
}

func newStruct(fields starlark.StringDict) starlark.Value {
	return starlarkstruct.FromStringDict(starlarkstruct.Default, fields)
}

// message shows m to the code. It makes each field when the code reads it: to make all of them
// takes three times as long as a handler that does nothing (BenchmarkHandle).
func message(m *engine.Message) starlark.Value { return &messageValue{m: m} }

type messageValue struct{ m *engine.Message }

func (v *messageValue) String() string        { return "message(" + v.m.ID + ")" }
func (v *messageValue) Type() string          { return "message" }
func (v *messageValue) Freeze()               {}
func (v *messageValue) Truth() starlark.Bool  { return true }
func (v *messageValue) Hash() (uint32, error) { return starlark.String(v.m.ID).Hash() }
func (v *messageValue) AttrNames() []string {
	return []string{"attempt", "data", "fence", "headers", "id", "text", "timer", "topic", "trace", "worker"}
}

func (v *messageValue) Attr(name string) (starlark.Value, error) {
	m := v.m
	switch name {
	case "worker":
		return starlark.String(m.Worker), nil
	case "id":
		return starlark.String(m.ID), nil
	case "topic":
		return starlark.String(m.Topic), nil
	case "attempt":
		return starlark.MakeInt(m.Attempt), nil
	case "fence":
		return starlark.MakeUint64(m.Fence), nil
	case "timer":
		return fired(m), nil
	case "data":
		return starlark.Bytes(m.Data), nil
	case "text":
		return starlark.String(m.Data), nil
	case "headers":
		return headersOf(m.Header), nil
	case "trace":
		return starlark.String(m.Trace().Parent), nil
	}
	return nil, nil
}

// depth bounds how deep a result may nest: a list may contain itself.
const depth = 8

// export turns a result into a plain Go value.
func export(v starlark.Value, level int) (any, error) {
	if level > depth {
		return nil, fmt.Errorf("the handler's result nests more than %d levels", depth)
	}
	switch v := v.(type) {
	case nil, starlark.NoneType:
		return nil, nil
	case starlark.String:
		return string(v), nil
	case starlark.Bytes:
		return []byte(v), nil
	case *starlark.List, starlark.Tuple:
		seq, ok := v.(starlark.Indexable)
		if !ok {
			return nil, fmt.Errorf("a %s cannot be read", v.Type())
		}
		list := make([]any, seq.Len())
		for i := range list {
			one, err := export(seq.Index(i), level+1)
			if err != nil {
				return nil, err
			}
			list[i] = one
		}
		return list, nil
	case *starlark.Dict:
		m := make(map[string]any, v.Len())
		for _, item := range v.Items() {
			key, ok := item[0].(starlark.String)
			if !ok {
				return nil, fmt.Errorf("the handler's result: a key is a %s, want a string", item[0].Type())
			}
			one, err := export(item[1], level+1)
			if err != nil {
				return nil, err
			}
			m[string(key)] = one
		}
		return m, nil
	}
	return value.Named(v.Type()), nil // any other type: value.Outputs refuses it by this name
}
