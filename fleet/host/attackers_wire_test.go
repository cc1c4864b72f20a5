package host_test

// onTheWire returns code of a worker that writes to the connection of its child itself. raw writes
// bytes, frame a message of the protocol, and answer and call messages about the query in progress.
func onTheWire(body string) string {
	return inPython(`q = g["query"]
raw = lambda data: q._worker._connection.sendall(data)
frame = lambda type, **fields: raw(json.dumps({"type": type, **fields}).encode() + b"\n")
answer = lambda result, **fields: frame("complete", requestId=q.id, result=result, **fields)
call = lambda method, params, id="x": frame("call", requestId=q.id, callId=id, method=method, params=params)
` + body)
}

// attacksOnTheWire break the protocol between a host and its children, or say in it what no child
// would: docs/reference/procpool-wire.md.
var attacksOnTheWire = append(frames([][3]string{
	// Messages that the protocol does not have, or not now.
	{"a type that does not exist", `while True: frame("x")`, "had to ignore"},
	{"health without a check", `while True: frame("health_ok", uptime=1, queriesProcessed=1)`, "had to ignore"},
	{"ready again", `frame("ready", concurrency=1000)`, "said ready again"},
	{"goodbye", `frame("shutdown_ack")`, ""},
	{"messages of the host", `frame("query", requestId="q1", payload={}); frame("shutdown", graceful=True)`, ""},
	{"stacks that none asked for", `while True: frame("stacks", stacks="x" * 60000)`, ""},
	{"names of a session", `while True: frame("session", requestId=q.id, sessionId="x" * 60000)`, "time limit"},
	{"an answer to another query", `frame("complete", requestId="q4711", result={})`, "not given"},
	{"an answer to an earlier query", `while True: frame("complete", requestId="q1", result={"result": "forged"})`, "had to ignore"},
	{"an answer twice", `answer({"result": "once"}); answer({"result": "twice"})`, ""},
	{"a part after the answer", `answer({"result": "once"}); frame("message", requestId=q.id, content={"print": "late"})`, ""},
	{"an answer without an id", `frame("complete", result={})`, ""},
	{"an id that is a list", `frame("complete", requestId=[q.id], result={})`, ""},
	{"an id without end", `frame("complete", requestId="q" * 1000000, result={})`, ""},
	// Lines that are none.
	{"no JSON", `raw(b"{]\n")`, "protocol"},
	{"a list", `raw(b"[]\n")`, "protocol"},
	{"no UTF-8", `raw(b'{"type":"complete","requestId":"' + q.id.encode() + b'","result":{"result":"\xff\xfe"}}\n')`, "protocol"},
	{"a line that is cut", `raw(b'{"type":"complete","requ'); os._exit(0)`, "the process of the code ended"},
	{"a line without end", `while True: raw(b" " * 65536)`, "output limit"},
	{"empty lines", `while True: raw(b"\n" * 65536)`, "time limit"},
	{"a deep line", `raw(b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}\n")`, "protocol"},
	{"a number without end", `raw(b'{"type":"complete","requestId":"' + q.id.encode() + b'","result":{"result":' + b"9" * 100000 + b"}}\n")`, ""},
	{"fields without end", `raw(b'{' + b'"a":0,' * 300000 + b'"type":"x"}\n')`, ""},
	{"a byte a minute", `raw(b"{"); time.sleep(60)`, "time limit"},
	// Bytes beside a line.
	{"a negative length", `answer({}, bytes=-1)`, "protocol"},
	{"a length of 2^63", `answer({}, bytes=1 << 63)`, "protocol"},
	{"a length that is text", `answer({}, bytes="5")`, "protocol"},
	{"a length that is no whole number", `answer({}, bytes=0.5)`, "protocol"},
	{"bytes that do not come", `answer({}, bytes=1 << 20)`, "time limit"},
	{"bytes without a newline", `answer({}, bytes=1); raw(b"xx")`, "protocol"},
	{"bytes with an answer", `answer({"result": "once"}, bytes=1 << 20); raw(b"x" * (1 << 20) + b"\n")`, ""},
	{"bytes with each part", "while True:\n    frame('message', requestId=q.id, content={'print': ''}, bytes=1 << 20)\n    raw(b'x' * (1 << 20) + b'\\n')", ""},
	// Answers that are not what the host asked for.
	{"an answer that is null", `answer(None)`, "not an answer"},
	{"an answer that is text", `answer("x")`, "answer"},
	{"outputs that are text", `answer({"outputs": "x"})`, "answer"},
	{"an output to a wildcard", `answer({"outputs": [{"topic": "out.>", "data": "eA=="}]})`, "not a topic"},
	{"an output with a line in its topic", `answer({"outputs": [{"topic": "out.evil\r\nPUB out.good 1\r\nx", "data": "eA=="}]})`, "not a topic"},
	{"an output with a line in a header", `answer({"outputs": [{"headers": {"A": ["x\r\nNats-Rollup: all"]}, "data": "eA=="}]})`, "line break"},
	{"an output with a line in a header's name", `answer({"outputs": [{"headers": {"A\r\nB": ["x"]}, "data": "eA=="}]})`, "not a header name"},
	{"an output to the hosts", `answer({"outputs": [{"topic": "$host.state.w-good.card", "data": "eA=="}]})`, "not for workers"},
	{"more outputs than the limit", `answer({"outputs": [{}] * 1001})`, "outputs limit"},
	{"bytes that are not base64", `answer({"result": {"$bytes": "!"}})`, ""},
	{"a type of its own", `answer({"result": {"$type": "x" * 1000000}})`, ""},
	{"a limit of its own", `answer({"limit": "x" * 1000000, "error": "y" * 1000000})`, "output limit"},
	{"a reason of its own", `answer({"reject": "x" * 2000000})`, "rejected"},
	{"bad code in a message", `answer({"badCode": True, "error": "x" * 1000000})`, ""},
	{"that it has loaded nothing", `answer({"empty": True})`, ""},
	{"answers to messages that it does not have", "for i in range(100):\n    frame('message', requestId=q.id, content={'answer': {'result': 'once'}})", ""},
	{"a part that is nothing", "while True:\n    frame('message', requestId=q.id, content={})", ""},
	// Calls.
	{"a call for another query", `frame("call", requestId="q4711", callId="1", method="get", params={"key": "card"})`, "not given"},
	{"a call without a message", `call("get", {"i": 99, "key": "card"})`, ""},
	{"a call with a negative message", `call("get", {"i": -1, "key": "card"})`, ""},
	{"a call of a method that does not exist", `q.call("exec", {"key": "id"})`, "there is no"},
	{"a call with a large id", `call("get", {"key": "x"}, "i" * 100000)`, "protocol"},
	{"a call with a large method", `call("m" * 100000, {})`, ""},
	{"a call with a list", `q.call("get", [1, 2, 3])`, "cannot unmarshal"},
	{"a call without a value", `q.call("put", {"key": "x"}); q.call("fetch", {})`, "no request"},
	{"calls with one id", "for i in range(64):\n    call('get', {'key': 'x'})", ""},
	{"a call with values without end", `call("get", {"key": "x", "more": [0] * 500000})`, ""},
	{"a request with headers without end", `q.call("fetch", {"request": {"url": "http://x/", "headers": {str(i): ["x"] for i in range(5000)}}})`, "limit"},
	{"the state of another worker", `return str([q.call("get", {"key": k}) for k in ("card", "../good/card", "w-good.card")])`, "state key"},
	{"a timer after no number", `q.call("timer.set", {"key": "t", "after": 1e308})`, "timer.set"},
	{"a timer before time began", `q.call("timer.set", {"key": "t", "at": -1e308})`, "timer.set"},
	{"a timer with both times", `q.call("timer.set", {"key": "t", "after": 1, "at": 1})`, "either a delay or a time"},
	{"a timer with a wildcard", `q.call("timer.set", {"key": "*.>", "after": 1000})`, ""},
	{"the timer of another worker", `q.call("timer.cancel", {"key": "card"}); return str(len(timers.list()))`, ""},
	// The connection itself.
	{"the end of the connection", `q._worker._connection.shutdown(2)`, ""},
	{"descriptors through the connection", "import socket\nwhile True:\n    socket.send_fds(q._worker._connection, [b'\\n'], [0] * 100)", ""},
	{"a reader that does not read", "import lifecycle_worker\nlifecycle_worker._Worker._read = lambda w: time.sleep(60)\nstate.get('x')", "time limit"},
}), against{
	name: "frames: calls whose answers five do not read", mime: pythonCode, workers: 5, limits: quick,
	code: onTheWire("state.put('x', 'x' * (900 << 10))\nwhile True:\n    call('get', {'key': 'x'})"),
})

// frames returns the attacks of rows: a name, the code and how it ends. Those that end at once are brief.
func frames(rows [][3]string) []against {
	all := make([]against, len(rows))
	for i, row := range rows {
		all[i] = against{
			name: "frames: " + row[0], mime: pythonCode, code: onTheWire(row[1]), reason: row[2], limits: limitsOf(row[2]),
			brief: row[2] != "" && row[2] != "time limit",
		}
	}
	return all
}
