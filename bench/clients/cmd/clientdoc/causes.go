package main

import "regexp"

// cause is why requests were lost. Those of HTTP/2 with undici, Node, Chromium, Java and
// Apache were seen in captures; the others are what the client's error says, and what the code of
// the server or of the client does then. A loss without a cause is on the page as "not found out".
type cause struct {
	who  *regexp.Regexp // clients, or scenarios of proxies
	text *regexp.Regexp // what they said
	why  string
	set  string // what the user of the client can set
}

// causes are in the order of the page. The first one that matches counts.
var causes = []cause{
	{
		regexp.MustCompile(`^(undici 7 (request|fetch))$`),
		regexp.MustCompile(`"GOAWAY" frame received`),
		"undici 7 fails every request that is in flight on a session when GOAWAY comes, also those that the server answers.",
		"`request` of undici 8, or `interceptors.retry()` for what may be sent twice, or HTTP/1.1 (`allowH2: false`, the default)",
	},
	{
		regexp.MustCompile(`^(undici 8 fetch|Node 26 fetch)$`),
		regexp.MustCompile(`frameError|"GOAWAY" frame received`),
		"The request was put on the session in the moment in which GOAWAY arrived, and never sent. `fetch` of undici 8 fails it.",
		"`request` of undici 8 sends it on a new session. The error may be retried: the server has not seen the request.",
	},
	{
		regexp.MustCompile(`^node:http2`),
		regexp.MustCompile(`REFUSED_STREAM`),
		"The request was put on the session in the moment in which GOAWAY arrived, and never sent. node:http2 says so with `NGHTTP2_REFUSED_STREAM`.",
		"send it again on a new session: the server has not seen it",
	},
	{
		regexp.MustCompile(`^httpx h2$`),
		regexp.MustCompile(`ConnectionTerminated|LocalProtocolError`),
		"After a GOAWAY the pool of this httpcore goes on choosing the same connection for as long as requests overlap, and h2 refuses each of them.",
		"HTTP/1.1, the default of httpx",
	},
	{
		regexp.MustCompile(`^Go h2$`),
		regexp.MustCompile(`cannot rewind body`),
		"net/http gave the request to a connection and had not sent it when GOAWAY came; it repeats only a body that it can read again (golang/go#62450).",
		"a body with `GetBody`: `strings.Reader`, `bytes.Reader`, `bytes.Buffer`",
	},
	{
		regexp.MustCompile(`^Java h2$`),
		regexp.MustCompile(`EOF reached while reading|GOAWAY|IOException`),
		"The client of Java 17 opens streams after it has read GOAWAY (JDK-8335181, repaired in later releases).",
		"a later Java, or `Version.HTTP_1_1`",
	},
	{
		regexp.MustCompile(`^Chromium fetch$`),
		regexp.MustCompile(`ERR_`),
		"The request was put on the session in the moment in which GOAWAY arrived, and never sent.",
		"nothing; a page can repeat what may be sent twice",
	},
	{
		regexp.MustCompile(`^Chromium websocket$`),
		regexp.MustCompile(`1001`),
		"The message was on its way when the server closed the websocket with 1001: a websocket cannot say which message was the last one. " +
			"This handler closes the socket as soon as it is told. One that says a goodbye of its own, and answers until its client has closed, " +
			"has a second for that (`chat` in deploy/e2e/app).",
		"a drain window (`drain_interval`) as long as the balancer's lag; send a message without an answer again after 1001, on the next socket",
	},
	{
		regexp.MustCompile(`^Chromium websocket$`),
		regexp.MustCompile(`1006`),
		"Shutdown leaves websockets alone. The end of the process cuts them, with a message in flight or without.",
		"send a message without an answer again",
	},
	{
		regexp.MustCompile(`^Apache h2`),
		regexp.MustCompile(`50\d`),
		"mod_proxy_http2 reads an idle connection only when it uses it again. It finds the GOAWAY behind the request that it has just given to it, and answers 502.",
		"HTTP/1.1 to the server (`http://`)",
	},
	{
		regexp.MustCompile(`h1|agent|fetch|requests|aiohttp|Ruby|nginx|HAProxy|Apache|Caddy`),
		regexp.MustCompile(`(?i)EOF|closed idle|reset by peer|other side closed|ECONNRESET|socket hang up|aborted|Disconnected|` +
			`without response|received no bytes|Empty reply|broken pipe|bad file descriptor|ConnectionReset`),
		"HTTP/1.1: Shutdown closes idle connections, and drops a request that is on its way on one of them (golang/go#75591). " +
			"An App says `Connection: close` in a response first.",
		"retries, for what may be sent twice",
	},
}

// causeOf returns the index of the cause, or their number when there is none.
func causeOf(who, text string) int {
	for i, c := range causes {
		if c.who.MatchString(who) && c.text.MatchString(text) {
			return i
		}
	}
	return len(causes)
}
