//go:build unix

package conformance_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/conformance"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"go.uber.org/goleak"
)

const helperEnv = "CONFORMANCE_TEST_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperEnv); mode != "" {
		wrong(mode)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// TestShippedWorkersConform checks the workers' sides in Go, Python, Node and Ruby
// against the contract.
func TestShippedWorkersConform(t *testing.T) {
	example := filepath.Join(t.TempDir(), "example")
	if out, err := exec.Command("go", "build", "-o", example, "../child/example").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, args := range map[string][]string{
		"go": {example}, "go with several": {example, "3"}, "python with several": {"python3", "../sdk/python/example.py", "3"}, "node with several": {"node", "../sdk/node/example.mjs", "3"}, "ruby": {"ruby", "../sdk/ruby/example.rb"}, "ruby with several": {"ruby", "../sdk/ruby/example.rb", "3"}, "python": {"python3", "../sdk/python/example.py"}, "node": {"node", "../sdk/node/example.mjs"},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "go" {
				t.Skip("-short: in a short run Go stands for all languages")
			}
			if _, err := exec.LookPath(args[0]); err != nil {
				t.Skipf("%s is not on this machine: %v", args[0], err)
			}
			results, err := conformance.Run(t.Context(), conformance.Config{
				Command: func() *exec.Cmd { return exec.Command(args[0], args[1:]...) },
				Slow:    json.RawMessage(`{"op":"sleep","seconds":3600}`), Timeout: time.Minute,
				Stream: json.RawMessage(`{"op":"count","n":200000}`),
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				if r.Err != nil || r.Skipped != "" && !(strings.HasPrefix(name, "node") && strings.HasPrefix(r.Check, "dump ")) {
					t.Errorf("%s: %v %s\n%s", r.Check, r.Err, r.Skipped, r.Stderr)
				}
			}
			if len(results) == 0 {
				t.Error("there were no checks")
			}
		})
	}
}

// wrong is a worker that breaks one rule.
func wrong(mode string) {
	if mode == "exits" {
		fmt.Fprintln(os.Stderr, "cannot find my model")
		os.Exit(4)
	}
	if mode == "deaf" {
		time.Sleep(time.Hour)
	}
	conn, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
	if err != nil {
		panic(err)
	}
	say := func(format string, args ...any) { fmt.Fprintf(conn, format+"\n", args...) }
	if mode == "no ready" {
		say(`{"type":"health_ok","uptime":0,"queriesProcessed":0}`)
	}
	switch mode {
	case "promises":
		say(`{"type":"ready","capabilities":["telepathy"]}`)
	case "is too new":
		say(`{"type":"ready","version":2}`)
	case "ignores SIGTERM":
		signal.Ignore(syscall.SIGTERM)
	}
	switch mode {
	case "reads bytes as lines", "lies about bytes":
		say(`{"type":"ready","capabilities":["bytes"]}`)
	default:
		say(`{"type":"ready"}`)
	}
	if mode == "ready twice" {
		say(`{"type":"ready"}`)
	}
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if mode == "stays" {
				time.Sleep(time.Hour)
			}
			os.Exit(1)
		}
		var e wire.Envelope
		if err := wire.Decode(line, &e); err != nil {
			continue
		}
		switch e.Type { //nolint:exhaustive // what the pool says
		case wire.Query:
			id, _ := json.Marshal(e.RequestID)
			switch mode {
			case "other id":
				say(`{"type":"complete","requestId":"x","result":1}`)
			case "no result":
				say(`{"type":"complete","requestId":%s}`, id)
			case "answers twice":
				say(`{"type":"complete","requestId":%s,"result":1}`, id)
				say(`{"type":"complete","requestId":%s,"result":1}`, id)
			case "python repr":
				say(`{'type':'complete','requestId':%s,'result':1}`, id)
			case "bytes unannounced":
				say(`{"type":"complete","requestId":%s,"result":1,"bytes":1}`+"\nx", id)
			case "lies about bytes":
				say(`{"type":"complete","requestId":%s,"result":1,"bytes":1}`+"\nxy", id)
			case "no newline":
				fmt.Fprintf(conn, `{"type":"complete","requestId":%s,"result":1}`, id)
				conn.Close()
				time.Sleep(time.Hour)
			case "ends":
				os.Exit(9)
			case "too long":
				say(`{"type":"complete","requestId":%s,"result":%s}`, id, e.Payload)
			case "not UTF-8":
				say("{\"type\":\"complete\",\"requestId\":%s,\"result\":\"\xff\"}", id)
			case "cannot nest":
				if bytes.Contains(line, []byte("[[[[")) {
					panic("too deep")
				}
				say(`{"type":"complete","requestId":%s,"result":1}`, id)
			default:
				say(`{"type":"complete","requestId":%s,"result":1}`, id)
			}
		case wire.HealthCheck:
			if mode == "health as text" {
				say(`{"type":"health_ok","uptime":"1s","queriesProcessed":0}`)
			} else {
				say(`{"type":"health_ok","uptime":1,"queriesProcessed":0}`)
			}
		case wire.Shutdown:
			if mode != "no ack" {
				say(`{"type":"shutdown_ack"}`)
			}
			if mode == "exit code" {
				os.Exit(3)
			}
			return
		default:
			if mode == "hates the unknown" && e.Type != wire.Cancel {
				os.Exit(1)
			}
		}
	}
}

