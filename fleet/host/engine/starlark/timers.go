package starlark

import (
	"errors"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"go.starlark.net/starlark"
)

func setTimer(c *call, args arguments) (starlark.Value, error) {
	var timer engine.Timer
	var delay, data, at starlark.Value = starlark.None, starlark.None, starlark.None
	err := args.unpack("name", &timer.Name, "delay?", &delay, "data?", &data, "at?", &at)
	if err != nil {
		return nil, err
	}
	if timer.Data, err = args.bytesOf("data", data); err != nil {
		return nil, err
	}
	after, isAfter := starlark.AsFloat(delay)
	time, isTime := starlark.AsFloat(at)
	switch {
	case isAfter == isTime:
		err = errors.New("timers.set: want either a delay or at, in milliseconds")
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

func cancelTimer(c *call, args arguments) (starlark.Value, error) {
	var name string
	if err := args.unpack("name", &name); err != nil {
		return nil, err
	}
	return starlark.None, engine.TimersOf(c.state).CancelTimer(c.ctx, name)
}

func listTimers(c *call, args arguments) (starlark.Value, error) {
	if err := args.unpack(); err != nil {
		return nil, err
	}
	all, err := engine.TimersOf(c.state).ListTimers(c.ctx)
	list := make([]starlark.Value, len(all))
	for i, one := range all {
		list[i] = newStruct(starlark.StringDict{
			"name": starlark.String(one.Name),
			"due":  starlark.MakeInt64(one.At.UnixMilli()),
		})
	}
	return starlark.NewList(list), err
}

// fired returns the attribute timer of a message.
func fired(m *engine.Message) starlark.Value {
	if m.Timer == nil {
		return starlark.None
	}
	return newStruct(starlark.StringDict{
		"name":    starlark.String(m.Timer.Name),
		"due":     starlark.MakeInt64(m.Timer.Due.UnixMilli()),
		"attempt": starlark.MakeInt(m.Attempt),
	})
}
