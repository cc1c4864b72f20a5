package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Client is a program that sends requests.
type Client struct {
	Name string
	TLS  bool // the server serves TLS, so that the client chooses HTTP/2 if it can
	GRPC bool // the server serves gRPC
	// ProxyOnly clients only send requests through proxies.
	ProxyOnly bool
	Program   string // what has to be installed
	// Command is the program with its first arguments. URL, number of workers, seconds
	// and the longest pause of a worker in milliseconds are put behind it. TESTDATA and
	// TEMP begin paths.
	Command []string
	// Check is a command that succeeds when the client can run.
	Check []string
}

const (
	node20 = "node"
	node26 = "TESTDATA/node/node_modules/.bin/node"
	python = "/usr/bin/python3" // Debian's packages are for this one
)

func nodeClient(name, node, kind string, tls bool) Client {
	return Client{
		Name: name, TLS: tls, Program: "node",
		Command: []string{node, "TESTDATA/node/client.mjs", kind},
		Check:   []string{"test", "-e", "TESTDATA/node/node_modules/.package-lock.json"},
	}
}

func pythonClient(name, kind, module string, tls bool) Client {
	return Client{
		Name: name, TLS: tls, Program: python,
		Command: []string{python, "TESTDATA/python/client.py", kind},
		Check:   []string{python, "-c", "import " + module},
	}
}

func goClient(name, kind string, tls bool) Client {
	return Client{Name: name, TLS: tls, Program: "go", Command: []string{"TEMP/goclient", kind}}
}

func programClient(name, kind, program string, tls bool) Client {
	return Client{Name: name, TLS: tls, Program: program, Command: []string{python, "TESTDATA/python/programs.py", kind}}
}

func javaClient(name, kind string, tls bool) Client {
	return Client{
		Name: name, TLS: tls, Program: "javac",
		Command: []string{"java", "TESTDATA/java/Client.java", kind},
	}
}

func browserClient(name, kind string, tls bool) Client {
	return Client{Name: name, TLS: tls, Program: "chromium", Command: []string{node20, "TESTDATA/browser/client.mjs", kind}}
}

// All returns the clients.
func All() []Client {
	grpcOf := func(c Client) Client { c.GRPC = true; return c }
	return []Client{
		goClient("Go h1", "h1", false),
		goClient("Go h1 TLS", "h1", true),
		goClient("Go h2", "h2", true),
		nodeClient("Node 20 fetch", node20, "fetch", true),
		nodeClient("Node 26 fetch", node26, "fetch", true),
		nodeClient("undici 7 request", node20, "undici7-request", true),
		nodeClient("undici 7 fetch", node20, "undici7-fetch", true),
		nodeClient("undici 7 h1", node20, "undici7-h1", false),
		nodeClient("undici 8 request", node26, "undici8-request", true),
		nodeClient("undici 8 fetch", node26, "undici8-fetch", true),
		nodeClient("node:http2 20", node20, "http2", true),
		nodeClient("node:http2 26", node26, "http2", true),
		nodeClient("node:http agent", node20, "agent", false),
		pythonClient("httpx h2", "httpx-h2", "h2", true),
		pythonClient("httpx h1", "httpx", "httpx", false),
		pythonClient("aiohttp", "aiohttp", "aiohttp", false),
		pythonClient("requests", "requests", "requests", false),
		programClient("curl h1", "curl", "curl", false),
		programClient("curl h2", "curl", "curl", true),
		programClient("curl --parallel h2", "curl-parallel", "curl", true),
		programClient("h2load h1", "h2load-h1", "h2load", false),
		programClient("h2load h2", "h2load", "h2load", true),
		javaClient("Java h1", "h1", false),
		javaClient("Java h2", "h2", true),
		{Name: "Ruby net/http", Program: "ruby", Command: []string{"ruby", "TESTDATA/ruby/client.rb", "net-http"}},
		browserClient("Chromium fetch", "fetch", true),
		browserClient("Chromium websocket", "websocket", false),
		browserClient("Chromium EventSource", "events", true),
		grpcOf(goClient("gRPC Go", "grpc", true)),
		{Name: "gRPC Go clear", GRPC: true, ProxyOnly: true, Program: "go", Command: []string{"TEMP/goclient", "grpc"}},
		grpcOf(pythonClient("gRPC Python", "grpc", "grpc", true)),
		grpcOf(nodeClient("gRPC Node", node20, "grpc", true)),
	}
}

// Load is how a client sends requests.
type Load struct {
	Workers int
	Length  time.Duration
	Pause   time.Duration // a worker pauses up to this long between two requests
}

// Said is what a client said at its end.
type Said struct {
	Sent   int            `json:"sent"`
	Failed int            `json:"failed"`
	Errors map[string]int `json:"errors"`
	// At has the times of each error, in milliseconds since the client began.
	At   map[string][]int64 `json:"at,omitempty"`
	Note string             `json:"note"`
}

// refused matches the errors of requests whose connection was refused: no server
// accepted it, and nothing was sent.
var refused = regexp.MustCompile(`(?i)CONNECTION_REFUSED|ECONNREFUSED|connection refused|ConnectException|Failed to connect|` +
	`All connection attempts failed|Cannot connect to host`)

// split returns the errors of requests that were lost, and how many requests were not: they
// were refused, or failed when no server was left, later than end.
func (s Said) split(end time.Duration) (lost map[string]int, notLost int) {
	lost = make(map[string]int)
	for text, times := range s.At {
		for _, at := range times {
			if refused.MatchString(text) || at > end.Milliseconds() {
				notLost++
			} else {
				lost[text]++
			}
		}
	}
	return lost, notLost
}

// run runs the client until it ends, and returns what it said. It calls began when the
// client begins to send.
func (c Client) run(ctx context.Context, b *bench, url string, load Load, began func()) (Said, error) {
	var said Said
	args := b.paths(c.Command)
	args = append(args, url, fmt.Sprint(load.Workers), fmt.Sprint(load.Length.Seconds()), fmt.Sprint(load.Pause.Milliseconds()))
	ctx, cancel := context.WithTimeout(ctx, load.Length+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	ca := filepath.Join(b.temp, "ca.pem")
	cmd.Env = append(os.Environ(), "TMPDIR="+b.temp, "NODE_EXTRA_CA_CERTS="+ca, "SSL_CERT_FILE="+ca, "REQUESTS_CA_BUNDLE="+ca, "CURL_CA_BUNDLE="+ca)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return said, err
	}
	group(cmd)
	if err := cmd.Start(); err != nil {
		return said, err
	}
	defer func() { _ = killGroup(cmd) }()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err == nil && line == "began\n" {
		began()
		err = json.NewDecoder(lines).Decode(&said)
	}
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return said, fmt.Errorf("client %s said %q: %w: %s", c.Name, line, err, tail(stderr.String()))
	}
	return said, nil
}

func tail(text string) string {
	const most = 2000
	if len(text) > most {
		text = "… " + text[len(text)-most:]
	}
	return strings.TrimSpace(text)
}

// Missing returns why the client cannot run here, or "".
func (c Client) Missing(b *bench) string {
	if _, err := exec.LookPath(c.Program); err != nil {
		return fmt.Sprintf("there is no %s here", c.Program)
	}
	if len(c.Check) == 0 {
		return ""
	}
	check := b.paths(c.Check)
	if out, err := exec.Command(check[0], check[1:]...).CombinedOutput(); err != nil {
		return fmt.Sprintf("%s: %v: %s", strings.Join(check, " "), err, tail(string(out)))
	}
	return ""
}
