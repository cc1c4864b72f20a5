package starlark

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	isolate.Main(New())
	goleak.VerifyTestMain(m)
}

const code = `
def handle(message):
    mode = message.topic.split(".")[1]
    if mode == "echo":
        return message.data
    if mode == "env":
        return env["GREETING"]
    if mode == "nothing":
        return None
    if mode == "two":
        return [{"topic": "out.a", "data": "1", "headers": {"K": "v"}}, {"topic": "out.b", "data": b"2"}]
    if mode == "fields":
        return "|".join([message.worker, message.id, message.topic, str(message.attempt), str(message.fence), message.headers["X"][0], message.trace])
    if mode == "state":
        n = int(state.get("n") or "0") + 1
        state.put("n", str(n))
        state.delete("gone")
        return state.get_bytes("n")
    if mode == "timer":
        timers.set("a", at = 2000000000, data = b"at")
        timers.set("b", 60000)
        timers.cancel("gone")
        return " ".join(["%s@%d" % (t.name, t.due) for t in timers.list()])
    if mode == "fired":
        t = message.timer
        return "none" if t == None else "|".join([t.name, str(t.due), str(t.attempt), message.text])
    if mode == "badtimer":
        timers.set("", 1)
    if mode == "retry":
        fail("try later")
    if mode == "reject":
        reject("never")
    if mode == "loop":
        while True:
            pass
    if mode == "alloc":
        held = []
        while True:
            held.append("x" * 65536 + str(len(held)))
    if mode == "panic":
        return {}["nothing"]
    if mode == "wrongtype":
        return 42
    if mode == "print":
        for i in range(8192):
            print("x" * 1024)
        return message.data
    if mode == "flood":
        return "x" * (8 << 20)
    if mode == "badkey":
        state.put("a b", "x")
    if mode == "badtopic":
        return {"topic": "out.*", "data": "x"}
    if mode == "fetch":
        r = fetch("https://example.com/data", method = "POST", headers = {"K": "v"}, body = message.data)
        return "%d %s %s" % (r.status, r.headers["Answer"][0], r.text)
    if mode == "badfetch":
        fetch("https://example.com/forbidden")
`

func TestConformance(t *testing.T) {
	suite := enginetest.Suite{
		Engine: New(),
		Code:   []byte(code),
		Bad: map[string]enginetest.BadCode{
			"syntax":     {Code: "def handle(message:", Fault: "w.star:1"},
			"no handler": {Code: "x = 1", Fault: "no function handle"},
			"parameters": {Code: "def handle(a, b): pass", Fault: "takes 2 parameters"},
			"fails":      {Code: "fail('at the top')", Fault: "at the top"},
			"never ends": {Code: "while True: pass", Fault: "load time limit of 1s exceeded"},
			"no message": {Code: "state.get('x')", Fault: "there is no message"},
		},
	}
	t.Run("in this process", func(t *testing.T) {
		trusted := suite
		trusted.Without = map[string]string{"alloc": "the runtime cannot bound memory"}
		enginetest.Run(t, trusted)
	})
	t.Run("in a child", func(t *testing.T) {
		children, err := isolate.New(isolate.Config{})
		if err != nil {
			t.Fatal(err)
		}
		suite.Engine = children.Engine(suite.Engine.MIMETypes()[0], suite.Engine)
		enginetest.Run(t, suite)
	})
}

// FuzzLoad checks that no code ends the process while it is loaded.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(code))
	f.Add([]byte("def handle(message): return x"))
	f.Add([]byte("\x00\xff"))
	enginetest.FuzzLoad(f, New())
}

func BenchmarkHandle(b *testing.B) {
	enginetest.Bench(b, New(), "def handle(message): return None")
}
