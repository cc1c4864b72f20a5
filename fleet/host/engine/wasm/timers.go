package wasm

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

func timerSet(ctx context.Context, c *call, texts [][]byte, _ buffer) (int32, error) {
	t := engine.Timer{Name: string(texts[0]), Data: bytes.Clone(texts[2])}
	digits, isTime := strings.CutPrefix(string(texts[1]), "@")
	ms, err := strconv.ParseFloat(digits, 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("timer_set: %.100q: want milliseconds from now, or @ and milliseconds since 1970", texts[1])
	case isTime:
		t.At, err = engine.TimerAt(ms)
	default:
		t.After, err = engine.TimerAfter(ms)
	}
	if err != nil {
		return 0, err
	}
	return 0, engine.TimersOf(c.state).SetTimer(ctx, t)
}

func timerCancel(ctx context.Context, c *call, texts [][]byte, _ buffer) (int32, error) {
	return 0, engine.TimersOf(c.state).CancelTimer(ctx, string(texts[0]))
}

func timerList(ctx context.Context, c *call, _ [][]byte, out buffer) (int32, error) {
	all, err := engine.TimersOf(c.state).ListTimers(ctx)
	if err != nil {
		return 0, err
	}
	var lines bytes.Buffer
	for _, t := range all {
		fmt.Fprintf(&lines, "%d %s\n", t.At.UnixMilli(), t.Name)
	}
	return out.fill(lines.Bytes())
}
