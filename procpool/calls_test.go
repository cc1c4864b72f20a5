//go:build unix

package procpool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/trace"
)

// asked is a question for the examples: they call text with value.
func asked(method, params string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"op":"call","text":%q,"value":%s}`, method, params))
}

func TestWorkersCallTheirParent(t *testing.T) {
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			begun, ended := make(chan bool, 1), make(chan error, 1)
			p := startPool(t, command, func(c *procpool.Config) {
				c.CancelGrace = patience
				c.Calls = func(ctx context.Context, call procpool.Call) (json.RawMessage, error) {
					switch call.Method {
					case "echo":
						return call.Params, nil
					case "who":
						return json.Marshal(call.Query + " on " + call.Worker)
					case "nothing":
						return nil, nil
					case "panic":
						panic("ouch")
					case "not JSON":
						return json.RawMessage("{"), nil
					case "long":
						return json.Marshal(strings.Repeat("x", 17<<20))
					case "hang":
						begun <- true
						<-ctx.Done()
						ended <- ctx.Err()
						return nil, ctx.Err()
					}
					return nil, errors.New("there is no \"such\"\nmethod")
				}
			})
			for range 100 {
				if got := do(t, p, asked("echo", `{"a":["é\n",1]}`)); !strings.HasPrefix(got, `{"a":[`) {
					t.Fatalf("echo is %s", got)
				}
			}
			q := submit(t, p, asked("who", "null"))
			if got, err := q.Result(); err != nil || string(got) != `"`+q.ID()+` on p/1"` {
				t.Errorf("who is %s, %v", got, err)
			}
			if got := do(t, p, asked("nothing", "1")); got != "null" {
				t.Errorf("nothing is %s", got)
			}
			for method, want := range map[string]string{
				"other": `there is no "such"`, "panic": "ouch", "not JSON": "not JSON", "long": "longer than", strings.Repeat("x", 300): "at most 256",
			} {
				var failed *procpool.WorkerError
				if _, err := p.Do(within(t), asked(method, "1")); !errors.As(err, &failed) || !strings.Contains(err.Error(), want) {
					t.Errorf("%.20s: %v", method, err)
				}
			}
			own := procpool.Calls(func(context.Context, procpool.Call) (json.RawMessage, error) { return json.RawMessage("7"), nil })
			if got := do(t, p, asked("echo", "1"), own); got != "7" {
				t.Errorf("the query's own handler: %s", got)
			}
			q = submit(t, p, asked("hang", "1"))
			<-begun
			q.Cancel(nil)
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the call ended with %v", err)
			}
			eventually(t, "the worker is free again", func() bool { return p.Stats().Ready == 1 })
			if s := p.Stats(); s.Spawned != 1 || s.Crashed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestWorkersLearnAboutTheirQuery(t *testing.T) {
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, nil)
			got := do(t, p, json.RawMessage(`{"op":"about"}`), procpool.Metadata(map[string]string{"tenant": "é\""}), procpool.Trace("00-a-b-01", "c=d"))
			var about struct {
				Metadata                map[string]string
				Traceparent, Tracestate string
				Deadline                bool
			}
			if err := json.Unmarshal([]byte(got), &about); err != nil || about.Metadata["tenant"] != `é"` || about.Traceparent != "00-a-b-01" || about.Tracestate != "c=d" || !about.Deadline {
				t.Errorf("%s, %v", got, err)
			}
			const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
			answer, err := p.Do(trace.Parse(parent, "e=f").In(t.Context()), json.RawMessage(`{"op":"about"}`))
			if err != nil || json.Unmarshal(answer, &about) != nil || about.Traceparent != parent || about.Tracestate != "e=f" {
				t.Errorf("the trace of the context: %s, %v", answer, err)
			}
		})
	}
	p := start(t, "serve", nil)
	long := strings.Repeat("x", 1<<20)
	for name, opt := range map[string]procpool.Option{"metadata": procpool.Metadata(map[string]string{"a": long}), "trace": procpool.Trace(long, "")} {
		if _, err := p.Do(within(t), ask{}.raw(), opt); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWorkerThatOffersNothing has a worker that says ready and nothing more, and ignores
// what it does not know.
func TestWorkerThatOffersNothing(t *testing.T) {
	p := start(t, "plain", nil)
	if got := do(t, p, ask{}.raw(), procpool.Metadata(map[string]string{"a": "b"}), procpool.Trace("c", "d")); got != `"plain"` {
		t.Errorf("got %s", got)
	}
}

// TestCallsThatBreakTheContract has workers that call for a query that they do not have,
// and that make more calls than the pool answers at a time.
func TestCallsThatBreakTheContract(t *testing.T) {
	t.Run("another query", func(t *testing.T) {
		p := start(t, "call-other", func(c *procpool.Config) { c.Backoff.Min = time.Millisecond })
		if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrProtocol) || !strings.Contains(err.Error(), "q999") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("too many", func(t *testing.T) {
		p := start(t, "call-flood", func(c *procpool.Config) {
			c.Calls = func(ctx context.Context, _ procpool.Call) (json.RawMessage, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		// The worker says how many calls were refused while 32 waited.
		if got := do(t, p, ask{}.raw()); got != "68" {
			t.Errorf("%s of 100 calls were refused, want 68", got)
		}
	})
}

// TestCallEndsWithItsQuery has a handler that ignores its context. The worker gets an error
// when the query ends, and confirms its end.
func TestCallEndsWithItsQuery(t *testing.T) {
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			begun, over := make(chan bool, 1), make(chan bool)
			defer close(over)
			p := startPool(t, command, func(c *procpool.Config) {
				c.MaxQueue, c.CancelGrace = 1, patience
				c.Calls = func(context.Context, procpool.Call) (json.RawMessage, error) {
					begun <- true
					<-over
					return nil, nil
				}
			})
			for range 2 {
				q := submit(t, p, asked("hang", "1"), procpool.Timeout(patience/2))
				<-begun
				q.Cancel(nil)
				do(t, p, json.RawMessage(`1`), procpool.Timeout(patience/2))
			}
			if s := p.Stats(); s.Spawned != 1 || s.Crashed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
