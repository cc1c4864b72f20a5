//go:build unix

package procpool_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/child"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"go.uber.org/goleak"
)

// The workers of the tests are real processes: this test binary, started again.
const helperEnv = "PROCPOOL_TEST_HELPER"

const patience = time.Minute

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperEnv); mode != "" {
		helper(mode)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func self(mode string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), helperEnv+"="+mode, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// ask is what the helper in mode serve does.
type ask struct {
	Op      string  `json:"op,omitempty"`
	N       int     `json:"n,omitempty"`
	Size    int     `json:"size,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Text    string  `json:"text,omitempty"`
	Path    string  `json:"path,omitempty"`
}

func (a ask) raw() json.RawMessage {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return b
}

var kept [][]byte // what mode serve leaks

func serve(ctx context.Context, q *child.Query) (any, error) {
	var a ask
	_ = json.Unmarshal(q.Payload, &a)
	switch a.Op {
	case "sleep", "deaf":
		if a.Op == "deaf" {
			ctx = context.Background()
		}
		timer := time.NewTimer(time.Duration(a.Seconds * float64(time.Second)))
		defer timer.Stop()
		select {
		case <-timer.C:
			return "slept", nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	case "count":
		if err := q.Session("s-" + q.ID); err != nil {
			return nil, err
		}
		for i := range a.N {
			content := any(i)
			if a.Size > 0 {
				content = strings.Repeat("x", a.Size)
			}
			if err := q.Send(content); err != nil {
				return nil, err
			}
		}
		return a.N, nil
	case "exit":
		fmt.Fprintln(os.Stderr, a.Text)
		os.Exit(a.N)
	case "exit-after-message":
		_ = q.Send("partial")
		os.Exit(a.N)
	case "exit-once": // the first time that anybody is asked
		if f, err := os.OpenFile(a.Path, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
			os.Exit(a.N)
		}
		return "second time", nil
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.Signal(a.N))
		time.Sleep(time.Hour)
	case "pid":
		return os.Getpid(), nil
	case "deaf-pid":
		_ = q.Send(os.Getpid())
		time.Sleep(time.Hour)
	case "fail":
		return nil, errors.New(a.Text)
	case "panic":
		panic(a.Text)
	case "leak":
		b := make([]byte, a.Size)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		kept = append(kept, b)
		return len(kept), nil
	case "big":
		return strings.Repeat("x", a.Size), nil
	case "fork": // leaves a child in the group, which ignores SIGTERM
		cmd := self("stay")
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		return cmd.Process.Pid, nil
	}
	return q.Payload, nil
}

// helper is a worker. All modes but serve break the contract in some way.
func helper(mode string) {
	mode, arg, _ := strings.Cut(mode, ":")
	switch mode {
	case "serve":
		if err := child.Serve(context.Background(), serve); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case "stay":
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	case "never-ready":
		time.Sleep(time.Hour)
	case "exit":
		fmt.Fprintln(os.Stderr, "cannot start:", arg)
		os.Exit(3)
	case "wrapped": // has a pool of wrapped workers, and is killed
		wrapped(arg)
		return
	case "namespace": // is the first process of one
		namespace(arg)
		return
	case "parent": // has a pool, and is killed
		parent(arg)
		return
	case "daemon": // leaves the group before it connects
		cmd := self("serve")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "the daemon:", err)
		}
		time.Sleep(time.Hour)
	case "probe-first": // somebody of the group looks at the socket before the worker does
		for range 20 { // more than the door has room for
			conn, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
			if err != nil {
				panic(err)
			}
			defer conn.Close() // half open, and says nothing
		}
		again, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
		if err == nil {
			again.Close()
		}
		helper("serve")
		return
	}
	raw(mode)
}

// raw speaks by hand.
func raw(mode string) {
	conn, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
	if err != nil {
		panic(err)
	}
	say := func(format string, args ...any) {
		if _, err := fmt.Fprintf(conn, format+"\n", args...); err != nil {
			os.Exit(1)
		}
	}
	switch mode {
	case "garbage-first":
		say("hello")
		time.Sleep(time.Hour)
	case "ready-twice":
		say(`{"type":"ready"}`)
	}
	say(`{"type":"ready"}`)
	lines := bufio.NewReader(conn)
	first := true
	owed := 0
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, os.ErrDeadlineExceeded) {
			for ; owed > 0; owed-- {
				say(`{"type":"health_ok","uptime":1,"queriesProcessed":0}`)
			}
			_ = conn.SetReadDeadline(time.Time{})
			continue
		}
		if err != nil {
			os.Exit(1)
		}
		var e wire.Envelope
		if err := errors.Join(wire.Validate(line), wire.Decode(bytes.TrimSpace(line), &e)); err != nil {
			panic(err) // what a pool says fits its schema
		}
		if mode == "told" { // writes down what it was told
			heard(e.Type)
		}
		if e.Type == wire.Shutdown && mode == "ignores-shutdown" {
			signal.Ignore(syscall.SIGTERM)
			continue
		}
		if e.Type == wire.Shutdown {
			say(`{"type":"shutdown_ack"}`)
			return
		}
		if e.Type == wire.Cancel && (mode == "cancel-late" || mode == "told") {
			say(`{"type":"message","requestId":%q,"content":"late"}`, e.RequestID)
			say(`{"type":"complete","requestId":%q,"result":"late"}`, e.RequestID)
			say(`{"type":"complete","requestId":%q,"result":"even later"}`, e.RequestID)
			continue
		}
		if e.Type == wire.HealthCheck && mode == "health-after-query" {
			owed++ // one thread, which answers once it has nothing else to do
			_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			continue
		}
		if e.Type == wire.HealthCheck && mode != "no-health" {
			say(`{"type":"health_ok","uptime":1,"queriesProcessed":0}`)
		}
		if e.Type != wire.Query {
			continue
		}
		id := e.RequestID
		if mode == "health-after-query" {
			_ = conn.SetReadDeadline(time.Time{})
			time.Sleep(600 * time.Millisecond)
			_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		}
		if mode == "stop-when-asked" && !first {
			for os.Getenv("GATE") != "" { // another query comes to wait
				if _, err := os.Stat(os.Getenv("GATE")); err == nil {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			say(`{"type":"complete","requestId":%q,"result":"well"}`, id)
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
		if !first && mode != "unknown-types" {
			say(`{"type":"complete","requestId":%q,"result":"well"}`, id)
			continue
		}
		first = false
		switch mode {
		case "garbage":
			say(`{"type":"message","requestId":%q,"content":}`, id)
		case "partial":
			fmt.Fprintf(conn, `{"type":"complete","requestId":%q,"res`, id)
			conn.Close()
			time.Sleep(time.Hour)
		case "disconnect":
			conn.Close()
			time.Sleep(time.Hour)
		case "stall":
			fmt.Fprintf(conn, `{"type":"complete","requestId":%q,"res`, id)
			time.Sleep(time.Hour)
		case "ack-unasked":
			say(`{"type":"shutdown_ack"}`)
		case "other-request":
			say(`{"type":"complete","requestId":"q999","result":1}`)
		case "unknown-types":
			say(`{"type":"telemetry","requestId":%q,"x":[1,{"y":"}"}]}`, id)
			say(`{"type":"complete","requestId":%q,"result":"fine","more":true}`, id)
		case "flood":
			for {
				say(`{"type":"message","requestId":%q,"content":"flood"}`, id)
			}
		case "flood-unknown":
			for {
				say(`{"type":"telemetry"}`)
			}
		case "100MB", "100MB-complete":
			kind := "message"
			if mode == "100MB-complete" {
				kind = "complete"
			}
			fmt.Fprintf(conn, `{"type":%q,"requestId":%q,"content":"`, kind, id)
			block := bytes.Repeat([]byte("x"), 1<<20)
			for range 100 {
				if _, err := conn.Write(block); err != nil {
					os.Exit(1)
				}
			}
			say(`"}`)
			if kind == "message" {
				say(`{"type":"complete","requestId":%q,"result":1}`, id)
			}
		case "cancel-late", "told": // waits for the cancel
		default:
			say(`{"type":"complete","requestId":%q,"result":"well"}`, id)
		}
	}
}

