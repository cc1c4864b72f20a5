// Package conformance checks a worker program, in any language, against the wire
// contract of a process pool (docs/reference/procpool-wire.md). It acts as the pool, starts one
// process for each check, and says what is wrong and what would be right.
//
// The command procpool/cmd/conformance runs it.
package conformance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Config describes the program to check.
type Config struct {
	// Command makes the command of the worker. It is called for each check.
	Command func() *exec.Cmd
	// Query is a payload that the worker answers soon, with a result or an
	// error. Defaults to {}.
	Query json.RawMessage
	// Slow is a payload that keeps the worker busy until it is cancelled. Without
	// it Run skips the checks that need it.
	Slow json.RawMessage
	// Stream is a payload for which the worker sends at least 8 MB of messages,
	// unless it is cancelled. Without it Run skips the check that needs it.
	Stream json.RawMessage
	// Timeout is how long the worker may take for each step. Defaults to 10 s.
	Timeout time.Duration
}

// Result is the result of one check.
type Result struct {
	Check   string        // the rule
	Skipped string        // why the check was skipped, "" when it was made
	Err     error         // what is wrong, nil when nothing is
	Stderr  string        // the end of the worker's standard error, when something is wrong
	Took    time.Duration // how long the check took
}

// check is one of the contract's rules.
type check struct {
	name  string
	needs need
	run   func(*rig)
	limit int // of a line; 0 for the default
}

// need says what a check needs in addition to Query. Its text is the reason for which a check
// without that is skipped.
type need string

const (
	slow   need = "it needs a payload that keeps the worker busy"
	stream need = "it needs a payload that the worker streams a lot for"
	dumps  need = "the worker does not announce stacks"
	takes  need = "the worker does not announce bytes"
)

const small = 4 << 10 // the limit of a line in a check

var checks = []check{
	{name: "it connects and says ready first, and once", run: turn},
	{name: "a query is answered with its requestId, by one complete or error", run: answers},
	{name: "many queries are answered, one after the other", run: many},
	{name: "messages may come in pieces, and several at once", run: pieces},
	{name: "fields come in any order, with space, escapes and unknown fields", run: spelling},
	{name: "unknown types are ignored", run: unknown},
	{name: "a cancel for a query that it does not have is ignored", run: cancelUnknown},
	{name: "a payload of a megabyte is taken", run: large},
	{name: "text in any language and with any escape is taken, and its answer is UTF-8", run: texts},
	{name: "a query that is nested 10,000 deep is answered, and the next one too", run: nested},
	{name: "it sends no line over the limit, and answers with an error instead", run: ownLimit, limit: small},
	{name: "health_check is answered by health_ok", run: health},
	{name: "dump is answered by stacks", needs: dumps, run: dump},
	{name: "bytes after a query are taken, all at once and in pieces", needs: takes, run: bytesAfterQuery},
	{name: "line and bytes together are not over the limit, and it answers with an error instead",
		needs: takes, run: ownLimitWithBytes, limit: small},
	{name: "shutdown is answered by shutdown_ack, and the process exits with code 0", run: shutDown},
	{name: "the process exits when it gets SIGTERM", run: terminate},
	{name: "the process exits when the pool's connection ends", run: eof},
	{name: "it reads while its writes block", needs: stream, run: readsWhileItWrites},
	{name: "a health_check is answered while a query runs", needs: slow, run: healthWhileBusy},
	{name: "a cancelled query is confirmed by complete or error, and the next one answered", needs: slow, run: cancelled},
	{name: "a query beyond its concurrency, one when it says none, is refused with an error", needs: slow, run: busy},
	{name: "a shutdown that is graceful waits for the query that runs", needs: slow, run: gracefulWhileBusy},
	{name: "a shutdown that is not graceful does not wait", needs: slow, run: shutdownWhileBusy},
	{name: "the process exits when the pool's connection ends while a query runs", needs: slow, run: eofWhileBusy},
}

// Run makes all checks and returns their results. It returns an error when it could
// not check anything, because it could not make a socket. Cancelling ctx ends it
// early.
func Run(ctx context.Context, cfg Config) ([]Result, error) {
	if cfg.Command == nil {
		return nil, errors.New("conformance: Command is nil, want a function that makes the command of a worker")
	}
	if cfg.Query == nil {
		cfg.Query = json.RawMessage("{}")
	}
	for name, payload := range map[string]json.RawMessage{"Query": cfg.Query, "Slow": cfg.Slow, "Stream": cfg.Stream} {
		if err := wire.CheckValue(payload); err != nil && (name == "Query" || payload != nil) {
			return nil, fmt.Errorf("conformance: %s: %w", name, err)
		}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Second
	}
	dir, err := os.MkdirTemp("", "conform")
	if err != nil {
		return nil, fmt.Errorf("conformance: make a folder for sockets: %w", err)
	}
	defer os.RemoveAll(dir)
	var results []Result
	for i, c := range checks {
		if err := ctx.Err(); err != nil {
			return results, context.Cause(ctx)
		}
		result := Result{Check: c.name}
		if c.needs == slow && cfg.Slow == nil || c.needs == stream && cfg.Stream == nil {
			result.Skipped = string(c.needs)
		} else {
			began := time.Now()
			result.Stderr, result.Err = one(ctx, cfg, filepath.Join(dir, fmt.Sprintf("%d.sock", i)), c)
			result.Took = time.Since(began)
		}
		if errors.Is(result.Err, errSkipped) {
			result.Skipped, result.Err = string(c.needs), nil
		}
		results = append(results, result)
	}
	return results, nil
}

// one makes one check with its own process.
func one(ctx context.Context, cfg Config, socket string, c check) (stderr string, err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	file, err := os.CreateTemp(filepath.Dir(socket), "stderr")
	if err != nil {
		return "", err
	}
	defer file.Close()
	cmd := cfg.Command()
	if cmd == nil {
		return "", errors.New("the command is nil: Config.Command must return a worker's command")
	}
	cmd.Stderr = file
	limit := cmp.Or(c.limit, wire.DefaultMaxFrame)
	p := worker.NewProcess("worker", cmd, worker.WithGrace(time.Second), worker.WithEnv(
		wire.EnvSocket+"="+socket,
		wire.EnvName+"=conformance/1",
		wire.EnvMaxFrame+"="+strconv.Itoa(limit),
		wire.EnvVersion+"="+strconv.Itoa(wire.Version)))
	if err := p.Start(ctx); err != nil {
		return "", err
	}
	defer func() { _ = p.Stop(context.Background()) }()
	r := &rig{cfg: cfg, process: p, limit: limit}
	if err = r.run(l, c); err != nil {
		text, _ := os.ReadFile(file.Name())
		stderr = strings.TrimSpace(string(text[max(0, len(text)-2000):]))
	}
	return stderr, err
}
