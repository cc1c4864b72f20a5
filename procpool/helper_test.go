//go:build unix

package procpool_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
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

var quiet = slog.New(slog.DiscardHandler)

// start starts a pool of helpers in mode and stops it with the test. change may
// be nil.
func start(t testing.TB, mode string, change func(*procpool.Config)) *procpool.Pool {
	t.Helper()
	return startPool(t, func() *exec.Cmd { return self(mode) }, change)
}

func startPool(t testing.TB, command func() *exec.Cmd, change func(*procpool.Config)) *procpool.Pool {
	t.Helper()
	cfg := procpool.Config{Name: "p", Command: command, SocketDir: socketDir(t), Logger: quiet, KillGrace: 500 * time.Millisecond, CancelGrace: 20 * time.Second}
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

// socketDir returns a folder whose path is short, since the path of a unix socket has to
// be short.
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

// waits has a worker run a query until release is called; then it answers "waited".
func waits(t testing.TB, p *procpool.Pool, opts ...procpool.Option) (q *procpool.Query, release func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "open")
	q = submit(t, p, ask{Op: "wait", Path: path}.raw(), opts...)
	eventually(t, "a worker has it", func() bool { return q.State() == procpool.QueryProcessing })
	return q, func() {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Error(err)
		}
	}
}

// deaf has a worker run a query that ignores its cancel.
func deaf(t testing.TB, p *procpool.Pool, opts ...procpool.Option) *procpool.Query {
	t.Helper()
	q := submit(t, p, ask{Op: "deaf", Seconds: 3600, Text: "it runs"}.raw(), opts...)
	for _, err := range q.Messages() {
		if err != nil {
			t.Fatal(err)
		}
		break
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