// parent has a pool with a worker that is busy, one that is ready and one that
// starts, tells who they are, and waits to be killed.
func parent(dir string) {
	p, err := procpool.New(procpool.Config{Name: "p", Command: func() *exec.Cmd { return self("serve") }, MinWorkers: 2, MaxWorkers: 2, SocketDir: dir, Logger: quiet})
	if err != nil {
		panic(err)
	}
	if err := p.Start(context.Background()); err != nil {
		panic(err)
	}
	for p.Stats().Ready < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := p.Submit(context.Background(), ask{Op: "deaf", Seconds: 3600}.raw()); err != nil {
		panic(err)
	}
	slow, err := procpool.New(procpool.Config{Name: "slow", Command: func() *exec.Cmd { return self("never-ready") }, MinWorkers: 1, SocketDir: dir, Logger: quiet})
	if err != nil {
		panic(err)
	}
	if err := slow.Start(context.Background()); err != nil {
		panic(err)
	}
	for slow.State().Children[0].PID == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	for _, pool := range []*procpool.Pool{p, slow} {
		for _, w := range pool.State().Children {
			fmt.Println("worker", w.PID)
		}
	}
	fmt.Println("all")
	time.Sleep(time.Hour)
}

// wrapped has a pool of two workers which a shell has started and waits for, so
// that the kernel ends the shell with this process, and not them. One is idle,
// the other one has a query that it does not end.
func wrapped(dir string) {
	command := func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", os.Getenv("WRAPPED")+" & wait")
		cmd.Env = append(os.Environ(), helperEnv+"=serve")
		return cmd
	}
	p, err := procpool.New(procpool.Config{Name: "p", Command: command, MinWorkers: 2, MaxWorkers: 2, SocketDir: dir, Logger: quiet})
	if err != nil {
		panic(err)
	}
	if err := p.Start(context.Background()); err != nil {
		panic(err)
	}
	for p.Stats().Ready < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	q, err := p.Submit(context.Background(), ask{Op: "deaf-pid"}.raw())
	if err != nil {
		panic(err)
	}
	for pid, err := range q.Messages() {
		fmt.Println("worker", string(pid), err)
		break
	}
	pid, err := p.Do(context.Background(), ask{Op: "pid"}.raw())
	fmt.Println("worker", string(pid), err)
	fmt.Println("all")
	time.Sleep(time.Hour)
}

