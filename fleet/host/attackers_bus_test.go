package host_test

import (
	"fmt"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// attacksOnTheBus name what belongs to another tenant, to the hosts or to the server.
var attacksOnTheBus = append(specs([]named{
	// Topics.
	{"the state of all", "not for workers", func(s *host.Spec) { s.Topic = "$host.state.>" }},
	{"the state of the neighbour", "not for workers", func(s *host.Spec) { s.Topic = "$host.state.w-good.*" }},
	{"the dead letters of all", "not for workers", func(s *host.Spec) { s.Topic = "$host.dead.>" }},
	{"the lines of all", "not for workers", func(s *host.Spec) { s.Topic = "$host.lines.>" }},
	{"the logs of all", "not for workers", func(s *host.Spec) { s.Topic = "$host.log.>" }},
	{"the code of all", "not for workers", func(s *host.Spec) { s.Topic = "$host.code.>" }},
	{"the timers of all", "not for workers", func(s *host.Spec) { s.Topic = "$host.held.>" }},
	{"the bodies of timers", "not for workers", func(s *host.Spec) { s.Topic = "$host.body.>" }},
	{"a stream of hosts behind a wildcard", "not for workers", func(s *host.Spec) { s.Topic = "*.dead.>" }},
	{"the records", "not for workers", func(s *host.Spec) { s.Topic = "$KV.HOST_WORKERS.>" }},
	{"the members", "not for workers", func(s *host.Spec) { s.Topic = "$KV.HOST_MEMBERS.>" }},
	{"the server's own subjects", "no stream", func(s *host.Spec) { s.Topic = "$JS.>" }},
	{"the answers to others", "no stream", func(s *host.Spec) { s.Topic = "_INBOX.>" }},
	{"everything", "not for workers", func(s *host.Spec) { s.Tenant, s.Topic = "bound", ">" }},
	{"the neighbour's topic", "not granted", func(s *host.Spec) { s.Tenant, s.Topic = "bound", "work.good" }},
	{"the neighbour's topic behind a wildcard", "not granted", func(s *host.Spec) { s.Tenant, s.Topic = "bound", "work.*" }},
	{"the neighbour's outputs", "not granted", func(s *host.Spec) { s.Tenant, s.Topic = "bound", "out.good" }},
	{"a topic with a line", "topic", func(s *host.Spec) { s.Topic = "work.x\r\nSUB >" }},
	{"a topic without end", "topic", func(s *host.Spec) { s.Topic = "work." + strings.Repeat("x.", 1000) + "x" }},
	{"an output topic of the hosts", "not for workers", func(s *host.Spec) { s.OutputTopic = "$host.state.w-good.card" }},
	{"an output topic of the server", "not for workers", func(s *host.Spec) { s.OutputTopic = "$KV.HOST_WORKERS.good" }},
	{"an output topic that is a wildcard", "without wildcards", func(s *host.Spec) { s.OutputTopic = "out.>" }},
	{"the neighbour's output topic", "not granted", func(s *host.Spec) { s.Tenant, s.Topic, s.OutputTopic = "bound", "work.bound", "out.good" }},
	// Names.
	{"the neighbour's id", "exists", func(s *host.Spec) { s.ID = "good" }},
	{"an id that is a wildcard", "id", func(s *host.Spec) { s.ID = "*" }},
	{"an id with a path", "id", func(s *host.Spec) { s.ID = "../good" }},
	{"an id with a dot", "id", func(s *host.Spec) { s.ID = "good.card" }},
	{"an id that looks like another", "id", func(s *host.Spec) { s.ID = "gооd" }},
	{"an id without end", "id", func(s *host.Spec) { s.ID = strings.Repeat("x", 1<<20) }},
	{"a tenant that is a wildcard", "tenant", func(s *host.Spec) { s.Tenant = "*" }},
	{"a group that is a wildcard", "group", func(s *host.Spec) { s.Group = ">" }},
	{"a group with a dot", "group", func(s *host.Spec) { s.Group = "good.card" }},
	{"a key that is a header line", "key", func(s *host.Spec) { s.Key = "A: b\r\nC" }},
	{"a kind of code with a line", "MIME type", func(s *host.Spec) { s.MIMEType = "text/x-starlark\r\nA: b" }},
	{"a kind of code that does not exist", "no engine", func(s *host.Spec) { s.MIMEType = "application/x-sh" }},
	// What is granted to others.
	{"the neighbour's secret", "not granted", func(s *host.Spec) { s.Secrets = []string{"CARD"} }},
	{"the neighbour's secret in a header", "not granted", func(s *host.Spec) {
		s.Tenant, s.HTTP = "caller", host.HTTP{Allow: []string{"http://169.254.169.254/*"}, Secrets: []string{"CARD"}}
	}},
	{"a variable of the host", "not granted", func(s *host.Spec) { s.Env = []string{"HOST_TEST_CARD"} }},
	{"a library before all others", "not granted", func(s *host.Spec) { s.Env = []string{"LD_PRELOAD"} }},
	{"the role of a child", "not a name", func(s *host.Spec) { s.Env = []string{"LIFECYCLE_ENGINE"} }},
	{"a variable with a line", "not a name", func(s *host.Spec) { s.Env = []string{"A\nB"} }},
	{"variables without end", "more than 100", func(s *host.Spec) { s.Env = strings.Split(strings.Repeat("A ", 100_000), " ") }},
	{"URLs of others", "not granted", func(s *host.Spec) { s.HTTP = host.HTTP{Allow: []string{"https://example.com/*"}} }},
	{"all URLs", "http.allow", func(s *host.Spec) { s.HTTP = host.HTTP{Allow: []string{"https://*/*"}} }},
	{"code that is not signed", "not signed", func(s *host.Spec) { s.Tenant = "signed" }},
	{"a signature of its own", "not signed", func(s *host.Spec) { s.Tenant, s.Signature = "signed", make([]byte, 64) }},
	// Code and limits.
	{"code of the host's files", "not allowed", func(s *host.Spec) { s.Code, s.URL = nil, "file:///etc/passwd" }},
	{"code of the cloud's metadata", "not allowed", func(s *host.Spec) { s.Code, s.URL = nil, "http://169.254.169.254/latest" }},
	{"code of the host's network", "not allowed", func(s *host.Spec) { s.Code, s.URL = nil, "https://127.0.0.1/" }},
	{"code that is not what it says", "digest", func(s *host.Spec) { s.Digest = strings.Repeat("0", 64) }},
	{"code and a URL", "either Code or URL", func(s *host.Spec) { s.URL = "https://example.com/" }},
	{"code that is too large", "more than", func(s *host.Spec) { s.Code = make([]byte, 33<<20) }},
	{"limits that are negative", "negative", func(s *host.Spec) { s.Limits.Memory = -1 }},
	{"limits beyond those of the host", "time limit of 20s", func(s *host.Spec) {
		s.Limits.Time, s.Limits.Memory, s.Limits.Output, s.Limits.Outputs = 1<<62, 1<<62, 1<<62, 1<<30
		s.Code = []byte("def handle(m):\n    while True: pass")
	}},
	{"a rate that is negative", "rate", func(s *host.Spec) { s.Rate.Messages = -1 }},
	{"a canary of more than all", "rollout", func(s *host.Spec) { s.Rollout.Canary = 1000 }},
}), []against{
	output("the neighbour's topic", `{"topic": "work.good", "data": "forged"}`, "not granted"),
	output("the neighbour's outputs", `{"topic": "out.good", "data": "forged"}`, "not granted"),
	output("a dead letter of the neighbour", `{"topic": "$host.dead.t-good.good", "data": "{}"}`, "not for workers"),
	output("a line of the neighbour", `{"topic": "$host.lines.good", "data": "{}"}`, "not for workers"),
	output("code of the neighbour", `{"topic": "$host.code.good", "data": "{}"}`, "not for workers"),
	output("a timer of the neighbour", `{"topic": "$host.held.w-good", "data": "{}"}`, "not for workers"),
	output("a body of the neighbour", `{"topic": "$host.body.x", "data": "{}"}`, "not for workers"),
	output("a question to the hosts", `{"topic": "$host.ask.activity", "data": "{}"}`, "not for workers"),
	output("a member", `{"topic": "$KV.HOST_MEMBERS.a", "data": "{}"}`, "not for workers"),
	output("a deletion", `{"topic": "$JS.API.STREAM.DELETE.HOST_STATE", "data": ""}`, "not for workers"),
	output("a question to the server", `{"topic": "$SYS.REQ.SERVER.PING", "data": ""}`, "not for workers"),
	output("an acknowledgement", `{"topic": "$JS.ACK.WORK.HOST_w-good.1.1.1.0.0", "data": "+TERM"}`, "not for workers"),
	output("a topic that is a wildcard", `{"topic": "out.*", "data": ""}`, "not a topic"),
	output("a topic without a token", `{"topic": "out..evil", "data": ""}`, "not a topic"),
	output("a topic without end", `{"topic": "out." + "x" * 1000, "data": ""}`, "not a topic"),
	output("a topic that is no text", `{"topic": 1, "data": ""}`, "want text"),
	output("a field that does not exist", `{"reply": "work.good", "data": ""}`, "no key"),
	output("a list in a list", `[[[[[[[[[["x"]]]]]]]]]]`, "nests"),
	output("a path of a trace", header("Nats-Trace-Dest", "out.evil"), ""),
	output("an expected stream", header("nats-expected-stream", "HOST_STATE"), ""),
	output("an operation of a bucket", header("KV-Operation", "PURGE"), ""),
	output("a status", header("Status", "503"), ""),
	output("a redriven message", header("Lifecycle-For", "w-good"), ""),
	output("a message of a timer", header("lifecycle-timer", "card"), ""),
	output("a body elsewhere", header("Lifecycle-Body", "$host.body.x"), ""),
	output("a header with a colon", header("A:B", "x"), "not a header name"),
	output("a header that is no ASCII", header("Ä", "x"), "not a header name"),
	output("headers within headers", `{"data": "", "headers": {"A": [["x"]]}}`, "want text"),
	// What a worker keeps.
	keeps("a key that is a path", `state.put("../../good", "x")`, "state key"),
	keeps("a key that is empty", `state.put("", "x")`, "state key"),
	keeps("a key with a line", `state.put("a\r\nb", "x")`, "state key"),
	keeps("a key that looks like another", `state.put("cаrd", "x")`, "state key"),
	keeps("the key of the fence", `state.put("fence", "18446744073709551615")`, ""),
	keeps("keys without end", "for i in range(100000): state.put(str(i), '')", "state limit"),
	keeps("one large value", `state.put("x", "x" * (1 << 20))`, "state limit"),
	keeps("a value that changes", "while True: state.put('x', 'x' * 100000)", "time limit"),
	keeps("timers of one key", "for i in range(100000): timers.set(str(i), 1000, '')", "timers limit"),
	keeps("timers that it takes back", "for i in range(1 << 40):\n        timers.set(str(i), 1000, '')\n        timers.cancel(str(i))", "time limit"),
	keeps("a large timer", `timers.set("t", 1000, "x" * (1 << 20))`, "timer"),
	keeps("a timer that is negative", `timers.set("t", -1, "")`, "a delay of"),
	keeps("a timer in a million years", `timers.set("t", 1 << 62, "")`, "a delay of"),
	keeps("a timer without a name", `timers.set("", 1000, "")`, "timer"),
	keeps("a timer that sets itself", `timers.set("t", 0, "")`, ""),
	keeps("a reason without end", `reject("x" * (1 << 20))`, "rejected"),
	keeps("an error without end", `fail("x" * (1 << 20))`, ""),
	keeps("lines of the terminal", `print("\x1b[2J\x1b]0;x\x07\r" * 100)`, ""),
	keeps("a line of the neighbour", `print('x"} {"worker":"good","line":"y')`, ""),
	{
		name: "bus: it feeds itself", mime: starlarkCode, code: `def handle(m): return ["x", "x"]`, brief: true,
		spec: func(s *host.Spec) { s.OutputTopic = s.Topic },
	},
	{
		name: "bus: the neighbour's group", mime: starlarkCode, code: `def handle(m): return m.text`, brief: true,
		spec: func(s *host.Spec) { s.Group = "w-good" },
	},
}...)

type named struct {
	name, reason string
	spec         func(*host.Spec)
}

func specs(rows []named) []against {
	all := make([]against, len(rows))
	for i, row := range rows {
		all[i] = against{
			name: "spec: " + row.name, mime: starlarkCode, code: `def handle(m): return m.text`,
			spec: row.spec, reason: row.reason, brief: !strings.HasPrefix(row.reason, "time limit"),
		}
	}
	return all
}

// output is an attack by what a handler returns, of a tenant whose outputs are granted.
func output(name, result, reason string) against {
	return against{
		name: "output: " + name, mime: starlarkCode, code: "def handle(m): return " + result, brief: true, reason: reason,
		spec: func(s *host.Spec) { s.Tenant, s.Topic = "bound", "work.bound" },
	}
}

func header(name, value string) string {
	return fmt.Sprintf(`{"topic": "out.evil", "data": "x", "headers": {%q: %q}}`, name, value)
}

func keeps(name, body, reason string) against {
	return against{
		name: "keeps: " + name, mime: starlarkCode, code: "def handle(m):\n    " + body, brief: reason != "time limit", reason: reason,
		limits: limitsOf(reason),
	}
}
