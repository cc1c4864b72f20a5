package isolate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
	"github.com/pleme-io/lifecycle-go/fleet/host/internal/attacks"
)

// tight are the limits of the attacks. Code that attacks while it loads has a second
// for it.
var tight = engine.Limits{Time: 300 * time.Millisecond, Load: time.Minute, Memory: 64 << 20}

// wall is the children of a test, and a worker that stands by.
type wall struct {
	children *isolate.Children
	engines  map[string]engine.Engine
	good     engine.Program
}

func newWall(t *testing.T) *wall {
	t.Helper()
	children, err := isolate.New(isolate.Config{Program: program})
	if err != nil {
		t.Fatal(err)
	}
	w := &wall{children: children, engines: map[string]engine.Engine{
		"js": children.Engine("text/javascript", js.New()), "starlark": children.Engine("text/x-starlark", starlark.New()), "wasm": children.Engine(wasm.MIMEType, wasm.New()),
	}}
	if py, err := python.New(); err == nil {
		w.engines["python"] = children.Engine("text/x-python", py)
	}
	if w.good, err = w.engines["js"].Load(t.Context(), []byte(`let n = 0; function handle(m) { return String(++n) }`), engine.Config{Worker: "good"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.good.Close(); err != nil {
			t.Error(err)
		}
		if s := children.Stats(); s.Running != 0 {
			t.Errorf("%d children are left", s.Running)
		}
	})
	return w
}

func message(id string) *engine.Message {
	return &engine.Message{Worker: "bad", ID: id, Topic: "in.x", Attempt: 1, Data: []byte("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!")}
}

// run loads the code and hands it messages until one fails.
func (w *wall) run(ctx context.Context, language, body string, limits engine.Limits) ([]engine.Output, error) {
	if strings.HasPrefix(body, "load:") {
		limits.Load = time.Second
	}
	p, err := w.engines[language].Load(ctx, attacks.Handler(language, body), engine.Config{Worker: "bad", Limits: limits})
	if err != nil {
		return nil, err
	}
	var out []engine.Output
	for i := range 3 {
		if out, err = p.Handle(ctx, message(fmt.Sprint(i)), enginetest.NewState()); err != nil {
			break
		}
	}
	return out, errors.Join(err, p.Close())
}

// No code takes longer than its limit or more than its memory. When its child dies, the
// host and the other workers go on.
func TestAttacksEndTheirChild(t *testing.T) {
	w := newWall(t)
	messages := 0
	for language, all := range attacks.Ends {
		t.Run(language, func(t *testing.T) {
			if w.engines[language] == nil {
				t.Skip("there is no python3 here")
			}
			for _, a := range all {
				t.Run(a.Name, func(t *testing.T) {
					out, err := w.run(t.Context(), language, a.Code, tight)
					if err == nil {
						t.Errorf("it returned %.100q", out)
					}
					t.Logf("%.200v", err)
					messages++
					if got, err := w.good.Handle(t.Context(), message("good"), enginetest.NewState()); err != nil || string(got[0].Data) != fmt.Sprint(messages) {
						t.Errorf("the good worker's message %d: %v, %v", messages, got, err)
					}
				})
			}
		})
	}
}

// A child that starts threads with small stacks takes little memory for each. It is ended, also when
// it does so between two messages, and its neighbour goes on.
func TestThreadsEndTheirChild(t *testing.T) {
	w := newWall(t)
	if w.engines["python"] == nil {
		t.Skip("there is no python3 here")
	}
	limits := engine.Limits{Time: time.Minute, Memory: 128 << 20}
	body := `import os, threading, time
threading.stack_size(32768)
def grow():
    for i in range(6000):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
`
	for name, end := range map[string]string{
		"in the handler":     "grow()\ntime.sleep(1000)",
		"behind the handler": "threading.Thread(target=grow, daemon=True).start()",
	} {
		t.Run(name, func(t *testing.T) {
			code := body + "if message.id == '1':\n    " + strings.ReplaceAll(end, "\n", "\n    ") + "\nreturn str(os.getpid())"
			p, err := w.engines["python"].Load(t.Context(), attacks.Handler("python", code), engine.Config{Worker: "bad", Limits: limits})
			if err != nil {
				t.Fatal(err)
			}
			first, err := p.Handle(t.Context(), message("1"), enginetest.NewState())
			if limit := new(engine.LimitError); name == "in the handler" && (!errors.As(err, &limit) || limit.What != "threads") {
				t.Errorf("it ended with %v", err)
			}
			for deadline := time.Now().Add(time.Minute); name == "behind the handler"; time.Sleep(10 * time.Millisecond) {
				// The message that finds its child ended by the watch may fail, or get another child.
				out, err := p.Handle(t.Context(), message("2"), enginetest.NewState())
				if limit := new(engine.LimitError); errors.As(err, &limit) && limit.What == "threads" {
					break
				}
				if err == nil && (len(first) == 0 || string(out[0].Data) != string(first[0].Data)) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("it was not ended: %v", err)
				}
			}
			if out, err := w.good.Handle(t.Context(), message("good"), enginetest.NewState()); err != nil || len(out) != 1 {
				t.Errorf("the good worker: %v, %v", out, err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
