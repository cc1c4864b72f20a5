package python

import (
	"errors"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	isolate.Main()
	goleak.VerifyTestMain(m)
}

func newEngine(tb testing.TB) *Engine {
	tb.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		tb.Skip("there is no python3 here")
	}
	e, err := New()
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

const code = `
import os

def handle(message):
    mode = message.topic.split(".")[1]
    if mode == "echo":
        return message.data
    if mode == "env":
        return os.environ["GREETING"]
    if mode == "two":
        return [{"topic": "out.a", "data": "1", "headers": {"K": "v"}}, {"topic": "out.b", "data": b"2"}]
    if mode == "fields":
        return "|".join([message.worker, message.id, message.topic, str(message.attempt), str(message.fence), message.headers["X"][0], message.trace])
    if mode == "state":
        n = int(state.get("n") or 0) + 1
        state.put("n", str(n))
        state.delete("gone")
        return state.get_bytes("n")
    if mode == "timer":
        import datetime
        timers.set("a", at=datetime.datetime.fromtimestamp(2000000, datetime.timezone.utc), data=b"at")
        timers.set("b", 60000)
        timers.cancel("gone")
        return " ".join("%s@%d" % (t.name, t.due) for t in timers.list())
    if mode == "fired":
        t = message.timer
        return "none" if t is None else "|".join([t.name, str(t.due), str(t.attempt), message.text])
    if mode == "badtimer":
        timers.set("", 1)
    if mode == "retry":
        raise ValueError("try later")
    if mode == "reject":
        reject("never")
    if mode == "loop":
        while True:
            pass
    if mode == "alloc":
        held = []
        while True:
            held.append(b"x" * (1 << 20))
    if mode == "panic":
        os.abort()
    if mode == "wrongtype":
        return {1, 2}
    if mode == "print":
        for i in range(8192):
            print("x" * 1024)
        return message.data
    if mode == "flood":
        return "x" * (8 << 20)
    if mode == "badkey":
        state.put("a b", "x")
    if mode == "fetch":
        r = fetch("https://example.com/data", method="POST", headers={"K": "v"}, body=message.data)
        return "%d %s %s" % (r.status, r.headers["Answer"][0], r.text)
    if mode == "badfetch":
        fetch("https://example.com/forbidden")
    if mode == "badtopic":
        return {"topic": "out.*", "data": "x"}
`

func TestConformance(t *testing.T) {
	suite := enginetest.Suite{
		Engine: newEngine(t),
		Code:   []byte(code),
		Bad: map[string]enginetest.BadCode{
			"syntax":     {Code: "def handle(message:", Fault: "SyntaxError"},
			"no handler": {Code: "x = 1", Fault: "no function handle"},
			"raises":     {Code: "raise ValueError('at the top')", Fault: "hosted.py:1: ValueError: at the top"},
			"never ends": {Code: "while True: pass", Fault: "load time limit of 1s exceeded"},
			"no message": {Code: "state.get('x')", Fault: "there is no message"},
			"exits":      {Code: "import os; os._exit(3)", Fault: "3"},
		},
	}
	t.Run("without a floor", func(t *testing.T) { enginetest.Run(t, suite) })
	t.Run("in a child", func(t *testing.T) {
		children, err := isolate.New(isolate.Config{})
		if err != nil {
			t.Fatal(err)
		}
		suite.Engine = children.Engine(suite.Engine.MIMETypes()[0], suite.Engine)
		enginetest.Run(t, suite)
	})
}

// A result that is too large and takes more than half of the memory breaks the
// limit of the output: it is measured before it is copied.
func TestLargeResultIsNotCopied(t *testing.T) {
	for name, result := range map[string]string{"text": `"x" * (48 << 20)`, "bytes": `bytes(48 << 20)`, "in a list": `["x" * (48 << 20)]`} {
		t.Run(name, func(t *testing.T) {
			p, err := newEngine(t).Load(t.Context(), []byte("def handle(message): return "+result), engine.Config{Worker: "w", Limits: enginetest.Limits})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}()
			_, err = p.Handle(t.Context(), &engine.Message{ID: "1", Topic: "in.x"}, enginetest.NewState())
			if broken := new(engine.LimitError); !errors.As(err, &broken) || broken.What != "output" {
				t.Errorf("the error is %v, want the output limit", err)
			}
		})
	}
}

// The C library reserves 64 MiB or more of addresses for each thread that
// allocates, and RLIMIT_AS counts them: the code would lose its memory to the
// reader's thread.
func TestThreadsReserveNoMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it reads /proc/self/maps")
	}
	limits := enginetest.Limits
	limits.Memory = 1 << 30
	p, err := newEngine(t).Load(t.Context(), []byte(`
def handle(message):
    largest = 0
    for line in open("/proc/self/maps"):
        bounds, access = line.split()[:2]
        low, high = (int(n, 16) for n in bounds.split("-"))
        if access == "---p":
            largest = max(largest, high - low)
    return {"topic": "out.x", "data": str(largest)}
`), engine.Config{Worker: "w", Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	outputs, err := p.Handle(t.Context(), &engine.Message{ID: "1", Topic: "in.x"}, enginetest.NewState())
	if err != nil {
		t.Fatal(err)
	}
	if largest, err := strconv.Atoi(string(outputs[0].Data)); err != nil || largest > 32<<20 {
		t.Errorf("%d bytes of addresses are reserved in one piece, want fewer than 32 MiB (%v)", largest, err)
	}
}

func BenchmarkHandle(b *testing.B) {
	enginetest.Bench(b, newEngine(b), "def handle(message): pass")
}
