// Package js is the engine for JavaScript (goja: ECMAScript 5.1 and most of what
// came later, without modules, setTimeout, and input and output).
//
// Code defines a function handle that takes a message:
//
//	function handle(message) {
//	    const seen = Number(state.get("seen") ?? 0) + 1;
//	    state.put("seen", String(seen));
//	    if (message.text === "") reject("an empty order");
//	    return {topic: "orders.done", data: message.text.toUpperCase(), headers: {Seen: String(seen)}};
//	}
//
// message has worker, id, topic, attempt, fence, headers (name to a list of
// texts), text (the data as a string, with invalid UTF-8 replaced) and bytes (an
// ArrayBuffer). The result is nothing, a string, an ArrayBuffer or a Uint8Array
// for the worker's output topic, an object with topic, data and headers, or a
// list of these. It may also be a promise of one of these, if the promise settles
// without waiting for anything. state.get returns a string or undefined,
// state.getBytes an ArrayBuffer or undefined; state.put and state.delete change
// the state. reject(reason) makes the message a dead letter; after any other
// error the host tries the message again. env has the worker's variables, such as
// env.GREETING. console.log writes to the log. fetch(url, {method, headers, body}) sends
// an HTTP request that the worker's spec allows; its promise is settled at once, so await
// it in an async handle. A response has ok, status, url, headers.get, text, json and
// arrayBuffer, as in a browser.
//
// timers.set(name, delay, data) sets a timer for the message's key: after so many
// milliseconds, or with {at: time} in place of the delay at a time, which is a Date or
// milliseconds since 1970. timers.cancel(name) removes one, and timers.list() returns a
// list of {name, due}. When it is due, handle gets a message with this data whose timer
// is {name, due, attempt}, due in milliseconds since 1970. message.timer of any other
// message is null.
//
// The runtime cannot bound memory: the limit of the code's process does.
//
// Globals last from one message to the next, but may be lost at any time. Keep
// data that must not be lost in state.
//
// Begin with [Engine.Load]. js.go has the program, fetch.go and timers.go the functions of
// those names.
package js

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/dop251/goja"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/internal/value"
	foreign "github.com/pleme-io/lifecycle-go/internal/call"
)

// Engine runs JavaScript.
type Engine struct{}

// New returns the engine.
func New() *Engine { return &Engine{} }

// MIMETypes returns the MIME types of JavaScript code (RFC 9239 and its
// predecessors).
func (*Engine) MIMETypes() []string {
	return []string{"text/javascript", "application/javascript", "text/x-javascript"}
}

// Load compiles code and runs its top level.
func (*Engine) Load(ctx context.Context, code []byte, cfg engine.Config) (engine.Program, error) {
	cfg.Limits = cfg.Limits.WithDefaults()
	p := &program{cfg: cfg}
	err := foreign.Do(cfg.Worker, func() (err error) {
		p.code, err = goja.Compile(cfg.Worker+".js", string(code), false)
		return err
	})
	if err != nil {
		return nil, engine.BadCode(err)
	}
	if err := p.boot(ctx); err != nil {
		return nil, engine.BadCode(err)
	}
	return p, nil
}

type program struct {
	cfg  engine.Config
	code *goja.Program

	vm     *goja.Runtime // nil after a call that was interrupted: its state is unknown
	handle goja.Callable
	call   *call // the call in progress
}

// call is one call of the code. The functions that the code may use belong to it.
type call struct {
	ctx     context.Context
	state   engine.State
	printer *engine.Printer
	reject  error
}

