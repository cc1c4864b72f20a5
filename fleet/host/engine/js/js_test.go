package js

import (
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	isolate.Main(New())
	goleak.VerifyTestMain(m)
}

const code = `
const held = [];
function handle(message) {
    switch (message.topic.split(".")[1]) {
    case "echo": return message.bytes;
    case "env": return env.GREETING;
    case "nothing": return;
    case "two": return [{topic: "out.a", data: "1", headers: {K: ["v"]}}, {topic: "out.b", data: new Uint8Array([50])}];
    case "fields": return [message.worker, message.id, message.topic, message.attempt, message.fence, message.headers.X[0], message.trace].join("|");
    case "state":
        const n = Number(state.get("n") ?? 0) + 1;
        state.put("n", String(n));
        state.delete("gone");
        return state.getBytes("n");
    case "timer":
        timers.set("a", {at: new Date(2000000000)}, "at");
        timers.set("b", 60000);
        timers.cancel("gone");
        return timers.list().map(t => t.name + "@" + t.due).join(" ");
    case "fired":
        const t = message.timer;
        return t === null ? "none" : [t.name, t.due, t.attempt, message.text].join("|");
    case "badtimer": timers.set("", 1);
    case "retry": throw new Error("try later");
    case "reject": reject("never");
    case "loop": while (true);
    case "alloc": while (true) held.push("x".repeat(65536) + held.length);
    case "panic": return null.nothing;
    case "wrongtype": return 42;
    case "print":
        for (let i = 0; i < 8192; i++) console.log("x".repeat(1024));
        return message.bytes;
    case "flood": return "x".repeat(8 << 20);
    case "badkey": state.put("a b", "x");
    case "badtopic": return {topic: "out.*", data: "x"};
    case "fetch": return (async () => {
            const r = await fetch("https://example.com/data", {method: "POST", headers: {K: "v"}, body: message.text});
            return r.status + " " + r.headers.get("answer") + " " + await r.text();
        })();
    case "badfetch": return (async () => { await fetch("https://example.com/forbidden"); })();
    case "async": return (async () => { return await Promise.resolve(message.text); })();
    case "asyncreject": return (async () => { reject("later"); })();
    case "asyncthrow": return (async () => { throw new Error("later"); })();
    case "pending": return new Promise(() => {});
    case "deep": const a = []; a.push(a); return a;
    case "function": return () => 1;
    case "long": const l = []; l.length = 4294967295; return l;
    case "stack": const f = () => f(); return f();
    }
}`

func TestConformance(t *testing.T) {
	suite := enginetest.Suite{
		Engine: New(),
		Code:   []byte(code),
		Bad: map[string]enginetest.BadCode{
			"syntax":     {Code: "function handle(", Fault: "w.js: Line 1"},
			"no handler": {Code: "const handle = 1", Fault: "no function handle"},
			"throws":     {Code: "throw new Error('at the top')", Fault: "at the top"},
			"never ends": {Code: "while (true);", Fault: "load time limit of 1s exceeded"},
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

// TestResults checks what only JavaScript has: promises, and results that cannot
// be sent.
func TestResults(t *testing.T) {
	p, err := New().Load(t.Context(), []byte(code), engine.Config{Worker: "w"})
	if err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[string]string{
		"async": "", "asyncreject": "rejected: later", "asyncthrow": "later", "pending": "never comes",
		"deep": "nests more than", "function": "type Function", "long": "too long", "stack": "at f",
	} {
		out, err := p.Handle(t.Context(), &engine.Message{Topic: "test." + mode, Data: []byte("x")}, enginetest.NewState())
		if want == "" && (err != nil || len(out) != 1 || string(out[0].Data) != "x") || want != "" && (err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want))) {
			t.Errorf("%s: %v, %v", mode, out, err)
		}
	}
}

// FuzzLoad checks that no code ends the process while it is loaded.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(code))
	f.Add([]byte("handle = x"))
	f.Add([]byte("\x00\xff"))
	enginetest.FuzzLoad(f, New())
}

func BenchmarkHandle(b *testing.B) { enginetest.Bench(b, New(), "function handle(message) {}") }
