package js

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"github.com/dop251/goja"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// fetch returns the function of that name: it sends a request and returns a promise that
// is settled. current returns the call in progress.
func fetch(vm *goja.Runtime, current func(what string) *call) func(goja.FunctionCall) goja.Value {
	parse, _ := goja.AssertFunction(vm.GlobalObject().Get("JSON").ToObject(vm).Get("parse")) // a new runtime has it
	promised := func(v any, err error) goja.Value {
		p, resolve, reject := vm.NewPromise()
		if err != nil {
			_ = reject(vm.NewGoError(err))
		} else {
			_ = resolve(v)
		}
		return vm.ToValue(p)
	}
	return func(args goja.FunctionCall) goja.Value {
		c := current("fetch")
		r, err := request(vm, args)
		var answer *engine.Response
		if err == nil {
			answer, err = engine.Fetch(c.ctx, c.state, r)
		}
		if err != nil {
			return promised(nil, err)
		}
		header := http.Header(answer.Header)
		return promised(map[string]any{
			"ok":     answer.Status >= 200 && answer.Status < 300,
			"status": answer.Status,
			"url":    answer.URL,
			"headers": map[string]any{
				"get": func(name string) goja.Value {
					if v := header.Values(name); len(v) > 0 {
						return vm.ToValue(strings.Join(v, ", "))
					}
					return goja.Null()
				},
				"has": func(name string) bool { return len(header.Values(name)) > 0 },
			},
			"text":        func() goja.Value { return promised(textOf(answer.Body), nil) },
			"arrayBuffer": func() goja.Value { return promised(vm.NewArrayBuffer(bytes.Clone(answer.Body)), nil) },
			"json": func() goja.Value {
				v, err := parse(goja.Undefined(), vm.ToValue(textOf(answer.Body)))
				return promised(v, err)
			},
		}, nil)
	}
}

// request reads the arguments of fetch.
func request(vm *goja.Runtime, args goja.FunctionCall) (*engine.Request, error) {
	r := &engine.Request{URL: args.Argument(0).String()}
	init := args.Argument(1)
	if goja.IsUndefined(init) || goja.IsNull(init) {
		return r, nil
	}
	o := init.ToObject(vm)
	if v := o.Get("method"); v != nil && !goja.IsUndefined(v) {
		r.Method = v.String()
	}
	if v := o.Get("headers"); v != nil && !goja.IsUndefined(v) && !goja.IsNull(v) {
		r.Header = make(map[string][]string)
		headers := v.ToObject(vm)
		for _, name := range headers.Keys() {
			r.Header[name] = []string{headers.Get(name).String()}
		}
	}
	if v := o.Get("body"); v != nil && !goja.IsUndefined(v) && !goja.IsNull(v) {
		body, ok := bytesOf(v)
		if !ok {
			return nil, fmt.Errorf("fetch: the body must be a string, an ArrayBuffer or a Uint8Array")
		}
		r.Body = body
	}
	return r, nil
}
