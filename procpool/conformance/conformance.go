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
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
	run   func(*rig) error
	limit int // of a line; 0 for the default
}

// need says what a check needs in addition to Query. Its text is the reason for which a check
// without that is skipped.
type need string

const (
	nothing need = ""
	slow    need = "it needs a payload that keeps the worker busy"
	stream  need = "it needs a payload that the worker streams a lot for"
	dumps   need = "the worker does not announce stacks"
	takes   need = "the worker does not announce bytes"
)

const small = 4 << 10 // the limit of a line in a check

var checks = []check{
	{name: "it connects and says ready first, and once", run: readyOnce},
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
	{name: "shutdown is answered by shutdown_ack, and the process exits with code 0", run: shutdown},
	{name: "the process exits when it gets SIGTERM", run: terminate},
	{name: "the process exits when the pool's connection ends", run: eof},
	{name: "it reads while its writes block", needs: stream, run: readsWhileItWrites},
	{name: "a health_check is answered while a query runs", needs: slow, run: healthWhileBusy},
	{name: "a cancelled query is confirmed by complete or error, and the next one answered", needs: slow, run: cancel},
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
	if err = r.accept(l); err == nil {
		defer r.conn.Close()
		err = c.run(r)
	}
	if err != nil {
		text, _ := os.ReadFile(file.Name())
		stderr = strings.TrimSpace(string(text[max(0, len(text)-2000):]))
	}
	return stderr, err
}

// rig is the pool, as one worker sees it.
type rig struct {
	cfg     Config
	process *worker.Process
	conn    *net.UnixConn
	reader  *wire.Reader
	writer  *wire.Writer
	id      int
	limit   int // of a line
	offer   wire.Offer
}

func (r *rig) accept(l *net.UnixListener) error {
	arrived := make(chan error, 1)
	_ = l.SetDeadline(time.Now().Add(r.cfg.Timeout))
	go func() {
		conn, err := l.AcceptUnix()
		r.conn = conn
		arrived <- err
	}()
	var err error
	select {
	case err = <-arrived:
	case <-r.process.Done():
		l.Close()
		if err = <-arrived; err != nil {
			return fmt.Errorf("the process has ended before it connected (%s); "+
				"it has to connect to the unix socket whose path is in %s", r.ended(), wire.EnvSocket)
		}
	}
	if err != nil {
		return fmt.Errorf("it has not connected within %v; "+
			"it has to connect to the unix socket whose path is in %s", r.cfg.Timeout, wire.EnvSocket)
	}
	r.reader, r.writer = wire.NewReader(r.conn, r.limit), wire.NewWriter(r.conn, r.limit)
	e, err := r.next()
	if err != nil {
		return fmt.Errorf(`wait for {"type":"ready"}: %w`, err)
	}
	if e.Type != wire.Ready {
		return fmt.Errorf(`its first message is %q, want {"type":"ready"}`, e.Type)
	}
	r.offer = e.Offer
	return nil
}

func (r *rig) ended() string {
	if exit := r.process.State().Exit; exit != nil {
		if exit.Signal != "" {
			return exit.Signal
		}
		return fmt.Sprintf("exit code %d", exit.Code)
	}
	return "it runs"
}

// next returns the worker's next message. It must fit its schema and be one that
// workers send.
func (r *rig) next() (wire.Envelope, error) {
	var e wire.Envelope
	_ = r.conn.SetReadDeadline(time.Now().Add(r.cfg.Timeout))
	line, err := r.reader.Next()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return e, fmt.Errorf("nothing came within %v", r.cfg.Timeout)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return e, fmt.Errorf("its last line has no newline: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET): // a reset when the worker left bytes unread
		return e, errClosed
	case err != nil:
		return e, err
	}
	if err := wire.Validate(line); err != nil {
		return e, err
	}
	if err = wire.Decode(line, &e); err == nil && e.Length > 0 {
		err = r.bytesOf(&e)
	}
	switch e.Type { //nolint:exhaustive // the others are right
	case wire.Query, wire.Cancel, wire.Shutdown, wire.HealthCheck, wire.Dump, wire.Reply:
		err = fmt.Errorf("it sent %q, which only the pool does", e.Type)
	}
	return e, err
}

var errSkipped = errors.New("it does not announce that")

var errClosed = errors.New("it closed its connection")

// ask sends a query under a new id.
func (r *rig) ask(payload json.RawMessage) (id string, err error) {
	r.id++
	id = fmt.Sprintf("c%d", r.id)
	return id, r.write(func() error { return r.writer.Query(id, payload, nil, wire.About{}) })
}

func (r *rig) write(send func() error) error {
	_ = r.conn.SetWriteDeadline(time.Now().Add(r.cfg.Timeout))
	if err := send(); err != nil {
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			err = errClosed
		}
		return fmt.Errorf("it does not take messages: %w", err)
	}
	return nil
}

// answer waits for the end of a query. Its session and messages may come first.
func (r *rig) answer(id string) error {
	for {
		e, err := r.next()
		if err != nil {
			return fmt.Errorf("wait for the complete or error of %q: %w", id, err)
		}
		switch e.Type { //nolint:exhaustive // anything else is wrong
		case wire.Session, wire.Message, wire.Complete, wire.Error:
			if e.RequestID != id {
				return fmt.Errorf("it sent a %s with requestId %q, want %q", e.Type, e.RequestID, id)
			}
		default:
			return fmt.Errorf("it sent %s while %q was waited for", e.Type, id)
		}
		if e.Type == wire.Complete || e.Type == wire.Error {
			return nil
		}
	}
}

// turn sends one query and waits for its answer.
func (r *rig) turn(payload json.RawMessage) error {
	id, err := r.ask(payload)
	if err != nil {
		return err
	}
	return r.answer(id)
}

// exits waits for the end of the process.
func (r *rig) exits(code int) error {
	select {
	case <-r.process.Done():
	case <-time.After(r.cfg.Timeout):
		return fmt.Errorf("the process still runs after %v", r.cfg.Timeout)
	}
	if exit := r.process.State().Exit; code >= 0 && (exit == nil || exit.Code != code) {
		return fmt.Errorf("the process ended with %s, want exit code %d", r.ended(), code)
	}
	return nil
}
