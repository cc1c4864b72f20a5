package starlark

import (
	"errors"
	"fmt"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
)

type builtin = func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error)

// timers returns the module of that name.
func timers() *starlarkstruct.Module {
	members := starlark.StringDict{}
	for name, fn := range map[string]builtin{"set": setTimer, "cancel": cancelTimer, "list": listTimers} {
		members[name] = starlark.NewBuiltin("timers."+name, fn)
	}
	return &starlarkstruct.Module{Name: "timers", Members: members}
}

func setTimer(t *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var timer engine.Timer
	var delay, data, at starlark.Value = starlark.None, starlark.None, starlark.None
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "name", &timer.Name, "delay?", &delay, "data?", &data, "at?", &at); err != nil {
		return nil, err
	}
	c, err := handling(t, b)
	if err != nil {
		return nil, err
	}
	switch data := data.(type) {
	case starlark.NoneType:
	case starlark.String:
		timer.Data = []byte(data)
	case starlark.Bytes:
		timer.Data = []byte(data)
	default:
		return nil, fmt.Errorf("timers.set: data is a %s, want a string or bytes", data.Type())
	}
	after, isAfter := starlark.AsFloat(delay)
	time, isTime := starlark.AsFloat(at)
	switch {
	case isAfter == isTime:
		return nil, errors.New("timers.set: want either a delay or at, in milliseconds")
	case isAfter:
		timer.After, err = engine.TimerAfter(after)
	default:
		timer.At, err = engine.TimerAt(time)
	}
	if err != nil {
		return nil, err
	}
	return starlark.None, engine.TimersOf(c.state).SetTimer(c.ctx, timer)
}

func cancelTimer(t *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var name string
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "name", &name); err != nil {
		return nil, err
	}
	c, err := handling(t, b)
	if err != nil {
		return nil, err
	}
	return starlark.None, engine.TimersOf(c.state).CancelTimer(c.ctx, name)
}

func listTimers(t *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	if err := starlark.UnpackArgs(b.Name(), args, kwargs); err != nil {
		return nil, err
	}
	c, err := handling(t, b)
	if err != nil {
		return nil, err
	}
	all, err := engine.TimersOf(c.state).ListTimers(c.ctx)
	list := make([]starlark.Value, len(all))
	for i, one := range all {
		list[i] = starlarkstruct.FromStringDict(starlarkstruct.Default, starlark.StringDict{"name": starlark.String(one.Name), "due": starlark.MakeInt64(one.At.UnixMilli())})
	}
	return starlark.NewList(list), err
}

// fired returns the attribute timer of a message.
func fired(m *engine.Message) starlark.Value {
	if m.Timer == nil {
		return starlark.None
	}
	return starlarkstruct.FromStringDict(starlarkstruct.Default, starlark.StringDict{
		"name": starlark.String(m.Timer.Name), "due": starlark.MakeInt64(m.Timer.Due.UnixMilli()), "attempt": starlark.MakeInt(m.Attempt),
	})
}
