package native

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func modes(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
	text := func(t string) ([]engine.Output, error) { return []engine.Output{{Data: []byte(t)}}, nil }
	switch strings.TrimPrefix(m.Topic, "test.") {
	case "echo":
		return text(string(m.Data))
	case "two":
		return []engine.Output{{Topic: "out.a", Data: []byte("1"), Header: map[string][]string{"K": {"v"}}}, {Topic: "out.b", Data: []byte("2")}}, nil
	case "fields":
		return text(fmt.Sprintf("%s|%s|%s|%d|%d|%s|%s", m.Worker, m.ID, m.Topic, m.Attempt, m.Fence, m.Header["X"][0], m.Trace().Parent))
	case "state":
		v, _, err := s.Get(ctx, "n")
		if err != nil {
			return nil, err
		}
		n, _ := strconv.Atoi(string(v))
		v = strconv.AppendInt(nil, int64(n+1), 10)
		if err := errors.Join(s.Put(ctx, "n", v), s.Delete(ctx, "gone")); err != nil {
			return nil, err
		}
		return text(string(v))
	case "fetch":
		r, err := engine.Fetch(ctx, s, &engine.Request{Method: "POST", URL: "https://example.com/data", Header: map[string][]string{"K": {"v"}}, Body: m.Data})
		if err != nil {
			return nil, err
		}
		return text(fmt.Sprintf("%d %s %s", r.Status, r.Header["Answer"][0], r.Body))
	case "badfetch":
		_, err := engine.Fetch(ctx, s, &engine.Request{URL: "https://example.com/forbidden"})
		return nil, err
	case "timer":
		timers := engine.TimersOf(s)
		err := errors.Join(timers.SetTimer(ctx, engine.Timer{Name: "a", At: time.UnixMilli(2000000000), Data: []byte("at")}),
			timers.SetTimer(ctx, engine.Timer{Name: "b", After: time.Minute}), timers.CancelTimer(ctx, "gone"))
		all, failed := timers.ListTimers(ctx)
		var said []string
		for _, t := range all {
			said = append(said, fmt.Sprintf("%s@%d", t.Name, t.At.UnixMilli()))
		}
		out, _ := text(strings.Join(said, " "))
		return out, errors.Join(err, failed)
	case "fired":
		if m.Timer == nil {
			return text("none")
		}
		return text(fmt.Sprintf("%s|%d|%d|%s", m.Timer.Name, m.Timer.Due.UnixMilli(), m.Attempt, m.Data))
	case "badtimer":
		return nil, engine.TimersOf(s).SetTimer(ctx, engine.Timer{})
	case "retry":
		return nil, errors.New("try later")
	case "reject":
		return nil, engine.Reject("never")
	case "loop":
		<-ctx.Done()
		return nil, ctx.Err()
	case "panic":
		panic("out")
	case "flood":
		return text(strings.Repeat("x", 8<<20))
	case "badkey":
		return nil, s.Put(ctx, "a b", nil)
	case "badtopic":
		return []engine.Output{{Topic: "out.*"}}, nil
	}
	return nil, nil
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, enginetest.Suite{
		Engine: New(map[string]Func{"modes": modes}),
		Code:   []byte(" modes\n"),
		Bad:    map[string]enginetest.BadCode{"unknown": {Code: "nodes", Fault: `no function "nodes": the engine has modes`}},
		Without: map[string]string{
			"env":       "a function has the environment of the process",
			"wrongtype": "the compiler does not let it",
			"print":     "a function of the process prints where the process does",
			"loop":      "Go has no way to end a function",
			"alloc":     "Go has no way to bound the memory of a function",
		},
	})
}

func BenchmarkHandle(b *testing.B) {
	enginetest.Bench(b, New(map[string]Func{"none": func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return nil, nil }}), "none")
}