// Handle calls the code's function handle.
func (p *program) Handle(ctx context.Context, m *engine.Message, s engine.State) (outputs []engine.Output, err error) {
	if p.vm == nil {
		if err := p.boot(ctx); err != nil {
			return nil, fmt.Errorf("start over after an interrupted call: %w", err)
		}
	}
	err = p.run(ctx, s, func(vm *goja.Runtime) error {
		result, err := p.handle(goja.Undefined(), p.message(vm, m))
		if err != nil {
			return err
		}
		if promise, ok := promiseOf(result); ok {
			switch promise.State() {
			case goja.PromiseStatePending:
				return errors.New("the promise that handle returned waits for something that never comes: " +
					"there are no timers that run code, and no input and output")
			case goja.PromiseStateRejected:
				return thrown(promise.Result())
			}
			result = promise.Result()
		}
		plain, err := export(vm, result, 0)
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

// boot makes a runtime and runs the top level in it.
func (p *program) boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Limits.Load)
	defer cancel()
	p.vm = goja.New()
	p.vm.SetMaxCallStackSize(2000)
	err := p.predeclare()
	if err == nil {
		err = p.run(ctx, nil, func(vm *goja.Runtime) error {
			_, err := vm.RunProgram(p.code)
			return err
		})
	}
	if err != nil {
		p.vm = nil
		if ctx.Err() != nil {
			return &engine.LimitError{What: "load time", Limit: p.cfg.Limits.Load.String()}
		}
		return err
	}
	handle, ok := goja.AssertFunction(p.vm.Get("handle"))
	if !ok {
		p.vm = nil
		return errors.New("it defines no function handle(message)")
	}
	p.handle = handle
	return nil
}

// run calls fn with the runtime. It interrupts the runtime when ctx ends, and when fn prints
// too much.
func (p *program) run(ctx context.Context, s engine.State, fn func(*goja.Runtime) error) error {
	vm := p.vm
	c := &call{ctx: ctx, state: s, printer: engine.NewPrinter(p.cfg)}
	p.call = c
	stop := context.AfterFunc(ctx, func() { vm.Interrupt("time is over") })
	// A panic of the interpreter, or of a function that it calls, counts as an
	// error of the script.
	err := foreign.Do(p.cfg.Worker, func() error { return fn(vm) })
	stopped := stop()
	c.printer.Close()
	p.call = nil
	var panicked *foreign.PanicError
	if !stopped || c.printer.Err() != nil || errors.As(err, &panicked) {
		p.vm = nil // an interrupt may still reach this runtime
	}
	switch {
	case c.printer.Err() != nil:
		return c.printer.Err()
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", p.cfg.Limits.TimeLimit(), err)
	case c.reject != nil && errors.Is(err, c.reject):
		return c.reject
	}
	return err
}

func thrown(reason goja.Value) error {
	if reason == nil {
		return errors.New("the promise was rejected")
	}
	if o, ok := reason.(*goja.Object); ok {
		if err, ok := o.Export().(error); ok {
			return err
		}
		if v := o.Get("value"); v != nil { // a Go error that was thrown into the script
			if err, ok := v.Export().(error); ok {
				return err
			}
		}
	}
	return fmt.Errorf("the promise was rejected: %.1000s", reason.String())
}

// predeclare sets the global names that the code has in addition to the language's own.
func (p *program) predeclare() error {
	vm := p.vm
	handling := func(what string) *call {
		c := p.call
		if c == nil || c.state == nil {
			panic(vm.NewGoError(fmt.Errorf("%s: there is no message: call it from handle", what)))
		}
		return c
	}
	check := func(err error) {
		if err != nil {
			panic(vm.NewGoError(err))
		}
	}
	get := func(what string, wrap func([]byte) goja.Value) func(key string) goja.Value {
		return func(key string) goja.Value {
			c := handling(what)
			v, ok, err := c.state.Get(c.ctx, key)
			check(err)
			if !ok {
				return goja.Undefined()
			}
			return wrap(v)
		}
	}
	state := map[string]any{
		"get":      get("state.get", func(v []byte) goja.Value { return vm.ToValue(textOf(v)) }),
		"getBytes": get("state.getBytes", func(v []byte) goja.Value { return vm.ToValue(vm.NewArrayBuffer(v)) }),
		"put": func(key string, v goja.Value) {
			c := handling("state.put")
			data, ok := bytesOf(v)
			if !ok {
				panic(vm.NewTypeError("state.put: the value must be a string, an ArrayBuffer or a Uint8Array"))
			}
			check(c.state.Put(c.ctx, key, data))
		},
		"delete": func(key string) {
			c := handling("state.delete")
			check(c.state.Delete(c.ctx, key))
		},
	}
	reject := func(reason string) {
		c := handling("reject")
		c.reject = engine.Reject(reason)
		panic(vm.NewGoError(c.reject))
	}
	log := func(args goja.FunctionCall) goja.Value {
		texts := make([]string, len(args.Arguments))
		for i, a := range args.Arguments {
			texts[i] = a.String()
		}
		if c := p.call; c != nil && c.printer.Println(strings.Join(texts, " ")) != nil {
			vm.Interrupt("printed too much")
		}
		return goja.Undefined()
	}
	env := vm.NewObject()
	for name, v := range p.cfg.Env {
		check(env.Set(name, v))
	}
	return errors.Join(
		vm.Set("env", env),
		vm.Set("state", state),
		vm.Set("timers", p.timers(handling)),
		vm.Set("reject", reject),
		vm.Set("fetch", fetch(vm, handling)),
		vm.Set("console", map[string]any{"log": log, "info": log, "warn": log, "error": log}),
	)
}

// message returns m as code sees it.
func (p *program) message(vm *goja.Runtime, m *engine.Message) goja.Value {
	o := vm.NewObject()
	set := func(name string, v any) { _ = o.Set(name, v) } // a new object takes every property
	set("worker", m.Worker)
	set("id", m.ID)
	set("topic", m.Topic)
	set("attempt", m.Attempt)
	set("fence", m.Fence)
	set("timer", fired(vm, m))
	set("trace", m.Trace().Parent)
	headers := vm.NewObject()
	for name, values := range m.Header {
		list := make([]any, len(values))
		for i, v := range values {
			list[i] = v
		}
		_ = headers.Set(name, vm.NewArray(list...))
	}
	set("headers", headers)
	set("text", textOf(m.Data))
	set("bytes", vm.NewArrayBuffer(bytes.Clone(m.Data)))
	return o
}

// textOf returns data as a string, with invalid UTF-8 replaced.
func textOf(data []byte) string { return strings.ToValidUTF8(string(data), "\uFFFD") }

// depth bounds how deep a result may nest: an object may contain itself.
const depth = 8

// export turns a result into a plain Go value.
func export(vm *goja.Runtime, v goja.Value, level int) (any, error) {
	if level > depth {
		return nil, fmt.Errorf("the handler's result nests more than %d levels", depth)
	}
	if v == nil || goja.IsUndefined(v) || goja.IsNull(v) {
		return nil, nil
	}
	o, ok := v.(*goja.Object)
	if !ok {
		return v.Export(), nil
	}
	if data, ok := bytesOf(v); ok {
		return data, nil
	}
	switch o.ClassName() {
	case "Array":
		// The code may set the length to any number, so count the elements.
		n := o.Get("length").ToInteger()
		if n > 100_000 {
			return nil, fmt.Errorf("the handler's result: a list of %d elements is too long", n)
		}
		list := make([]any, n)
		for i := range list {
			one, err := export(vm, o.Get(fmt.Sprint(i)), level+1)
			if err != nil {
				return nil, err
			}
			list[i] = one
		}
		return list, nil
	case "Object":
		if o.ExportType().Kind() != reflect.Map {
			return value.Named(o.ExportType().String()), nil
		}
		m := make(map[string]any)
		for _, key := range o.Keys() {
			one, err := export(vm, o.Get(key), level+1)
			if err != nil {
				return nil, err
			}
			m[key] = one
		}
		return m, nil
	}
	return value.Named(o.ClassName()), nil
}

// binary has the Go types to which goja exports binary data.
var binary = []reflect.Type{reflect.TypeFor[goja.ArrayBuffer](), reflect.TypeFor[[]byte]()}

// promiseOf returns v as a promise, or nil if it is not one.
func promiseOf(v goja.Value) (*goja.Promise, bool) {
	if o, ok := v.(*goja.Object); !ok || o.ExportType() != reflect.TypeFor[*goja.Promise]() {
		return nil, false
	}
	p, ok := v.Export().(*goja.Promise)
	return p, ok
}

// bytesOf reads text and every kind of binary data. It does not let goja export
// any other value: for an array, goja would make a slice as long as the array
// claims to be.
func bytesOf(v goja.Value) ([]byte, bool) {
	if v == nil {
		return nil, false
	}
	if _, ok := v.(*goja.Object); ok && !slices.Contains(binary, v.ExportType()) {
		return nil, false
	}
	switch x := v.Export().(type) {
	case string:
		return []byte(x), true
	case goja.ArrayBuffer:
		return bytes.Clone(x.Bytes()), true
	case []byte:
		return bytes.Clone(x), true
	}
	return nil, false
}
