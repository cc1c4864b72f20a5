package js

import (
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/dop251/goja"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// timers returns the global of that name.
func (p *program) timers(handling func(what string) *call) map[string]any {
	vm := p.vm
	check := func(err error) {
		if err != nil {
			panic(vm.NewGoError(err))
		}
	}
	name := func(what string, v goja.Value) string {
		if t := v.ExportType(); t == nil || t.Kind() != reflect.String {
			panic(vm.NewTypeError(what + ": the name must be a string"))
		}
		return v.String()
	}
	return map[string]any{
		"set": func(args goja.FunctionCall) goja.Value {
			c := handling("timers.set")
			t := engine.Timer{Name: name("timers.set", args.Argument(0))}
			var err error
			if at, ok := timeOf(args.Argument(1)); ok {
				t.At, err = engine.TimerAt(at)
			} else {
				t.After, err = engine.TimerAfter(numberOf(args.Argument(1)))
			}
			check(err)
			if data := args.Argument(2); !goja.IsUndefined(data) && !goja.IsNull(data) {
				var ok bool
				if t.Data, ok = bytesOf(data); !ok {
					panic(vm.NewTypeError("timers.set: the data must be a string, an ArrayBuffer or a Uint8Array"))
				}
			}
			check(engine.TimersOf(c.state).SetTimer(c.ctx, t))
			return goja.Undefined()
		},
		"cancel": func(args goja.FunctionCall) goja.Value {
			c := handling("timers.cancel")
			check(engine.TimersOf(c.state).CancelTimer(c.ctx, name("timers.cancel", args.Argument(0))))
			return goja.Undefined()
		},
		"list": func(goja.FunctionCall) goja.Value {
			c := handling("timers.list")
			all, err := engine.TimersOf(c.state).ListTimers(c.ctx)
			check(err)
			list := make([]any, len(all))
			for i, t := range all {
				o := vm.NewObject()
				check(errors.Join(o.Set("name", t.Name), o.Set("due", t.At.UnixMilli())))
				list[i] = o
			}
			return vm.NewArray(list...)
		},
	}
}

// timeOf returns the time in milliseconds that v names: a Date, or an object with the
// property at. It returns false for anything else.
func timeOf(v goja.Value) (float64, bool) {
	o, ok := v.(*goja.Object)
	if !ok {
		return 0, false
	}
	if o.ClassName() == "Date" {
		return o.ToFloat(), true
	}
	at := o.Get("at")
	if at == nil {
		return 0, false
	}
	return numberOf(at), true
}

// numberOf returns the number that v is, or a Date has, and NaN for anything else.
func numberOf(v goja.Value) float64 {
	if o, ok := v.(*goja.Object); ok && o.ClassName() != "Date" {
		return math.NaN()
	}
	t := v.ExportType()
	isText := t != nil && t.Kind() == reflect.String
	if isText || goja.IsNull(v) || goja.IsUndefined(v) { // JavaScript would make a number of these
		return math.NaN()
	}
	return v.ToFloat()
}

// fired returns the property timer of a message.
func fired(vm *goja.Runtime, m *engine.Message) goja.Value {
	if m.Timer == nil {
		return goja.Null()
	}
	o := vm.NewObject()
	err := errors.Join(
		o.Set("name", m.Timer.Name),
		o.Set("due", m.Timer.Due.UnixMilli()),
		o.Set("attempt", m.Attempt),
	)
	if err != nil {
		panic(fmt.Errorf("a new object: %w", err)) // it takes every property
	}
	return o
}