func TestWrongWorkersAreToldWhatIsWrong(t *testing.T) {
	for mode, want := range map[string]string{
		"right":                "",
		"exits":                "exit code 4",
		"deaf":                 "it has to connect to the unix socket whose path is in " + wire.EnvSocket,
		"no ready":             `its first message is "health_ok"`,
		"ready twice":          `it sent ready while "c1" was waited for`,
		"other id":             `requestId "x", want "c1"`,
		"no result":            "a complete without result",
		"answers twice":        `it sent complete "c1", want health_ok`,
		"python repr":          "not JSON",
		"no newline":           "its last line has no newline",
		"ends":                 "it closed its connection",
		"health as text":       "uptime of a health_ok is of type string, want number",
		"no ack":               "wait for shutdown_ack: it closed its connection",
		"exit code":            "exit code 3, want exit code 0",
		"stays":                "the process still runs after",
		"hates the unknown":    "it closed its connection",
		"too long":             "sends no line over the limit, and answers with an error instead: a query of 4096 bytes, the limit: wait for the complete or error of \"c1\": a line is longer than 4096 bytes",
		"ignores SIGTERM":      "exits when it gets SIGTERM: the process still runs",
		"not UTF-8":            "not UTF-8",
		"cannot nest":          "nested 10,000 deep is answered, and the next one too: wait for the complete or error of \"c1\": it closed its connection",
		"promises":             "telepathy",
		"bytes unannounced":    `its complete has 1 bytes after it, and its ready does not announce the capability "bytes"`,
		"lies about bytes":     "after the 1 bytes that its line announced came \"y\", want a newline",
		"reads bytes as lines": `bytes after a query are taken, all at once and in pieces: the query after`,
		"is too new":           "version of a ready is 2, want 1 or less",
	} {
		t.Run(mode, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			run := func(timeout time.Duration) string {
				results, err := conformance.Run(t.Context(), conformance.Config{Timeout: timeout, Command: func() *exec.Cmd {
					cmd := exec.Command(self)
					cmd.Env = append(os.Environ(), helperEnv+"="+mode, "GORACE=atexit_sleep_ms=0")
					return cmd
				}})
				if err != nil {
					t.Fatal(err)
				}
				var wrong []string
				for _, r := range results {
					if r.Err != nil {
						wrong = append(wrong, r.Check+": "+r.Err.Error()+" "+r.Stderr)
					}
				}
				return strings.Join(wrong, "\n")
			}
			timeout := time.Minute
			if mode == "deaf" || mode == "stays" || mode == "ready twice" || mode == "ignores SIGTERM" {
				timeout = 200 * time.Millisecond // the worker never sends it
			}
			all := run(timeout)
			for !strings.Contains(all, want) && timeout < 20*time.Second { // a busy machine takes longer to start it
				timeout *= 5
				all = run(timeout)
			}
			if (want == "") != (all == "") || !strings.Contains(all, want) {
				t.Errorf("want %q in\n%s", want, all)
			}
			if mode == "exits" && !strings.Contains(all, "cannot find my model") {
				t.Errorf("its standard error is missing:\n%s", all)
			}
		})
	}
}

func TestRunRefuses(t *testing.T) {
	for want, cfg := range map[string]conformance.Config{
		"Command": {},
		"Query":   {Command: func() *exec.Cmd { return nil }, Query: json.RawMessage("{")},
		"Slow":    {Command: func() *exec.Cmd { return nil }, Slow: json.RawMessage("{")},
	} {
		if _, err := conformance.Run(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
