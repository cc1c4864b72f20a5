package wasm

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/tetratelabs/wazero/api"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// exportTimers exports the functions for timers.
func exportTimers(export func(name string, params int, fn func(ctx context.Context, c *call, mem api.Memory, args []uint64) (int32, error))) {
	export("timer_set", 6, func(ctx context.Context, c *call, mem api.Memory, args []uint64) (int32, error) {
		name, err := read(mem, args, 0)
		if err != nil {
			return 0, err
		}
		when, err := read(mem, args, 2)
		if err != nil {
			return 0, err
		}
		data, err := read(mem, args, 4)
		if err != nil {
			return 0, err
		}
		t := engine.Timer{Name: string(name), Data: bytes.Clone(data)}
		digits, isTime := strings.CutPrefix(string(when), "@")
		ms, err := strconv.ParseFloat(digits, 64)
		switch {
		case err != nil:
			return 0, fmt.Errorf("timer_set: %.100q: want milliseconds from now, or @ and milliseconds since 1970", when)
		case isTime:
			t.At, err = engine.TimerAt(ms)
		default:
			t.After, err = engine.TimerAfter(ms)
		}
		if err != nil {
			return 0, err
		}
		return 0, engine.TimersOf(c.state).SetTimer(ctx, t)
	})
	export("timer_cancel", 2, func(ctx context.Context, c *call, mem api.Memory, args []uint64) (int32, error) {
		name, err := read(mem, args, 0)
		if err != nil {
			return 0, err
		}
		return 0, engine.TimersOf(c.state).CancelTimer(ctx, string(name))
	})
	export("timer_list", 2, func(ctx context.Context, c *call, mem api.Memory, args []uint64) (int32, error) {
		all, err := engine.TimersOf(c.state).ListTimers(ctx)
		if err != nil {
			return 0, err
		}
		var lines bytes.Buffer
		for _, t := range all {
			fmt.Fprintf(&lines, "%d %s\n", t.At.UnixMilli(), t.Name)
		}
		return fillAt(mem, args, 0, lines.Bytes())
	})
}
