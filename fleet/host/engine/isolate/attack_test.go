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
)

// tight are the limits of the attacks. Code that attacks while it loads has a second
// for it.
var tight = engine.Limits{Time: 300 * time.Millisecond, Load: time.Minute, Memory: 64 << 20}

// attack is hostile code: the body of a handler in one of the languages. Code that
// begins with "load:" is not in a handler.
type attack struct{ name, code string }

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

// handler returns code in the language with the body.
func handler(language, body string) []byte {
	if code, ok := strings.CutPrefix(body, "load:"); ok {
		return []byte(code)
	}
	switch language {
	case "js":
		return []byte("var kept = []; function handle(message) {\n" + body + "\n}")
	case "starlark", "python":
		return []byte("def handle(message):\n    " + strings.ReplaceAll(body, "\n", "\n    ") + "\n")
	}
	return []byte(body)
}

func message(id string) *engine.Message {
	return &engine.Message{Worker: "bad", ID: id, Topic: "in.x", Attempt: 1, Data: []byte("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!")}
}

// run loads the code and hands it messages until one fails.
func (w *wall) run(ctx context.Context, language, body string, limits engine.Limits) ([]engine.Output, error) {
	if strings.HasPrefix(body, "load:") {
		limits.Load = time.Second
	}
	p, err := w.engines[language].Load(ctx, handler(language, body), engine.Config{Worker: "bad", Limits: limits})
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

// ends are attacks that end their child, by a limit or by a crash.
var ends = map[string][]attack{
	"js": {
		{"array buffer", `return String(new ArrayBuffer(2**46).byteLength)`},
		{"padStart", `return String("x".padStart(2**46).length)`},
		{"repeat", `return String("x".repeat(2**34).length)`},
		{"deep JSON", `JSON.parse("[".repeat(2e7))`},
		{"deep eval", `eval("(".repeat(2e7))`},
		{"deep source", "load:" + strings.Repeat("(", 20_000_000)},
		{"kept", `kept.push(new Uint8Array(100 << 20).fill(1)); return String(kept.length)`},
		{"look-ahead", `return String(/^(?=(a+)+$)(a+)+$/.test(message.text))`},
		{"big integers", `let x = 3n; for (;;) x = x * x`},
		{"join", `return String(new Array(4e9).join("x").length)`},
		{"loop", `for (;;);`},
		{"loop at load", "load:for (;;);"},
		{"promises", `(function again() { Promise.resolve().then(again) })()`},
		{"doubling", `let s = "x"; for (;;) s += s`},
		{"comparator", `[3, 2, 1].sort(() => { for (;;); })`},
		{"getter of the result", `return { get topic() { for (;;); } }`},
		{"keys of the result", `return new Proxy({}, { ownKeys() { for (;;); } })`},
		{"toString of a line", `console.log({ toString() { for (;;); } })`},
		{"deep pattern", `new RegExp("(".repeat(1e7))`},
		{"fill", `return String(new Array(1e9).fill(0).length)`},
		{"map", `const m = new Map(); for (let i = 0; ; i++) m.set(i, i)`},
		{"catches everything", `for (;;) try { for (;;) kept.push(new Uint8Array(1 << 20).fill(1)) } catch (e) {}`},
	},
	"starlark": {
		{"deep JSON", `return str(json.decode("[" * 20000000))`},
		{"list", `return str(len([0] * (1 << 29)))`},
		{"range", `return str(len(list(range(1 << 40))))`},
		{"replace", `return str(len(("a" * 10000000).replace("a", "b" * 1000)))`},
		{"join", `return str(len(("x" * 1000000).join(["y"] * 1000000)))`},
		{"str of a deep list", "x = []\nfor i in range(1 << 20):\n    x = [x]\nreturn str(x)"},
		{"big integers", "x = 3\nwhile True:\n    x = x * x"},
		{"loop", "while True:\n    pass"},
		{"loop at load", "load:while True: pass"},
		{"doubling", "s = 'x'\nwhile True:\n    s = s + s"},
		{"shift", "x = 1\nwhile True:\n    x = x << 500"},
		{"recursion", "load:def f(n): return f(n + 1) + 1\ndef handle(m): return str(f(0))"},
	},
	"wasm": {
		{"loop", module(nil, "\x03\x40\x0c\x00\x0b")},
		{"table", module([]byte("\x04\x04\x01\x70\x00\x00"), "\xd0\x70\x41\x80\x80\x80\xd0\x00\xfc\x0f\x00\x45\x04\x40\x03\x40\x0c\x00\x0b\x0b\xd0\x70\x41\x80\x80\x80\x30\xfc\x0f\x00\x41\x7f\x46\x04\x40\x00\x0b\x03\x40\x0c\x00\x0b")},
		{"memory", module(nil, "\x03\x40\x41\x01\x40\x00\x1a\x0c\x00\x0b")},
		{"recursion", module(nil, "\x10\x00\x10\x00\x0b"[:4])},
		{"unreachable", module(nil, "\x00")},
		{"compile", module(nil, strings.Repeat("\x03\x40\x0b", 4_000_000)+"\x03\x40\x0c\x00\x0b")},
	},
	"python": {
		{"loop", "while True:\n    pass"},
		{"loop at load", "load:while True: pass"},
		{"ignores SIGTERM", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    pass"},
		{"memory", "x = []\nwhile True:\n    x.append(bytes(1 << 20))"},
		{"mmap", "import mmap\nm = mmap.mmap(-1, 1 << 40)\nreturn 'mapped'"},
		{"segfault", "import ctypes\nctypes.string_at(8)"},
		{"deep recursion", "import sys\nsys.setrecursionlimit(1 << 30)\nf = lambda n: f(n + 1) + 1\nf(0)"},
		{"floods the log", "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n    os.write(2, b'x' * 65536)"},
		{"breaks the protocol", "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'{\"type\":\"ready\"}\\n' * 3)\n    except OSError:\n        pass\nreturn 'written'"},
		{"closes everything", "import os\nos.closerange(0, 64)"},
		{"threads", "import threading, time\nfor i in range(100000):\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"},
		{"leaves", "import os\nos._exit(0)"},
		{"another program", "import os\nos.execv('/usr/bin/env', ['env', 'sleep', '1000'])"},
		{"large file", "import tempfile\nwith tempfile.TemporaryFile() as f:\n    while True:\n        f.write(b'x' * (1 << 20))"},
		{"regular expression", "import re\nreturn str(re.match('(a+)+$', message.text))"},
		{"large power", "return str(len(str(9 ** (9 ** 9))))"},
	},
}

// module returns a module with the body of _start, and a section of its tables.
func module(table []byte, body string) string {
	section := func(id byte, content string) string { return string(id) + leb(len(content)) + content }
	function := "\x00" + body + "\x0b"
	return "\x00asm\x01\x00\x00\x00" + section(1, "\x01\x60\x00\x00") + section(3, "\x01\x00") + string(table) + section(5, "\x01\x00\x01") +
		section(7, "\x02\x06_start\x00\x00\x06memory\x02\x00") + section(10, "\x01"+leb(len(function))+function)
}

func leb(n int) string {
	var b []byte
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return string(append(b, byte(n)))
}

// No code takes longer than its limit or more than its memory. When its child dies, the
// host and the other workers go on.
func TestAttacksEndTheirChild(t *testing.T) {
	w := newWall(t)
	messages := 0
	for language, attacks := range ends {
		t.Run(language, func(t *testing.T) {
			if w.engines[language] == nil {
				t.Skip("there is no python3 here")
			}
			for _, a := range attacks {
				t.Run(a.name, func(t *testing.T) {
					out, err := w.run(t.Context(), language, a.code, tight)
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
	body := `import threading, time
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
			code := body + "if message.id == '1':\n    " + strings.ReplaceAll(end, "\n", "\n    ")
			p, err := w.engines["python"].Load(t.Context(), handler("python", code), engine.Config{Worker: "bad", Limits: limits})
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Handle(t.Context(), message("1"), enginetest.NewState())
			if limit := new(engine.LimitError); name == "in the handler" && (!errors.As(err, &limit) || limit.What != "threads") {
				t.Errorf("it ended with %v", err)
			}
			started := w.children.Stats().Started
			for deadline := time.Now().Add(time.Minute); name == "behind the handler"; time.Sleep(10 * time.Millisecond) {
				// The message that finds its child ended by the watch may fail.
				_, err := p.Handle(t.Context(), message("2"), enginetest.NewState())
				if limit := new(engine.LimitError); errors.As(err, &limit) && limit.What == "threads" || w.children.Stats().Started > started {
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