// namespace has a pool whose worker does not come, and tells what becomes of who
// comes in its place.
func namespace(dir string) {
	p, err := procpool.New(procpool.Config{Name: "p", Command: func() *exec.Cmd { return self("never-ready") }, MinWorkers: 1, SocketDir: dir, Logger: quiet})
	if err != nil {
		panic(err)
	}
	if err := p.Start(context.Background()); err != nil {
		panic(err)
	}
	for ; ; time.Sleep(5 * time.Millisecond) {
		switch s := p.Stats(); {
		case s.Strangers > 0:
			fmt.Println("refused")
			return
		case s.Ready > 0 || s.Crashed > 0:
			fmt.Println("taken")
			return
		}
	}
}

// heard appends the type to the file that the environment names.
func heard(t wire.Type) {
	f, err := os.OpenFile(os.Getenv("HEARD"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, t)
}

var quiet = slog.New(slog.DiscardHandler)

// start starts a pool of helpers in mode and stops it with the test. change may
// be nil.
func start(t testing.TB, mode string, change func(*procpool.Config)) *procpool.Pool {
	t.Helper()
	return startPool(t, func() *exec.Cmd { return self(mode) }, change)
}

func startPool(t testing.TB, command func() *exec.Cmd, change func(*procpool.Config)) *procpool.Pool {
	t.Helper()
	cfg := procpool.Config{Name: "p", Command: command, SocketDir: socketDir(t), Logger: quiet, KillGrace: 500 * time.Millisecond, CancelGrace: time.Second}
	if change != nil {
		change(&cfg)
	}
	p, err := procpool.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := p.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
		left, err := filepath.Glob(filepath.Join(cmp.Or(cfg.SocketDir, filepath.Join(os.TempDir(), fmt.Sprintf("procpool-%d", os.Getuid()))), "*"))
		if err != nil || len(left) > 0 {
			t.Errorf("the pool left %v, %v", left, err)
		}
		s := p.Stats()
		if s.Open != 0 || s.Submitted != s.Complete+s.Failed+s.Cancelled+s.Rejected {
			t.Errorf("queries are not accounted for: %+v", s)
		}
	})
	return p
}

// socketDir is short: a unix socket's path may be.
func socketDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "pp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func do(t testing.TB, p *procpool.Pool, payload json.RawMessage, opts ...procpool.Option) string {
	t.Helper()
	got, err := p.Do(within(t), payload, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func submit(t testing.TB, p *procpool.Pool, payload json.RawMessage, opts ...procpool.Option) *procpool.Query {
	t.Helper()
	q, err := p.Submit(within(t), payload, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v it is still not true that %s", patience, what)
		}
	}
}

func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) == nil && !isLinux()
	}
	_, rest, _ := bytes.Cut(text, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

func kill(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func isLinux() bool {
	_, err := os.Stat("/proc/self/stat")
	return err == nil
}
